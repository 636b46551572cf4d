"""Statistics that figures and sentences share: intervals, paired differences, targets, Pareto frontiers,
batch size."""
