"""The plugin's settings: each field is a `--tpu-...` option of Snakemake, and a `tpu-...` key of a profile."""

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

from .allocation import slice_of
from .keys import DEFAULT_KEY, DEFAULT_USER

PROVISIONING = ("spot", "on-demand", "reserved")


def _setting(default: Any, help: str, type: Any = None, **metadata: Any) -> Any:
    metadata = {"help": help, "required": False, "env_var": False, **metadata}
    return field(default=default, metadata={**metadata, "type": type} if type else metadata)


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Where the pod is, what may be created, and how patient to be."""

    project: str | None = _setting(None, "Google Cloud project of the pod.", str, env_var=True)
    zone: str | None = _setting(
        None,
        "Zone of the pod, such as us-central2-b; of several, 'z1 z2', the first with capacity.",
        str,
        env_var=True,
    )
    name: str | None = _setting(
        None, "Name of the pod: node and queued resource carry it.", str, env_var=True
    )
    accelerator_type: str = _setting("v4-64", "Slice to create; v4-64 has 32 chips on 8 hosts.", str)
    pool: Sequence[str] = _setting(
        (),
        "Several slices instead of one, each like 'v4-8 x 8' or 'v5litepod-16 x 4 @ us-west4-a': NAME-0, NAME-1 and so "
        "on. In a profile a list, or one text with commas.",
        nargs="+",  # and no `type`, which Snakemake would apply to the whole list
    )
    runtime_version: str = _setting("tpu-ubuntu2204-base", "Software image of the hosts.", str)
    create: bool = _setting(
        False,
        "Create the pod when it is absent and re-create it after preemption. Without it nothing is created.",
    )
    adopt: str = _setting(
        "use-only",
        "What may be done with a pod that this plugin did not create: use-only, or delete-allowed (once it is lost).",
        str,
    )
    provisioning: str = _setting("spot", "How to pay for the pod: spot, on-demand or reserved.", str)
    reservation: str | None = _setting(
        None, "Reservation to use, projects/P/locations/Z/reservations/R.", str, env_var=True
    )
    network: str | None = _setting(None, "VPC network of the pod (default: the project's default).", str)
    subnetwork: str | None = _setting(None, "Subnetwork of the pod.", str)
    internal_ips: bool = _setting(
        False, "Give the hosts no external addresses, and reach them by internal ones."
    )
    service_account: str | None = _setting(None, "Service account that the hosts act as.", str, env_var=True)
    labels: str = _setting("", "Labels of the pod, 'key=value key=value': they appear on the bill.", str)
    queue_timeout: int = _setting(0, "Seconds to wait for capacity; 0 waits for ever.", int)
    zone_minutes: float = _setting(
        10.0, "Minutes that a request waits for capacity in one zone before the next one is tried.", float
    )
    idle_delete: float = _setting(
        0.0,
        "Minutes without a job or a controller after which a pod created here deletes itself; 0 never.",
        float,
    )
    end: str | None = _setting(
        None, "Date (2026-12-31 or 2026-12-31T18:00, UTC) at which a pod created here deletes itself.", str
    )
    api_endpoint: str | None = _setting(
        None, "host:port of an emulated TPU API on this machine.", str, env_var=True
    )

    workers: str = _setting(
        "", "Hosts of a pod that is not managed here, 'w0 w1 ...', as ssh knows them.", str, env_var=True
    )
    ssh_config: str | None = _setting(
        None, "ssh configuration to read as well (host names, ProxyJump, ProxyCommand).", str, env_var=True
    )
    ssh_user: str | None = _setting(
        None, f"User on the hosts (default: {DEFAULT_USER}; with tpu-workers: ssh's own).", str, env_var=True
    )
    ssh_key: str | None = _setting(
        None,
        f"Private key, made if absent; its public half is put onto slices created from here (default: {DEFAULT_KEY}; "
        "with tpu-workers: ssh's own).",
        str,
        env_var=True,
    )
    trust_first_key: bool = _setting(
        False,
        "Trust the key that a host shows first where the TPU API does not tell its keys; later ones are refused.",
    )
    ssh_port: int = _setting(22, "Port of the hosts' ssh servers.", int, env_var=True)
    boot_timeout: int = _setting(900, "Seconds that hosts of a ready pod have to answer ssh.", int)

    folder: str = _setting(
        ".snakemake-tpu", "The plugin's folder on the hosts, relative to the home folder or absolute.", str
    )
    python: str = _setting(
        "python3", "Python on the hosts that has Snakemake, when no lock file is given.", str, env_var=True
    )
    requirements: str | None = _setting(
        None, "Lock file of the jobs' environment, installed once on each host and kept by content.", str
    )
    environment_python: str = _setting(
        "3.11", "Version of the environment's Python, which uv brings, or a path on the hosts.", str
    )
    wheelhouse: str | None = _setting(
        None,
        "Folder in Cloud Storage that the command `wheelhouse` filled, for hosts without a package index.",
        str,
        env_var=True,
    )
    agent_python: str = _setting(
        "python3", "Python (3.10 or newer) on the hosts that runs the agent.", str, env_var=True
    )
    sources: str = _setting(
        "", "Files and folders to send besides the workflow's own sources, 'package data.json'.", str
    )
    forward_env: str = _setting(
        "STORAGE_EMULATOR_HOST",
        "Names of variables to hand to the jobs, besides the workflow's envvars.",
        str,
    )

    lease: int = _setting(43200, "Seconds that a job may run with no controller before it is stopped.", int)
    cancelled_lease: int = _setting(120, "The same, once Snakemake has been cancelled.", int)
    grace: int = _setting(30, "Seconds between SIGTERM and SIGKILL: enough to write a checkpoint.", int)
    reconnect: int = _setting(60, "Seconds without connection after which a host counts as lost.", int)
    recovery: int = _setting(
        900, "Seconds that a silent host of a ready pod has to come back; then its jobs fail.", int
    )
    preemptions: int = _setting(
        50, "Relaunches of one job after preemption; they do not count as retries.", int
    )
    relaunches_without_progress: int = _setting(
        3, "Relaunches in a row without a newer checkpoint after which a job has failed.", int
    )
    preemption_notice: int = _setting(30, "Seconds to wait for word of preemption after exit code 143.", int)
    poll: float = _setting(0.2, "Seconds between looks at the jobs.", float)
    prune_days: int = _setting(7, "Days after which unused folders on the hosts are deleted.", int)
    stream: str = _setting("all", "Whose log to show live: all ranks, the first, or none.", str)

    notify_command: str | None = _setting(
        None, "Command run on failure, out of memory, preemption and finish; JSON on its input.", str
    )
    notify_webhook: str | None = _setting(None, "URL that gets the same JSON by POST.", str, env_var=True)

    def __post_init__(self) -> None:
        """Refuse what cannot work before anything costs money, and use our classes for Cloud Storage."""
        for name in ("project", "zone", "name"):
            if self.workers and getattr(self, name):
                raise WorkflowError(f"tpu-workers names a pod that is not managed here: remove tpu-{name}.")
        if self.provisioning not in PROVISIONING:
            raise WorkflowError(f"tpu-provisioning is {self.provisioning!r}: use {', '.join(PROVISIONING)}.")
        if self.adopt not in ("use-only", "delete-allowed"):
            raise WorkflowError(f"tpu-adopt is {self.adopt!r}: use use-only or delete-allowed.")
        if self.stream not in ("all", "first", "none"):
            raise WorkflowError(f"tpu-stream is {self.stream!r}: use all, first or none.")
        if not re.fullmatch(r"[A-Za-z0-9._/-]+", self.folder) or ".." in self.folder:
            raise WorkflowError(f"tpu-folder is {self.folder!r}: use letters, digits and . _ - / only.")
        for name in (
            "lease",
            "cancelled_lease",
            "grace",
            "reconnect",
            "recovery",
            "preemptions",
            "idle_delete",
        ):
            if getattr(self, name) < 0:
                raise WorkflowError(
                    f"tpu-{name.replace('_', '-')} is {getattr(self, name)}: it cannot be negative."
                )
        self.end_time()
        self.slices()
        slice_of(self.accelerator_type)
        if (
            self.ssh_user
            and not self.workers
            and (self.ssh_user == "root" or not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", self.ssh_user))
        ):
            raise WorkflowError(
                f"tpu-ssh-user is {self.ssh_user!r}: hosts let no such user in; use {DEFAULT_USER!r}."
            )
        if importlib.util.find_spec("snakemake_storage_plugin_gcs"):
            from .storage import use_listings

            use_listings()

    def check_pod(self) -> None:
        """Refuse to start without knowing where the pod is."""
        if self.workers:
            return
        missing = [name for name in ("project", "zone", "name") if not getattr(self, name)]
        if missing:
            raise WorkflowError(
                f"The pod is unknown: set {', '.join('tpu-' + name for name in missing)} in the profile (or "
                f"{', '.join('SNAKEMAKE_TPU_' + name.upper() for name in missing)} in the environment), or "
                "tpu-workers for hosts that ssh knows already."
            )

    def end_time(self) -> float:
        """Return the end date in seconds of the epoch, 0 for none."""
        if not self.end:
            return 0.0
        try:
            return datetime.fromisoformat(self.end).replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise WorkflowError(
                f"tpu-end is {self.end!r}: use a date such as 2026-12-31 or 2026-12-31T18:00."
            ) from None

    def slices(self) -> "list[ExecutorSettings]":
        """Return the settings of each slice: these settings themselves where no pool is given.

        Raises WorkflowError where the pool cannot be read.
        """
        if not self.pool:
            return [self]
        if self.workers:
            raise WorkflowError("tpu-workers names a pod that is not managed here: remove tpu-pool.")
        found: list[ExecutorSettings] = []
        for item in ",".join([self.pool] if isinstance(self.pool, str) else self.pool).split(","):
            match = re.fullmatch(r"\s*([\w-]+)(?:\s+x\s+(\d+))?(?:\s+@\s+([\w-]+))?\s*", item)
            if match is None:
                raise WorkflowError(f"tpu-pool says {item.strip()!r}: write 'v4-8 x 8' or 'v4-8 x 8 @ ZONE'.")
            kind, count, zone = match.groups()
            slice_of(kind)
            for _ in range(int(count or 1)):
                name = f"{self.name}-{len(found)}"
                found.append(replace(self, pool=(), name=name, accelerator_type=kind, zone=zone or self.zone))
        return found

    def zones(self) -> list[str]:
        """Return the zones to look in, in order."""
        return (self.zone or "").replace(",", " ").split()

    @property
    def login(self) -> tuple[str | None, Path | None]:
        """Return user and private key for ssh; None leaves the choice to ssh."""
        user, key = self.ssh_user, self.ssh_key
        if not self.workers:
            user, key = user or DEFAULT_USER, key or DEFAULT_KEY
        return user, Path(key).expanduser().absolute() if key else None

    def parsed_labels(self) -> dict[str, str]:
        """Return the labels as a mapping."""
        pairs = [item.partition("=") for item in self.labels.replace(",", " ").split()]
        return {key: value for key, _, value in pairs}


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=True,
    job_deploy_sources=True,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    # Variables travel inside the request to the agent: on a command line everybody could read them.
    pass_envvar_declarations_to_cmd=False,
    # The environment on the hosts is complete; installing for each job would take longer than most jobs.
    auto_deploy_default_storage_provider=False,
    # Sources go to every host, not only to the one that runs Snakemake.
    can_transfer_local_files=True,
)
