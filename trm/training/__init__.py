"""Training and evaluation: the step, the loop, checkpoints, metrics, inference policies."""
