"""The plugin's settings: each field is a `--tpu-...` option of Snakemake and a `tpu-...` key of a profile."""

import importlib.util
import os
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

from .allocation import slice_of

# https://cloud.google.com/tpu/docs/runtimes: v2 to v4 have one image, later chips one each.
UBUNTU = "tpu-ubuntu2204-base"
RUNTIMES = {"v5litepod": "v2-alpha-tpuv5-lite", "v5p": "v2-alpha-tpuv5", "v6e": "v2-alpha-tpuv6e"}
# poll: look for something new; beat: heartbeat; log: upload lines; look: idle rule; silence: a host or controller
# counts as silent; fence: a host that cannot reach the bucket stops its job.
TIMES = {"poll": 1.0, "beat": 10.0, "log": 5.0, "look": 60.0, "silence": 60.0, "fence": 3600.0}
EMULATED_TIMES = {"poll": 0.2, "beat": 1.0, "log": 0.5, "look": 2.0, "silence": 8.0, "fence": 60.0}
PROVISIONING = ("spot", "on-demand", "reserved")


def _setting(default: Any, help: str, env_var: bool = False, **metadata: Any) -> Any:
    """Declare a setting. Snakemake applies `type` to texts."""
    kind = {} if isinstance(default, bool) else {"type": str if default is None else type(default)}
    return field(
        default=default, metadata={"help": help, "required": False, "env_var": env_var, **kind, **metadata}
    )


