"""What is to be known: the study's schema, its grid of runs, their fingerprints and their cost. Needs no torch."""
