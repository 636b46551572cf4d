"""The preflight check of a pod: the file that records its success, and the jobs that wait for it."""

from __future__ import annotations

from typing import Any

from trm.io import shipped
from trm.pipeline.places import Place
from trm.pipeline.settings import Settings
from trm.study.fingerprint import digest

LOCK = shipped("envs/tpu/requirements.lock")


class PreflightGate:
    """What the rules `preflight`, `source`, `dataset` and `train` need to know.

    Args:
        settings: `preflight` (local, gpu or tpu) requests the check, `pod` names what is checked.
        place: where files live.
        hosts: hosts of the whole pod.
    """

    def __init__(self, settings: Settings, place: Place, hosts: int):
        self.profile = settings.preflight
        self.hosts, self._place = hosts, place
        lock = LOCK.read_text() if self.profile == "tpu" else ""
        identity = digest([self.profile, settings.pod, hosts, lock])
        self._path = f"results/preflight-{identity[:8]}.json"

    @property
    def wanted(self) -> bool:
        """Whether this profile requests the check."""
        return bool(self.profile)

    @property
    def output(self) -> Any:
        """The file that the check writes: one for each pod, number of hosts and environment."""
        return self._place.file(self._path)

    def before(self, *outputs: str) -> list[Any]:
        """What a job with these outputs waits for: the check, or nothing if all of them exist.

        A job that has nothing to do must not depend on it: Snakemake runs a job again whose missing input, ancient
        or not, is made for the sake of another (9.27, `update_needrun`).
        """
        if not self.wanted or all(self._place.exists(path) for path in outputs):
            return []
        return [self._place.uri(self._path)]

    @property
    def options(self) -> list[str]:
        """Words of the command."""
        bucket = ["--bucket", self._place.prefix] if self._place.prefix else []
        return ["--profile", self.profile, *bucket]
