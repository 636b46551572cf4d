"""The one exception a user is meant to read: a sentence that says what is wrong, where, and what to do."""


class UserError(Exception):
    """Bad input or a broken environment. The command line prints the sentence alone and exits with code 2;
    the traceback goes to the log."""
