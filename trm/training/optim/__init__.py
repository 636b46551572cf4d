"""Optimisers over one flat parameter buffer, the puzzle table's sign descent, the schedule, the loss scale.

An optimiser is a module of this package with an `OPTIMISER`, named as in `TrainingConfig.optimizer`.
"""
