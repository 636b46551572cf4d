"""The tasks: Sudoku, mazes, ARC-AGI."""
