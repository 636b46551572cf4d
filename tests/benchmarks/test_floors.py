"""The count of operations and bytes against the definition and against tensors."""

import pytest

from benchmarks import floors
from trm.study.flops import stack_flops
from trm.study.schema import ModelConfig

MODELS = {"mlp": ModelConfig(), "attention": ModelConfig(mixer="attention", position="rope")}


@pytest.mark.parametrize("mixer", MODELS)
@pytest.mark.parametrize("separate", [False, True])
def test_operations_are_those_of_the_definition(mixer, separate):
    model = MODELS[mixer]
    block = floors.forward(model, 81, 768, separate, keep=False)
    assert model.layers * floors.total(block).flops == pytest.approx(768 * stack_flops(model, 81))


@pytest.mark.parametrize("mixer", MODELS)
def test_backward_is_twice_forward_and_what_is_computed_again(mixer):
    model = MODELS[mixer]
    sizes = floors.sizes(model, 81, 768)
    again = 2 * sizes.token if mixer == "mlp" else 0.5 * sizes.scores
    forward = floors.total(floors.forward(model, 81, 768, False, True)).flops
    assert floors.total(floors.backward(model, 81, 768)).flops == pytest.approx(2 * forward + again)


def test_bytes_and_floors_of_the_large_product():
    """768 x 97 rows of 512 in, of 1536 out (3072 more where backward wants them): two bytes each."""
    rows = 768 * 97
    free, kept = (
        next(w for w in floors.forward(MODELS["mlp"], 81, 768, False, keep) if w.name == "channel gate, up")
        for keep in (False, True)
    )
    assert free.bytes == 2 * rows * (512 + 1536)
    assert kept.bytes == 2 * rows * (512 + 1536 + 3072)
    assert free.seconds() == free.flops / 790e12
    assert floors.Work("copy", 0.0, 4.3e9).seconds() == pytest.approx(1e-3)


def test_table_is_printed(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["floors", "--markdown", "--batch", "8"])
    assert floors.main() == 0
    out = capsys.readouterr().out
    assert "| MLP, batch 8 | GFLOP | MB | ms at least |" in out
    assert "| ATT, batch 8 |" in out
