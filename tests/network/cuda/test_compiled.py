"""The compiler for a GPU accepts every kernel (the interpreter accepts more than it does); no GPU is needed."""

import json
import os
import subprocess
import sys


def test_every_kernel_compiles_for_hopper(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    out = tmp_path / "kernels.json"
    command = [sys.executable, "-m", "benchmarks.kernels", "--first", "--json", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = {kernel["kernel"]: kernel for kernel in json.loads(out.read_text())["kernels"]}
    assert len(found) >= 17
    assert all(kernel["fits"] for kernel in found.values())
    assert all(kernel["local_bytes"] <= 64 for kernel in found.values()), found
    for name, kernel in found.items():
        products = name.startswith(("swiglu product", "token mixing", "attention"))
        assert kernel["wgmma"] == products, name
