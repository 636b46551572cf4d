"""Sentences made from numbers: change a number's sign or its interval, and the sentence changes."""
