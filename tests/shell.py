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
    defaults = {"capture_output": True, "text": True, "timeout": 600, "env": os.environ | (env or {})}
    done = subprocess.run([*map(str, words)], check=False, **defaults | options)
    assert not check or done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done


def start(*words: object, **options: Any) -> subprocess.Popen[str]:
    """A command that goes on by itself; its output, with its errors, is text."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*map(str, words)], **pipes | options)


def python(
    *words: object, env: dict[str, str] | None = None, check: bool = False, **options: Any
) -> subprocess.CompletedProcess:
    """`python WORDS` with this interpreter, in a fork of a warm process where that is the same."""
    texts = tuple(map(str, words))
    if not warm.accepts(texts, env or {}) or options.keys() - {"cwd", "timeout"}:
        return run(sys.executable, *words, env=env, check=check, **options)
    done = warm.run(texts, env or {}, **{"cwd": None, "timeout": 600} | options)
    assert not check or done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done
