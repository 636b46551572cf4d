"""The compiler for a GPU accepts every kernel (the interpreter accepts more than it does); no GPU is needed."""

import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest
import torch

from benchmarks.kernels import WORTH_TIMING
from trm.backends.cuda.tiles import OPERATIONS, TABLE, cover, table
from trm.study.schema import ModelConfig

NAMES = {
    "channels": "swiglu product",
    "tokens": "token mixing",
    "tokens backward": "token mixing backward",
    "attention": "attention",
}
PRODUCTS = tuple(NAMES.values())


def compiled(tmp_path, *words):
    """What the compiler made of the kernels, for sm_90 unless `words` say otherwise."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    out = tmp_path / "kernels.json"
    command = [sys.executable, "-m", "benchmarks.kernels", "--json", str(out), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text())["rows"]


def products_are_fast(kernel, capability):
    """The architecture's own products and no others, next to nothing spilled, and a tile that fits."""
    own = {90: "hgmma", 100: "blackwell"}.get(capability, "hmma")
    others = {"hgmma", "blackwell", "hmma"} - {own}
    fast = kernel[own] and not any(kernel[other] for other in others)
    return fast and kernel["local_bytes"] <= 80 and kernel["fits"]


def test_every_kernel_compiles_for_hopper(tmp_path):
    found = {kernel["kernel"]: kernel for kernel in compiled(tmp_path, "--first")}
    assert len(found) == 7
    assert all(kernel["fits"] for kernel in found.values())
    for name, kernel in found.items():
        if name.startswith(PRODUCTS):
            assert products_are_fast(kernel, 90), kernel
            # the sigmoid tests nothing: each comparison of 128 per thread was one of Triton's own
            assert kernel["comparisons"] == 0 or not name.startswith("swiglu"), kernel
        else:
            assert not kernel["hgmma"] + kernel["hmma"], name
            assert kernel["local_bytes"] <= 64, kernel


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_tile_is_fast(operation, capability, tmp_path):
    """Those of the table and those worth timing."""
    found = compiled(tmp_path, "--only", NAMES[operation], "--capability", str(capability))
    found = [kernel for kernel in found if kernel["kernel"] == NAMES[operation]]
    choices = {*table(str(capability))[operation].values(), *WORTH_TIMING[operation][str(capability)]}
    assert {kernel["tile"] for kernel in found} == choices
    for kernel in found:
        assert products_are_fast(kernel, capability), kernel


@pytest.mark.parametrize("capability", [86, 89, 100, 120])
def test_the_tiles_of_8_0_suit_the_other_gpus(capability, tmp_path):
    if capability == 100 and version("triton").startswith("3.5"):
        pytest.skip("Triton 3.5 fails on token mixing for sm_100, so PyTorch computes it there")
    found = compiled(tmp_path, "--first", "--capability", str(capability))
    for kernel in found:
        if kernel["kernel"] in NAMES.values():
            assert products_are_fast(kernel, capability), kernel


def test_two_programs_of_token_mixing_share_a_multiprocessor(tmp_path):
    """Compiled as launched: with sizes that nothing is known of it took 255 registers and loads of two bytes."""
    (found, *_) = compiled(tmp_path, "--only", "token mixing", "--first")
    assert found["tile"] == table("90")["tokens"]["*"]
    assert found["programs"] == 2
    assert found["registers"] <= 224


def test_attention_is_left_to_pytorch_where_the_kernel_spills(tmp_path):
    """With rotary positions its backward spills kilobytes per thread on sm_80."""
    (found,) = compiled(tmp_path, "--only", "attention backward rope=True", "--capability", "80")
    assert found["local_bytes"] > 1000
    model = ModelConfig(mixer="attention", position="rope")
    assert [cover(model, 81, torch.bfloat16, architecture) for architecture in ("80", "90")] == [False, True]


def test_the_table_holds_only_what_can_be_chosen():
    document = json.loads(TABLE.read_text())
    assert {*document} == {"80", "90"}
    for architecture, entry in document.items():
        assert {*entry} == {"source", *OPERATIONS}
        for operation in OPERATIONS:
            assert "*" in entry[operation]
            assert {*entry[operation].values()} <= {*WORTH_TIMING[operation][architecture]}
