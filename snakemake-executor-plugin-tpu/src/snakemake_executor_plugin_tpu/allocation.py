"""Which hosts a job gets, and the variables by which libtpu uses only those."""

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError

# Family: (what the number counts, chips per host of a larger slice, most chips of a one-host slice).
FAMILIES = {
    "v2": ("cores", 4, 4),
    "v3": ("cores", 4, 4),
    "v4": ("cores", 4, 4),
    "v5p": ("cores", 4, 4),
    "v5litepod": ("chips", 4, 8),
    "v6e": ("chips", 4, 8),
}
CHIP_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}


@dataclass(frozen=True)
class Slice:
    """A TPU slice by its API name: v4-64 has 64 TensorCores, 32 chips, 8 hosts of 4 chips."""

    name: str
    chips: int
    hosts: int

    @property
    def chips_per_host(self) -> int:
        return self.chips // self.hosts

    @property
    def host_type(self) -> str:
        """Return the accelerator type of a slice that is one of these hosts: v4-8 for v4-64."""
        family = self.name.partition("-")[0]
        return f"{family}-{self.chips_per_host * (2 if FAMILIES[family][0] == 'cores' else 1)}"


def slice_of(accelerator_type: str) -> Slice:
    """Return the chips and hosts of an accelerator type."""
    match = re.fullmatch(r"([a-z0-9]+)-(\d+)", accelerator_type or "")
    if not match or match[1] not in FAMILIES:
        known = ", ".join(f"{family}-N" for family in FAMILIES)
        raise WorkflowError(f"{accelerator_type!r} is not a known accelerator type: use one of {known}.")
    counted, per_host, one_host = FAMILIES[match[1]]
    chips, odd = divmod(int(match[2]), 2 if counted == "cores" else 1)
    hosts = 1 if chips <= one_host else chips // per_host
    if odd or not chips or (hosts > 1 and chips % per_host) or (hosts == 1 and chips not in CHIP_BOUNDS):
        raise WorkflowError(f"There is no slice {accelerator_type}: the sizes of v4 are v4-8, v4-16, v4-32.")
    if counted == "cores" and chips < per_host:
        raise WorkflowError(f"There is no slice {accelerator_type}: the least is {match[1]}-{2 * per_host}.")
    return Slice(accelerator_type, chips, hosts)


def hosts_wanted(resource: Any, hosts: int) -> int:
    """Return how many hosts the resource `tpu_hosts` requests: one, or a whole slice of so many."""
    wanted = hosts if resource == "all" else 1 if resource is None else resource
    with suppress(TypeError, ValueError):
        wanted = int(wanted)
    if wanted in (1, hosts):
        return wanted
    here = f"a whole slice has {hosts} host(s) here"
    raise WorkflowError(f"tpu_hosts is {resource!r}, and {here}: a job gets 1 host, or all {hosts}.")


def libtpu_variables(hosts: int, pod: Slice) -> dict[str, str]:
    """Return the variables that keep a one-host job on a larger slice from waiting for the other hosts.

    Without them libtpu and torch_xla ask the metadata server, which describes the whole slice.
    """
    if hosts > 1 or pod.hosts == 1:
        return {}
    return {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": pod.host_type,
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": CHIP_BOUNDS[pod.chips_per_host],
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
    }
