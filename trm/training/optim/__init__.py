"""Optimisers over the flat parameter buffer, sign descent for the puzzle table, schedules, loss scaling.

An optimiser is a module of this package that defines `OPTIMISER`; `TrainingConfig.optimizer` names the module.
"""
