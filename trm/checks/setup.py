"""What set-up compiles for this machine, so that no job of the first study waits for it; torch is not needed.

`python -m trm.checks.setup` compiles the CPU kernel and, beside it, the generator of Sudoku puzzles.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from io import StringIO

from trm.backends.cpu import build
from trm.study.schema import DataConfig
from trm.tasks import task_of


def compile_generator() -> None:
    """Have numba compile and keep what generates Sudoku: it does so at the first puzzles."""
    config = DataConfig(task="sudoku", source="generate", box_rows=2, box_cols=3, pool=8)
    with redirect_stderr(StringIO()):  # the progress of eight puzzles tells nobody anything
        task_of("sudoku").pool(config, [])


def main() -> None:
    with ThreadPoolExecutor(1) as beside:
        beside.submit(build.library)  # what a machine lacks for it, `trm.checks.speed` says
        compile_generator()


if __name__ == "__main__":
    main()
