"""Optimisers over one flat parameter buffer, the puzzle table's sign descent, the schedule, the loss scale."""
