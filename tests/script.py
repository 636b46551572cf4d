"""`python -m tests.script CODE WORDS` is `python -c CODE WORDS`, for tests.warm: without the seconds of its imports."""

import sys

code = sys.argv.pop(1)
exec(compile(code, "<script>", "exec"), {"__name__": "__main__"})
