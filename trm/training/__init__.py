"""Training: the step, the loop, optimisers, checkpoints, metrics."""
