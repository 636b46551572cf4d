"""ARC-AGI: files, canvases, augmentation, voting."""
