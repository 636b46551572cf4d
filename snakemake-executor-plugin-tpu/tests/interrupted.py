"""Runs Snakemake with Ctrl-C at a given moment: `python interrupted.py MOMENT -- ARGUMENTS`.

The moment is when the main thread has done, for the first time, a call of the executor (`run_job`) or of what it
holds (`driver.loop.close`).
"""

import functools
import signal
import sys
import threading

from snakemake.cli import main

from snakemake_executor_plugin_tpu.executor import Executor

begin = Executor.__post_init__
moment = sys.argv[1]


def prepare(executor: Executor) -> None:
    """Interrupt at the moment."""
    begin(executor)
    *path, name = moment.split(".")
    owner = functools.reduce(getattr, path, executor)
    call, struck = getattr(owner, name), []

    def strike(*arguments, **options):
        result = call(*arguments, **options)
        if not struck and threading.current_thread() is threading.main_thread():
            struck.append(moment)
            signal.raise_signal(signal.SIGINT)
        return result

    setattr(owner, name, strike)


if __name__ == "__main__":
    Executor.__post_init__ = prepare
    sys.argv[1:3] = []
    main()
