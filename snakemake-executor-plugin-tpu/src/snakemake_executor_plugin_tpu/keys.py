"""The ssh key for logging in to the hosts: made if there is none, and checked before anything is created."""

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from .errors import PodError

# The same user from every machine, so that running jobs are found in that user's home folder.
DEFAULT_USER = "snakemake"
DEFAULT_KEY = "~/.ssh/snakemake_tpu"
MAKING = threading.Lock()  # several slices are requested at the same time


def public_half(key: Path, say: Callable[[str], None]) -> str:
    """Return the public half of a key as one line, after making the key if it does not exist.

    Raises:
        PodError: the key cannot be read, or has a passphrase.
    """
    public = key.with_name(f"{key.name}.pub")
    with MAKING:
        if not key.exists():
            _make(key, public, say)
    if not os.access(key, os.R_OK):
        raise PodError(f"The ssh key {key} cannot be read by this user: set tpu-ssh-key to a key of yours.")
    done = run("ssh-keygen", "-y", "-P", "", "-f", str(key))
    if done.returncode == 0:
        return " ".join(done.stdout.split()[:2])
    reason = (done.stderr.strip().splitlines() or ["ssh-keygen gave no reason"])[-1]
    raise PodError(f"The ssh key {key} cannot be used ({reason}): set tpu-ssh-key to another key.")


def _make(key: Path, public: Path, say: Callable[[str], None]) -> None:
    if public.exists():
        raise PodError(f"{public} is without its private half: set tpu-ssh-key to another key.")
    key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kind = ("-q", "-t", "ed25519", "-N", "", "-C", "snakemake-executor-plugin-tpu")
    done = run("ssh-keygen", *kind, "-f", str(key))
    if done.returncode:
        raise PodError(f"ssh-keygen failed: {done.stderr.strip()[-300:]}")
    say(f"Made the ssh key {key}: its public half is put onto slices created from here")


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the OpenSSH client; PodError if there is none."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise PodError(f"There is no {argv[0]} on this machine: install the OpenSSH client.") from None
