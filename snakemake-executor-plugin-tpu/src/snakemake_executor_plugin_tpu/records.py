"""What the bucket remembers about a job between launches and between calls of Snakemake."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any


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

    launch: int = 0
    state: str = "collected"
    """`launched` until Snakemake has been told how the last launch ended, or another launch follows."""
    fingerprint: str = ""
    hosts: list[int] = field(default_factory=list)
    """Hosts of the last launch."""
    preemptions: int = 0
    stalled: int = 0
    progress: str | None = None
    progress_at_loss: str | None = None
    losses: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, document: dict[str, Any]) -> "JobRecord":
        names = {f.name for f in fields(cls)}
        return cls(**{key: value for key, value in document.items() if key in names})

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def report(self, progress: str | None) -> bool:
        """Note the progress; return whether it is new."""
        if newer := is_newer(progress, self.progress):
            self.progress = progress
        return newer

    def count_loss(self, why: str, preemptions: int, stalled: int, proves: bool = True) -> str | None:
        """Count a lost launch against its budgets; return why the job has to give up, or None.

        `proves`: whether the job could have made progress; a slice that lived too briefly says nothing about it.
        """
        self.losses, self.hosts, self.state = [*self.losses[-9:], why], [], "collected"
        self.preemptions += 1
        if is_newer(self.progress, self.progress_at_loss):
            self.stalled = 0
        elif proves:
            self.stalled += 1
        self.progress_at_loss = self.progress
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
        """Forget everything but the number of the last launch."""
        self.state, self.preemptions, self.stalled = "collected", 0, 0
        self.progress = self.progress_at_loss = None
        self.losses, self.hosts = [], []
