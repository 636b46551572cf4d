"""Programs that tests run, to their end or beside them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import warm

ROOT = Path(__file__).parents[1]


def run(*words: object, env: dict[str, str] | None = None, check: bool = False, **options: Any):
    """A command with the variables `env` besides ours; its output is text. `check`: it must succeed."""
    defaults = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    timeout, env = options.pop("timeout", 600), os.environ | (env or {})
    with warm.Popen([*map(str, words)], env=env, **defaults | options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
    assert not check or process.returncode == 0, f"{out}{err}"
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def start(*words: object, **options: Any) -> subprocess.Popen[str]:
    """A command that goes on by itself; its output, with its errors, is text."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return warm.Popen([*map(str, words)], **pipes | options)


def python(*words: object, **options: Any) -> subprocess.CompletedProcess:
    """`python WORDS` with this interpreter."""
    return run(sys.executable, *words, **options)
