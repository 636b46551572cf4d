"""What is kept: archives, kept tables and their quotes, comparison, verification, cleaning."""
