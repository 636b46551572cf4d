"""What jobs print: copied to this machine as it comes, shown, and read for the reason of a failure."""

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
OF_SNAKEMAKE = re.compile(
    r"\[?(\w{3} \w{3} +\d+ .*\]|Error in rule|RuleException|Exiting because|WorkflowError)"
)


def plain(text: str) -> str:
    """Return a job's line without what would control a terminal."""
    return CONTROL.sub("", text)


def reason_of(tail: Sequence[str]) -> str:
    """Return the last line that the job itself has printed: what Snakemake says of a failure follows it."""
    own = list(itertools.takewhile(lambda line: not OF_SNAKEMAKE.match(line), tail))
    return next((line.strip()[:120] for line in reversed(own or list(tail)) if line.strip()), "")


def log_files(folder: Path) -> list[Path]:
    """Return the logs of a job's newest launch that are not empty."""
    launches = sorted(folder.glob("launch-*"), key=lambda path: path.stat().st_mtime)
    return [path for path in sorted(launches[-1].glob("*.log")) if path.stat().st_size] if launches else []


class LaunchLog:
    """The log of one launch: a file `rank<n>.log` for each of its ranks, which grows by chunks."""

    def __init__(self, folder: Path, label: str, say: Callable[[str], None]) -> None:
        self.folder, self.label, self.say = folder, label, say
        self.chunks: dict[int, int] = {}
        """How many chunks of each rank have been read."""
        self._rest: dict[int, bytes] = {}

    def add(self, rank: int, data: bytes) -> None:
        """Append a rank's next chunk to its file, and show the lines that it completes."""
        self.chunks[rank] = self.chunks.get(rank, 0) + 1
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / f"rank{rank}.log", "wb" if self.chunks[rank] == 1 else "ab") as file:
                file.write(data)
        except OSError:
            pass  # a full disk costs this copy of the log but not the job
        *lines, self._rest[rank] = (self._rest.get(rank, b"") + data).split(b"\n")
        for line in lines:
            # Of a progress bar, which overwrites its line, the last state is shown.
            text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
            self.say(f"[{self.label} {rank}] {plain(text)}")
