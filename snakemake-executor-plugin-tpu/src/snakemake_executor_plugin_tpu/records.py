"""What the controller remembers of a job between its launches, and between two calls of Snakemake."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path


def is_newer(progress: str | None, than: str | None) -> bool:
    """Tell whether a job has come further: numbers are compared, other words count when they change."""
    if progress is None or progress == than:
        return False
    try:
        return than is None or float(progress) > float(than)
    except ValueError:
        return True


@dataclass
class JobRecord:
    """Launches of one job, how it lost them, and how far it has come."""

    path: Path
    launch: int = 0
    preemptions: int = 0
    stalled: int = 0
    progress: str | None = None
    progress_at_loss: str | None = None
    losses: list[str] = field(default_factory=list)
    slice: str = ""
    hosts: list[int] = field(default_factory=list)
    """Where the last launch went, until it is known how it ended."""

    @classmethod
    def load(cls, path: Path) -> "JobRecord":
        """Read the record, or begin one."""
        try:
            known = json.loads(path.read_text())
        except (OSError, ValueError):
            known = {}
        names = {f.name for f in fields(cls)} - {"path"}
        return cls(path, **{key: value for key, value in known.items() if key in names})

    def save(self) -> None:
        """Write the record so that a crash leaves either the old or the new one."""
        content = {key: value for key, value in asdict(self).items() if key != "path"}
        temporary = self.path.with_suffix(".tmp")
        # A full disk must not end the job: the hosts, too, know the launches that they have seen.
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(content))
            os.replace(temporary, self.path)

    def next_launch(self, seen: int = 0, slice: str = "", hosts: Sequence[int] = ()) -> int:
        """Return a launch number that was never used before, on this machine or on the pod, and note where it goes."""
        self.launch, self.slice, self.hosts = max(self.launch, seen) + 1, slice, list(hosts)
        self.save()
        return self.launch

    def settle(self) -> None:
        """Note that the last launch runs nowhere any more."""
        self.hosts = []

    def report(self, progress: str | None) -> None:
        """Note how far the job has come."""
        if is_newer(progress, self.progress):
            self.progress = progress
            self.save()

    def count_loss(self, why: str, *, preemptions: int, stalled: int) -> str | None:
        """Count a lost launch against its budgets; return why the job has to give up, if it has to."""
        self.losses, self.hosts = [*self.losses[-9:], why], []
        self.preemptions += 1
        self.stalled = 0 if is_newer(self.progress, self.progress_at_loss) else self.stalled + 1
        self.progress_at_loss = self.progress
        self.save()
        if self.stalled > stalled:
            return (
                f"relaunched {stalled} times in a row without a newer checkpoint (the last: "
                f"{self.progress or 'none'}); this is not what preemption looks like. Look at the job's log, let it "
                "checkpoint more often, or raise tpu-relaunches-without-progress. What ended the launches: "
                f"{'; '.join(self.losses[-stalled - 1 :])}"
            )
        if self.preemptions > preemptions:
            return (
                f"lost {self.preemptions} launches to preemption: raise tpu-preemptions to go on. Last: {why}"
            )
        return None

    def finish(self) -> None:
        """Begin the budgets anew: the job has ended, and another attempt is another story."""
        self.preemptions = self.stalled = 0
        self.progress = self.progress_at_loss = None
        self.losses, self.hosts = [], []
        self.save()
