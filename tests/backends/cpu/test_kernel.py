"""The CPU kernel against the model's definition."""

import math
import statistics
from contextlib import contextmanager, nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends.cpu.problem import Problem, relative
from trm.backends.cpu import build, choice, library, network
from trm.backends.cpu.device import CpuBackend
from trm.backends.registry import load_implementation
from trm.model.inference import InferenceNetwork
from trm.model.parameters import initial_weights
from trm.model.plain import PLAIN, PlainRounds

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler")
ATTENTION = {"mixer": "attention", "position": "rope"}
VARIANTS = {
    "one layer": {},
    "two layers, T = 2": {"layers": 2, "h_cycles": 2},
    "6x6": {"cells": 36, "vocab": 8, "d_model": 64, "rows": 65},
    "9x9": {"cells": 81, "vocab": 11, "puzzle_tokens": 16, "d_model": 32, "rows": 9},
    "one row, narrow": {"rows": 1, "cells": 16, "d_model": 8, "l_cycles": 1},
    "no puzzle token": {"puzzle_tokens": 0, "cells": 10},
    "learned positions": {"position": "learned", "layers": 3},
    "wide": {"d_model": 256, "rows": 3, "vocab": 40, "multiple": 64},
    "attention": ATTENTION | {"layers": 2, "h_cycles": 2},
    "attention, 9x9": ATTENTION | {"cells": 81, "d_model": 64, "heads": 4, "rows": 9},
    "attention, one head": {"mixer": "attention", "heads": 1, "d_model": 40, "cells": 16, "puzzle_tokens": 0},
    "attention, learned positions": ATTENTION
    | {"position": "learned", "d_model": 24, "heads": 3, "cells": 30},
}
MIXING = [("mlp", 1, "none"), ("attention", 1, "none"), ("attention", 2, "rope"), ("attention", 4, "learned")]
EXACT = ("steps", "halted", "inputs", "histogram")
BFLOAT16 = [library.PAIRED_BF16, library.AVX512_BF16, library.AMX]


@pytest.fixture
def dtype_of():
    """The dtype of a kind of products; skips the test where this machine has none."""

    def find(products):
        try:
            library.Kernel((1, 4, 0, 16, 16, 16, 4, 1, 0, 0), products)
        except ValueError:
            pytest.skip("this processor has no such products")
        return torch.bfloat16 if products else torch.float32

    return find


