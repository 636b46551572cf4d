"""The study: its schema, grid of runs, fingerprints and costs. Needs neither torch nor numpy."""
