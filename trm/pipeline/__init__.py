"""What to make: names of files by content, selection, settings, the plan and its prices."""
