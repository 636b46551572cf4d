"""What Snakemake is told of each training job: hosts, memory, minutes, and a sentence for `snakemake -n`."""

from __future__ import annotations

import fnmatch
from typing import Any

from trm.pipeline.workflow import Workflow
from trm.study.plan import Estimate, Hardware, estimate, flops_text, read_hardware, seconds_text


class Estimates:
    """Estimates of every run of a study, made when they are asked for."""

    def __init__(self, workflow: Workflow):
        self._workflow = workflow
        path = str(workflow.config.get("hardware", "config/hardware.yaml"))
        self.hardware: Hardware = read_hardware(path, workflow.study.scale.hardware)
        self._known: dict[str, Estimate] = {}

    def of(self, run: str) -> Estimate:
        """Estimate of one run."""
        if run not in self._known:
            self._known[run] = estimate(self._workflow.runs[run].config, self.hardware)
        return self._known[run]

    def hosts(self, wildcards: Any) -> int:
        """Pod hosts of a job: one, so that as many runs as possible go on at once; all of them where the batch does
        not fit one host's memory, or the config's `whole_pod` pattern names the run."""
        pattern = str(self._workflow.config.get("whole_pod") or "")
        needed = self.of(wildcards.run).memory_bytes / 2**30
        whole = needed > self.hardware.memory_gib or fnmatch.fnmatch(wildcards.run, pattern)
        return int(self._workflow.config.get("pod_hosts") or self.hardware.hosts) if whole else 1

    def launcher(self, wildcards: Any) -> str:
        """What stands before the command: `tpurun` starts it on every host of the job."""
        return "tpurun" if self.hosts(wildcards) > 1 else ""

    def minutes(self, wildcards: Any) -> int:
        """Time limit for schedulers that want one: twice the estimate and a quarter of an hour."""
        return int(self.of(wildcards.run).seconds / 30) + 15

    def memory_mb(self, wildcards: Any) -> int:
        """Memory for schedulers that want it: the estimate and the program itself."""
        return 1500 + int(self.of(wildcards.run).memory_bytes / 1e6)

    def sentence(self, wildcards: Any) -> str:
        """What a training job costs, for its message."""
        cost = self.of(wildcards.run)
        price = f", ${cost.usd:.2f}" if cost.usd else ""
        return (
            f"{cost.parameters:,} parameters, {cost.steps:,} steps, {flops_text(cost.flops)}, "
            f"about {seconds_text(cost.seconds)} ({cost.device_hours:.3g} {self.hardware.device} hours{price})"
        )
