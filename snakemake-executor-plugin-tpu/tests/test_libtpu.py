"""torch_xla's own start-up under exactly the variables that jobs get, with the four chips of a host faked.

The TPU environment has torch_xla; its metadata server is played here with what a host of the slice is told.
"""

import http.server
import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from snakemake_executor_plugin_tpu.allocation import libtpu_variables, slice_of

PYTHON = Path(__file__).parents[2] / ".venv-tpu" / "bin" / "python"
START = """
import json, os, sys
os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch_xla
from torch_xla._internal import tpu
tpu.num_available_chips = lambda: 4
tpu._GCE_METADATA_ROOT_URL = sys.argv[1]
torch_xla._setup_default_env()
print(json.dumps({"version": tpu.version(), "workers": tpu.get_worker_ips(), "rank": tpu.worker_id(),
                  "bounds": tpu.get_tpu_env()["TPU_PROCESS_BOUNDS"], "megacore": os.environ.get("TPU_MEGACORE")}))
"""
BOUNDS = {1: "1,1,1", 2: "1,1,2", 4: "1,1,4", 8: "1,2,4"}


@pytest.fixture
def metadata():
    """Return a function that plays the metadata server of a host of a slice and returns its address."""
    servers = []

    def serve(name: str, hosts: int) -> str:
        chips = f"ACCELERATOR_TYPE: '{name}'\nTPU_PROCESS_BOUNDS: '{BOUNDS[hosts]}'\nWORKER_ID: '0'\n"
        told = {
            "tpu-env": chips + "CHIPS_PER_HOST_BOUNDS: '2,2,1'\nTPU_CHIPS_PER_PROCESS_BOUNDS: '2,2,1'\n",
            "worker-network-endpoints": ",".join(f"w{rank}:{rank}:10.0.0.{rank}" for rank in range(hosts)),
        }

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked = self.headers["Metadata-Flavor"] == "Google" and told.get(self.path.rpartition("/")[2])
                self.send_response(200 if asked else 403)
                self.end_headers()
                self.wfile.write((asked or "").encode())

            def log_message(self, *_):
                pass

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.05,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/computeMetadata/v1"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.full
@pytest.mark.skipif(
    not PYTHON.exists(), reason="the TPU environment is not installed (make .venv-tpu/.ready)"
)
@pytest.mark.parametrize(
    ("pod", "hosts"), [("v4-8", 1), ("v4-64", 1), ("v4-16", 2), ("v4-32", 4), ("v4-64", 8)]
)
def test_torch_xla_starts(pod, hosts, metadata):
    variables = libtpu_variables(hosts, slice_of(pod))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TPU_", "PJRT"))}
    done = subprocess.run(
        [PYTHON, "-c", START, metadata(pod, slice_of(pod).hosts)],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert (seen["version"], seen["rank"], seen["megacore"]) == (4, 0, "megacore_dense")
    assert len(seen["workers"]) == hosts
    assert seen["bounds"] == BOUNDS[hosts]
