"""The command line: one module a command, imported only when it is called.

A module has `add_arguments`, `run` and, where some options may name a place in a bucket, their names in `REMOTE`.
"""

import argparse
import errno
import importlib
import io
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from trm.errors import UserError
from trm.io import private_folder, user_cache
from trm.storage.base import scheme_of

COMMANDS = {
    "study": "list, show and compare experiments",
    "data": "build and inspect puzzles and data sets",
    "train": "train one model",
    "evaluate": "evaluate a trained model",
    "solve": "solve Sudoku with a trained model",
    "play": "write a page on which the trained models solve Sudoku",
    "table": "collect evaluations into one table",
    "fit": "fit scaling laws to a table",
    "plot": "draw a figure from tables and fits",
    "report": "write the report",
    "convert": "exchange weights with the reference implementation",
    "preflight": "check a machine before a long run",
    "tpu-check": "compile the training step for a TPU slice, without a TPU",
    "fork-server": "run the short jobs of a study as forks of one process (started by the pipeline)",
    "checkpoints": "list and clean up checkpoints",
    "results": "archive results to a bucket, collect them, copy tables, check files",
}

PIPELINE = "`pip install '.[pipeline]'` in this project's folder installs what studies need"


def use_writable_cache() -> None:
    """Where the user's cache folder cannot be written (no home, a read-only one), caches of this process and of those
    that it starts are kept in .snakemake/cache. Compiled programs of torch are in a folder of this user alone."""
    try:
        folder = user_cache()
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except (OSError, RuntimeError):
        writable = False
    if not writable:
        folder = Path(".snakemake/cache").absolute()
        os.environ["XDG_CACHE_HOME"] = str(folder)
        os.environ.setdefault("MPLCONFIGDIR", str(folder / "matplotlib"))
    try:
        built = private_folder()
    except OSError:
        built = folder / "trm"
    # torch's own choice is a folder that any user can make beforehand; it unpickles what lies there
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(built / "inductor"))


def main(argv: list[str] | None = None) -> int:
    """Run one command; a UserError becomes one sentence on stderr and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    # a sentence has more characters than some terminals; in a fork this was done before, and would fail
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors != "replace":
        sys.stdout.reconfigure(errors="replace")
    if not argv or argv[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        print("usage: python -m trm COMMAND [options]      (COMMAND --help tells more; --version)\n")
        print("\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()))
        return 0 if argv else 2
    name = argv[0]
    if name == "--version":
        from trm import __version__
        from trm.provenance import commit

        sha, dirty = commit()
        print("trm", __version__, *([f"(commit {sha[:12]}{'+' * bool(dirty)})"] if sha else ""))
        return 0
    if name not in COMMANDS:
        from trm.study.merge import nearest

        print(f"trm: no command {name!r}{nearest(name, COMMANDS)}", file=sys.stderr)
        return 2
    use_writable_cache()
    module = importlib.import_module(f"trm.cli.{name.replace('-', '_')}")
    parser = argparse.ArgumentParser(
        prog=f"python -m trm {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    args, rest = parser.parse_known_args(argv[1:])
    if rest and not hasattr(args, "arguments"):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    args.arguments = rest
    try:
        check_places(args, getattr(module, "REMOTE", ()))
    except UserError as error:
        print(f"trm {name}: {error}", file=sys.stderr)
        return 2
    if getattr(args, "log", None):
        from trm.cli.log import logged

        with logged(Path(args.log)):
            return _run(name, module, args)
    return _run(name, module, args)


def check_places(args: argparse.Namespace, remote: Sequence[str]) -> None:
    """Refuse an option that names no place for files, which would be a folder such as ./s3:/ (UserError). `remote`:
    options that may name a place in a bucket."""
    for option, given in vars(args).items():
        for value in given if isinstance(given, list) else [given]:
            if not isinstance(value, str | Path) or option == "address":  # of the web
                continue
            try:
                scheme = scheme_of(value) or (isinstance(value, Path) and ":/" in str(value))
            except UserError as error:
                raise UserError(f"{option.replace('_', '-')}: {error}") from None
            if scheme and option not in remote:
                raise UserError(
                    f"{option.replace('_', '-')}: {value} is in a bucket: give a path of this disk"
                )


def _of_machine(error: ImportError | OSError | MemoryError) -> str:
    """A library that is missing or cannot be loaded, or what the machine has too little of, in one sentence; empty: it
    is another error."""
    if isinstance(error, MemoryError):
        return "there is not enough memory: end other programs, or raise the limit (`ulimit -v`)"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "the disk is full: free space and start again"
    if isinstance(error, ModuleNotFoundError):
        own = str(error.name).startswith("trm")
        return "" if own else f"the package {error.name} is not installed: {PIPELINE}"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}: check the path"
    if "shared object" not in str(error):
        return ""
    why = str(error).partition(". ")[0]
    return f"{why}: is it installed whole, and does `ulimit -v` leave the gigabyte that torch takes?"


def _run(name: str, module: ModuleType, args: argparse.Namespace) -> int:
    try:
        code = module.run(args) or 0
        if sys.stdout:
            sys.stdout.flush()  # what cannot be written is said here
        return code
    except UserError as error:
        logging.getLogger("trm").debug("traceback", exc_info=True)
        print(f"trm {name}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone: nothing is left to say
        return 141
    except (ImportError, OSError, MemoryError) as error:
        sentence = _of_machine(error)
        if not sentence:
            raise
        logging.getLogger("trm").debug("traceback", exc_info=True)
        print(f"trm {name}: {sentence}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"trm {name}: interrupted", file=sys.stderr)
        return 130
