"""`python -m trm COMMAND`: every rule of the pipeline is one of these lines."""

import gc
import sys

# Imports make no garbage: looking for it at Python's own rate takes a tenth of torch's import.
gc.set_threshold(100_000, 20, 100)

from trm.pipeline.forkserver import run_elsewhere  # noqa: E402

if __name__ == "__main__":
    code = run_elsewhere(sys.argv[1:])
    if code is None:
        from trm.cli import main

        code = main()
    raise SystemExit(code)
