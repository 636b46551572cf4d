"""`python -m trm COMMAND`: every rule of the pipeline is one of these lines."""

import gc
import sys

# Imports make no garbage: looking for it at Python's own rate takes a tenth of torch's import.
gc.set_threshold(100_000, 20, 100)


def main() -> int:
    """Run the command line, in a process that has imported what it needs if there is one; returns the exit code."""
    from trm.launch.forkclient import run_elsewhere

    code = run_elsewhere(sys.argv[1:])
    if code is None:
        from trm import cli

        code = cli.main()
    return code


if __name__ == "__main__":
    raise SystemExit(main())
