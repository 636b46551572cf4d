"""The model and what all its implementations share."""
