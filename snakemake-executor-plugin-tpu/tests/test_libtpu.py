"""The start-up of torch_xla with the variables of a job, four fake chips and a fake metadata server."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from snakemake_executor_plugin_tpu.allocation import libtpu_variables, slice_of
from snakemake_executor_plugin_tpu.emulator.web import Handler, HttpServer

PYTHON = Path(__file__).parents[2] / ".venv-tpu" / "bin" / "python"
START = """
import json, os, sys
os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch_xla
from torch_xla._internal import tpu
tpu.num_available_chips = lambda: 4
for address, variables in json.loads(sys.argv[1]):
    if os.fork():  # each starts up in a process of its own, and all share the seconds of the import
        _, status = os.wait()
        if status:
            sys.exit("a start-up failed")
        continue
    os.environ |= variables
    tpu._GCE_METADATA_ROOT_URL = address
    torch_xla._setup_default_env()
    print(json.dumps([tpu.version(), tpu.worker_id(), os.environ.get("TPU_MEGACORE"), len(tpu.get_worker_ips()),
                      tpu.get_tpu_env()["TPU_PROCESS_BOUNDS"]]), flush=True)
    os._exit(0)
"""
BOUNDS = {1: "1,1,1", 2: "1,1,2", 4: "1,1,4", 8: "1,2,4"}
JOBS = (("v4-8", 1), ("v4-64", 1), ("v4-16", 2), ("v4-32", 4), ("v4-64", 8))
"""A slice, and the hosts of it that the job takes."""


class Metadata(Handler):
    """The metadata server of a host of the slice that the path begins with."""

    def do_GET(self):
        name, hosts = self.path.split("/")[1], slice_of(self.path.split("/")[1]).hosts
        chips = f"ACCELERATOR_TYPE: '{name}'\nTPU_PROCESS_BOUNDS: '{BOUNDS[hosts]}'\nWORKER_ID: '0'\n"
        told = {
            "tpu-env": chips + "CHIPS_PER_HOST_BOUNDS: '2,2,1'\nTPU_CHIPS_PER_PROCESS_BOUNDS: '2,2,1'\n",
            "worker-network-endpoints": ",".join(f"w{rank}:{rank}:10.0.0.{rank}" for rank in range(hosts)),
        }
        value = self.headers["Metadata-Flavor"] == "Google" and told.get(self.path.rpartition("/")[2])
        self.answer(200 if value else 403, (value or "").encode())


@pytest.mark.full
@pytest.mark.skipif(
    not PYTHON.exists(), reason="the TPU environment is not installed (make .venv-tpu/.ready)"
)
def test_torch_xla_starts():
    server = HttpServer(("127.0.0.1", 0), Metadata)
    server.start()
    root = f"http://127.0.0.1:{server.server_port}"
    cases = [(f"{root}/{pod}", libtpu_variables(hosts, slice_of(pod))) for pod, hosts in JOBS]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TPU_", "PJRT"))}
    command = [PYTHON, "-c", START, json.dumps(cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    server.stop()
    assert done.returncode == 0, done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert seen == [[4, 0, "megacore_dense", hosts, BOUNDS[hosts]] for _, hosts in JOBS]