_named = partial(_setting, env_var=True)  # also from the environment, as SNAKEMAKE_TPU_NAME


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Where the pod is, what may be created, and how long to wait."""

    project: str | None = _named(None, "Google Cloud project of the pod.")
    zone: str | None = _named(None, "Zone such as us-central2-b.")
    name: str | None = _named(None, "Name of the pod: of its node and its queued resource.")
    bucket: str | None = _named(None, "BUCKET/FOLDER through which the hosts get their jobs.")
    accelerator_type: str = _setting("v4-64", "Slice to create; v4-64 has 32 chips on 8 hosts.")
    slices: int = _setting(1, "Slices of this type, which are called NAME-0, NAME-1 and so on.")
    runtime_version: str | None = _setting(None, "Image of the hosts (default: Google's for the slice).")
    create: bool = _setting(False, "Create the pod if there is none, and again after preemption.")
    provisioning: str = _setting("spot", "How to pay for the pod: spot, on-demand or reserved.")
    reservation: str | None = _named(None, "Reservation to use, projects/P/locations/Z/reservations/R.")
    network: str | None = _setting(None, "VPC network of the pod (default: the project's default).")
    subnetwork: str | None = _setting(None, "Subnetwork of the pod.")
    internal_ips: bool = _setting(False, "Give the hosts no external addresses.")
    service_account: str | None = _named(None, "Service account that the hosts act as.")
    idle_delete: float = _setting(30.0, "Idle minutes until a pod created here deletes itself; 0: never.")
    prices: str = _setting("", "What a chip costs you, in USD per hour, 'v4=3.22 v5litepod=1.2'.")
    end: str | None = _setting(None, "UTC date (2026-12-31T18:00) when a pod created here deletes itself.")
    api_endpoint: str | None = _named(None, "host:port of an emulated TPU API on this machine.")

    python: str = _named("python3", "Python with Snakemake on the hosts, if there is no lock file.")
    requirements: str | None = _setting(None, "Lock file, or several, of the jobs' environment on the hosts.")
    environment_python: str = _setting("3.11", "Its Python: a version, or a path on the hosts.")
    sources: str = _setting("", "Files and folders to send besides the workflow's, 'package data.json'.")
    forward_env: str = _setting("", "Variables to pass to the jobs besides envvars.")

    lease: int = _setting(43200, "Seconds that a job may run without a controller before it is stopped.")
    grace: int = _setting(30, "Seconds between SIGTERM and SIGKILL, enough to write a checkpoint.")
    preemptions: int = _setting(50, "Relaunches of a job after preemption, which are no retries.")
    relaunches_without_progress: int = _setting(3, "Relaunches in a row without a newer checkpoint.")
    runtime_minutes: int = _setting(1440, "Minutes for a launch of a rule without `runtime`; 0: no limit.")
    stall: float = _setting(60.0, "Minutes without new progress until a job is launched again; 0: never.")

    check_host: str = _setting("", "Shell command that new hosts and those set aside pass before they serve.")

    def __post_init__(self) -> None:
        """Refuse invalid settings before anything costs money, and use our classes for Cloud Storage."""
        if self.provisioning not in PROVISIONING:
            raise WorkflowError(
                f"tpu-provisioning is {self.provisioning!r}: use {' or '.join(PROVISIONING)}."
            )
        bucket = r"(gs://)?[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[A-Za-z0-9._-]+)*/?"
        if self.bucket and not re.fullmatch(bucket, self.bucket):
            raise WorkflowError(f"tpu-bucket is {self.bucket!r}: write gs://BUCKET or gs://BUCKET/FOLDER.")
        for name, value in vars(self).items():
            if isinstance(value, int | float) and value < 0:
                raise WorkflowError(f"tpu-{name.replace('_', '-')} is {value}: it cannot be negative.")
        if self.slices < 1:
            raise WorkflowError("tpu-slices is 0: a pod has at least one slice.")
        self.end_time()
        self.price()
        slice_of(self.accelerator_type)
        if importlib.util.find_spec("snakemake_storage_plugin_gcs"):
            from .storage import use_listings

            use_listings(patience=self.lease)

    def check_pod(self) -> None:
        """Raise WorkflowError if the settings do not say where the pod is."""
        missing = [name for name in ("project", "zone", "name", "bucket") if not getattr(self, name)]
        if missing:
            variables = ", ".join(f"SNAKEMAKE_TPU_{name.upper()}" for name in missing)
            raise WorkflowError(
                f"The pod is unknown: set {', '.join('tpu-' + name for name in missing)} in the profile (or "
                f"{variables} in the environment)."
            )

    def times(self) -> dict[str, float]:
        """Return the intervals of hosts and controller in seconds; SNAKEMAKE_TPU_TIMES changes some for a new pod."""
        times = dict(EMULATED_TIMES if self.api_endpoint else TIMES)
        for item in os.environ.get("SNAKEMAKE_TPU_TIMES", "").split():
            name, _, seconds = item.partition("=")
            if name not in times or not re.fullmatch(r"\d*\.?\d+", seconds):
                raise WorkflowError(
                    f"SNAKEMAKE_TPU_TIMES: {item!r} is not one of {', '.join(times)} with seconds."
                )
            times[name] = float(seconds)
        return times

    def end_time(self) -> float:
        """Return the end date in seconds since the epoch, 0 for none."""
        if not self.end:
            return 0.0
        try:
            found = datetime.fromisoformat(self.end)
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        except ValueError:
            raise WorkflowError(f"tpu-end is {self.end!r}: use 2026-12-31 or 2026-12-31T18:00.") from None

    def of_slices(self) -> "list[ExecutorSettings]":
        """Return the settings of each slice; of a single one these settings themselves."""
        if self.slices < 2:
            return [self]
        return [replace(self, slices=1, name=f"{self.name}-{number}") for number in range(self.slices)]

    def runtime(self) -> str:
        return self.runtime_version or RUNTIMES.get(self.accelerator_type.partition("-")[0], UBUNTU)

    def price(self, accelerator_type: str = "") -> float | None:
        """Return what a chip of this slice, or of another one, costs in USD per hour; None: unknown."""
        family = (accelerator_type or self.accelerator_type).partition("-")[0]
        try:
            pairs = [item.split("=") for item in self.prices.replace(",", " ").split()]
            return {name: float(price) for name, price in pairs}.get(family)
        except ValueError:
            raise WorkflowError(f"tpu-prices is {self.prices!r}: write FAMILY=USD, as in v4=3.22.") from None


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=True,
    job_deploy_sources=True,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    # Variables are sealed in the assignment: on a command line everybody could read them.
    pass_envvar_declarations_to_cmd=False,
    # The environment on the hosts is complete; installing for each job would take longer than most jobs.
    auto_deploy_default_storage_provider=False,
    # Sources go to every host, not only to the one that runs Snakemake.
    can_transfer_local_files=True,
)
