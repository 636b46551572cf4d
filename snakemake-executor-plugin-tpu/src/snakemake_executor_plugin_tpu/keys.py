"""The ssh key by which the hosts let us in: made where there is none, and checked before anything is created."""

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from .errors import PodError

# Hosts know the same user from whichever machine somebody comes: what runs there is found in that user's home.
DEFAULT_USER = "snakemake"
DEFAULT_KEY = "~/.ssh/snakemake_tpu"


MAKING = threading.Lock()  # the slices of a pool are asked for at the same time


def public_half(key: Path, say: Callable[[str], None]) -> str:
    """Return the public half of a key as one line, after making the key if it is absent.

    Raises:
        PodError: the key cannot be read, or asks for a passphrase that no ssh-agent answers.
    """
    public = key.with_name(f"{key.name}.pub")
    with MAKING:
        _make(key, public, say)
    if not os.access(key, os.R_OK):
        raise PodError(f"The ssh key {key} cannot be read by this user: set tpu-ssh-key to a key of yours.")
    done = subprocess.run(
        ["ssh-keygen", "-y", "-P", "", "-f", str(key)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode == 0:
        return " ".join(done.stdout.split()[:2])
    if "passphrase" in done.stderr and public.exists():
        line = " ".join(public.read_text().split()[:2])
        agent = subprocess.run(["ssh-add", "-L"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if line in agent.stdout:
            return line
        raise PodError(
            f"The ssh key {key} has a passphrase: run `ssh-add {key}`, or set tpu-ssh-key to another key."
        )
    reason = (done.stderr.strip().splitlines() or ["ssh-keygen gave no reason"])[-1]
    raise PodError(f"The ssh key {key} cannot be used ({reason}): set tpu-ssh-key to another key.")


def _make(key: Path, public: Path, say: Callable[[str], None]) -> None:
    if key.exists():
        return
    if public.exists():
        raise PodError(
            f"There is a public key {public} without its private half: set tpu-ssh-key to another key."
        )
    key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _call(
        "ssh-keygen",
        "-q",
        "-t",
        "ed25519",
        "-N",
        "",
        "-C",
        "snakemake-executor-plugin-tpu",
        "-f",
        str(key),
    )
    say(f"Made the ssh key {key}: its public half is put onto slices created from here")


def _call(*argv: str) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise PodError(f"There is no {argv[0]} on this machine: install the OpenSSH client.") from None
    if done.returncode:
        raise PodError(f"{argv[0]} failed: {done.stderr.strip()[-300:]}")
