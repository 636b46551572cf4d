"""Estimates of memory against compiled programs."""

import pytest

from trm.study.cost import estimate, read_hardware
from trm.study.schema import RunConfig


@pytest.mark.parametrize(
    ("model", "compiled_gib"), [({}, 15.53), ({"mixer": "attention", "position": "rope"}, 19.87)]
)
def test_a_chips_memory_is_close_to_what_libtpu_compiles(model, compiled_gib):
    """The paper's models at 768 rows a chip of v4-8 (docs/tpu.md, Variants)."""
    config = RunConfig.model_validate({"model": model, "training": {"batch_size": 3072}})
    needed = estimate(config, read_hardware("config/hardware.yaml", "v4-64")).memory_bytes / 2**30
    assert needed == pytest.approx(compiled_gib, rel=0.1)
