"""Puzzles: generated, read or downloaded; split without leaks; augmented by a pure function; sampled by step."""
