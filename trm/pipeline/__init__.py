"""What the Snakefile knows: names of files by content, which targets are stale, what a job will cost."""
