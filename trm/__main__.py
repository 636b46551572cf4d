"""`python -m trm COMMAND`: every rule of the pipeline is one of these lines."""

import gc

# Imports make no garbage: looking for it at Python's own rate takes a tenth of torch's import.
gc.set_threshold(100_000, 20, 100)

from trm.cli import main  # noqa: E402

if __name__ == "__main__":
    raise SystemExit(main())
