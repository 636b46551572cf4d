"""`python -m trm COMMAND`: every rule of the pipeline is one of these lines."""

from trm.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
