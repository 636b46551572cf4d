"""What the controller remembers about a job between launches and between calls of Snakemake."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path


def is_newer(progress: str | None, than: str | None) -> bool:
    """Whether a job has made progress: numbers are compared, other text counts if it changes."""
    if progress is None or progress == than:
        return False
    try:
        return than is None or float(progress) > float(than)
    except ValueError:
        return True


@dataclass
class JobRecord:
    """The launches of one job, why they were lost, and the job's progress."""

    path: Path
    launch: int = 0
    preemptions: int = 0
    stalled: int = 0
    progress: str | None = None
    progress_at_loss: str | None = None
    losses: list[str] = field(default_factory=list)
    slice: str = ""
    hosts: list[int] = field(default_factory=list)
    """Hosts of the last launch, until its end is known."""

    @classmethod
    def load(cls, path: Path) -> "JobRecord":
        try:
            known = dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            known = {}
        names = {f.name for f in fields(cls)} - {"path"}
        return cls(path, **{key: value for key, value in known.items() if key in names and value is not None})

    def save(self) -> None:
        """Write the record; after a crash either the old or the new one is left."""
        content = {key: value for key, value in asdict(self).items() if key != "path"}
        temporary = self.path.with_suffix(".tmp")
        # A full disk must not end the job: the hosts know their launches as well.
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(content))
            os.replace(temporary, self.path)

    def next_launch(self, seen: int = 0, slice: str = "", hosts: Sequence[int] = ()) -> int:
        """Return a launch number that neither this machine nor the pod has used, and note where the launch goes."""
        self.attach(max(self.launch, seen) + 1, slice, hosts)
        return self.launch

    def attach(self, launch: int, slice: str, hosts: Sequence[int]) -> None:
        """Note a launch that was found on the pod."""
        self.launch, self.slice, self.hosts = launch, slice, list(hosts)
        self.save()

    def report(self, progress: str | None) -> None:
        if is_newer(progress, self.progress):
            self.progress = progress
            self.save()

    def count_loss(self, why: str, *, preemptions: int, stalled: int) -> str | None:
        """Count a lost launch against its budgets; return why the job has to give up, or None."""
        self.losses, self.hosts = [*self.losses[-9:], why], []
        self.preemptions += 1
        self.stalled = 0 if is_newer(self.progress, self.progress_at_loss) else self.stalled + 1
        self.progress_at_loss = self.progress
        self.save()
        if self.stalled > stalled:
            return (
                f"relaunched {stalled} time{'s' * (stalled != 1)} in a row without a newer checkpoint (the last: "
                f"{self.progress or 'none'}); preemptions alone do not look like this. Read the job's log, let it "
                "checkpoint more often, or raise tpu-relaunches-without-progress. What ended the launches: "
                f"{'; '.join(self.losses[-stalled - 1 :])}"
            )
        if self.preemptions > preemptions:
            return f"lost {self.preemptions} launches to preemption: raise tpu-preemptions to continue. Last: {why}"
        return None

    def finish(self) -> None:
        self.preemptions = self.stalled = 0
        self.progress = self.progress_at_loss = None
        self.losses, self.hosts = [], []
        self.save()