@contextmanager
def threads(count):
    """As many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_definition(variant):
    """Outputs, losses, metrics and every gradient in float32, against float64."""
    problem = Problem(torch.float32, **VARIANTS[variant])
    mine, exact = problem.by_kernel(), problem.by_autograd(torch.float64)
    assert mine.keys() == exact.keys()
    for name, tensor in mine.items():
        if name in EXACT:
            assert torch.equal(tensor.float(), exact[name].float()), name
        else:
            assert relative(tensor, exact[name]) < 2e-5, name


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 65), st.sampled_from([8, 12, 24, 40]), st.integers(4, 100), st.integers(0, 17),
    st.integers(1, 3), st.integers(2, 20), st.integers(0, 5),
    st.sampled_from(MIXING),
)  # fmt: skip
def test_equals_the_definition_at_odd_sizes(rows, width, cells, tokens, layers, vocab, seed, mixing):
    mixer, heads, position = mixing
    sizes = {"cells": cells, "puzzle_tokens": tokens, "layers": layers, "vocab": vocab}
    mixing = {"mixer": mixer, "heads": heads, "position": position}
    problem = Problem(torch.float32, rows, seed=seed, d_model=width, **mixing, **sizes)
    mine, exact = problem.by_kernel(), problem.by_autograd(torch.float64)
    assert all(relative(mine[name], exact[name]) < 1e-4 for name in exact if name not in EXACT)


@pytest.mark.parametrize("products", BFLOAT16)
@pytest.mark.parametrize("variant", ["6x6", "9x9", "two layers, T = 2", "attention", "attention, 9x9"])
def test_bfloat16_is_closer_to_the_truth_than_pytorch(products, variant, dtype_of):
    """Mean over weights and seeds of the logarithm of each gradient's relative error, against autograd's."""
    excess, dtype = [], dtype_of(products)
    for seed in range(4):
        problem = Problem(dtype, seed=seed, **VARIANTS[variant])
        mine, its, exact = (problem.by_kernel(products), *map(problem.by_autograd, (dtype, torch.float64)))
        for name in problem.layout.shapes:
            excess.append(math.log(relative(mine[name], exact[name]) / relative(its[name], exact[name])))
    assert math.exp(statistics.mean(excess)) < 1


@pytest.mark.parametrize("products", [library.FLOAT32, *BFLOAT16])
def test_any_number_of_threads_gives_the_same_bits(products, dtype_of):
    dtype, found = dtype_of(products), []
    for count in (1, 2, 3):
        with threads(count):
            found.append(Problem(dtype, rows=33, cells=16).by_kernel(products))
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in other)


def test_more_threads_than_it_has_room_for(monkeypatch):
    monkeypatch.setattr(library.torch, "get_num_threads", lambda: 200)
    compare_inference(Problem(torch.float32, rows=100))


def test_a_nan_reaches_the_loss():
    problem = Problem(torch.float32)
    problem.layout.views(problem.params)["blocks.0.token_mlp.down"][0, 0] = math.nan
    assert problem.by_kernel()["sums"].isnan().any()


def compare_inference(problem, count=None):
    """The kernel's answers, with some threads, against the definition's."""
    vectors = problem.h_init, problem.l_init, problem.table
    model, weights = problem.model, problem.layout.views(problem.params)

    def found(implementation):
        own = (problem.arch, model.h_cycles, model.l_cycles, implementation)
        net = InferenceNetwork(weights, *vectors, *own)
        x = net.embed(problem.new.inputs, problem.new.puzzle)
        return net.step(problem.carry.z_H, problem.carry.z_L, x)

    with threads(count) if count else nullcontext():
        mine = found(load_implementation("fused"))
    for a, b in zip(mine, found(PLAIN), strict=True):
        assert relative(a, b) < 2e-5


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("count", [1, 2])
def test_inference_equals_the_definition(variant, count):
    compare_inference(Problem(torch.float32, **VARIANTS[variant]), count)


def rounds(dtype, **fields):
    problem = Problem(dtype, **fields)
    weights = initial_weights(problem.model, problem.cells, problem.vocab, 0)
    return load_implementation("fused").rounds({n: w.to(dtype) for n, w in weights.items()}, problem.arch)


def test_taken_where_it_can_run(monkeypatch):
    assert isinstance(rounds(torch.float32), network.KernelRounds)
    assert type(rounds(torch.float64)) is type(rounds(torch.float16)) is PlainRounds
    assert isinstance(rounds(torch.float32, mixer="attention"), network.KernelRounds)
    monkeypatch.setattr(library, "functions", lambda: None)
    assert type(rounds(torch.float32)) is PlainRounds


def test_more_symbols_than_its_buffers_hold_are_left_to_pytorch():
    problem = Problem(torch.float32)
    for vocab, kind in ((256, network.KernelRounds), (257, PlainRounds)):
        weights = initial_weights(problem.model, problem.cells, vocab, 0)
        assert type(load_implementation("fused").rounds(weights, problem.arch)) is kind


def test_wrong_gradients_are_noticed(monkeypatch, caplog):
    choice._right.cache_clear()
    monkeypatch.setattr(choice, "gradients_differ", lambda *_: 0.5)
    assert type(rounds(torch.float32)) is PlainRounds
    assert "its gradients in torch.float32 are wrong (relative error 5.0e-01)" in caplog.text
    choice._right.cache_clear()


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
@pytest.mark.parametrize("products", [library.FLOAT32, *BFLOAT16])
def test_the_self_check_tells_right_from_wrong(monkeypatch, products, mixer, dtype_of):
    dtype = dtype_of(products)
    limit = choice.TOLERANCE[dtype]
    assert choice.gradients_differ(products, dtype, mixer) < limit / 2
    for name in ("BLOCK", "ATTENTION_BLOCK"):
        wrong = (*getattr(library, name)[:2], "channel_mlp.gate_up", "channel_mlp.gate_up")
        monkeypatch.setattr(library, name, wrong)
    assert not choice.gradients_differ(products, dtype, mixer) < limit


def test_where_amx_is_not_granted_the_next_products_are_taken(monkeypatch):
    def differ(products, *_):
        if products == library.AMX:
            raise ValueError
        return 0.0

    choice._right.cache_clear()
    monkeypatch.setattr(choice, "gradients_differ", differ)
    monkeypatch.setattr(library, "bfloat16_products", lambda: [library.AMX, library.AVX512_BF16])
    problem = Problem(torch.bfloat16)
    taken = choice.products_for(problem.layout.views(problem.params), problem.arch)
    assert taken == library.AVX512_BF16
    choice._right.cache_clear()


@pytest.mark.parametrize(
    ("name", "features", "isa", "kinds", "fast"),
    [
        ("Intel Xeon", {"amx_bf16", "avx512_bf16"}, "native", [library.AMX, library.AVX512_BF16], True),
        ("Intel Xeon", {"amx_bf16", "avx512_bf16"}, "avx2", [], False),
        ("Intel Xeon", {"avx512_bf16"}, "native", [library.AVX512_BF16], False),
        ("AMD EPYC", {"avx512_bf16"}, "native", [library.AVX512_BF16], True),
        ("Apple M3", set(), "native", [], False),
    ],
)
def test_auto_is_bfloat16_only_where_it_is_faster(monkeypatch, name, features, isa, kinds, fast):
    monkeypatch.setattr(library, "processor", lambda: (name, frozenset(features)))
    monkeypatch.setenv("TRM_CPU_ISA", isa)
    assert library.bfloat16_products() == [*kinds, library.PAIRED_BF16]
    assert CpuBackend().precision("auto").name == ("bfloat16" if fast else "float32")
