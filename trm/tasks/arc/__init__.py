"""ARC-AGI: input files, canvases, augmentation, voting."""
