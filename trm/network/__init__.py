"""The Tiny Recursive Model (arXiv 2510.04871): its mathematics, parameters, losses and halting."""
