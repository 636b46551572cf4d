"""The compiler for a GPU accepts every kernel (the interpreter accepts more than it does); no GPU is needed."""

import json
import os
import subprocess
import sys

from trm.network.cuda import attention, tokens


def compiled(tmp_path, *words):
    """What the compiler made of the kernels, for sm_90 unless `words` say otherwise."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    out = tmp_path / "kernels.json"
    command = [sys.executable, "-m", "benchmarks.kernels", "--json", str(out), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text())["kernels"]


def uses_the_tensor_cores_well(kernel):
    """Hopper's own products and no others, and next to nothing spilled."""
    return kernel["hgmma"] and not kernel["hmma"] and kernel["local_bytes"] <= 80


def test_every_kernel_compiles_for_hopper(tmp_path):
    found = {kernel["kernel"]: kernel for kernel in compiled(tmp_path, "--first")}
    assert len(found) >= 17
    assert all(kernel["fits"] for kernel in found.values())
    for name, kernel in found.items():
        if name.startswith(("swiglu product", "token mixing", "attention")):
            assert uses_the_tensor_cores_well(kernel), kernel
        else:
            assert not kernel["hgmma"] + kernel["hmma"], name
            assert kernel["local_bytes"] <= 64, kernel


def test_every_tile_of_token_mixing_is_worth_timing(tmp_path):
    found = compiled(tmp_path, "--only", "token mixing")
    assert len(found) == len(tokens.SHAPES) + len(tokens.BACKWARD_SHAPES)
    for kernel in found:
        assert uses_the_tensor_cores_well(kernel), kernel
        assert kernel["fits"], kernel


def test_attention_is_left_to_the_library_where_the_kernel_spills(tmp_path):
    """With rotary positions its backward spills kilobytes of each thread on sm_80."""
    (found,) = compiled(tmp_path, "--only", "attention backward rope=True", "--capability", "80")
    assert found["local_bytes"] > 1000
    assert not attention.fits(97, 64, (8, 0))
    assert attention.fits(97, 64, (9, 0))
