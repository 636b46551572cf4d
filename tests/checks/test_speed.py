"""What set-up measures is what the plan reads."""

import pytest

from tests.shell import python
from trm.backends.cpu import speed as kept
from trm.checks import speed

SETUP = """
from trm.checks import speed
speed.MODELS, speed.MOST_CORES, speed.threads = (("mlp", 64), ("mlp", 8)), 3, lambda: 2
speed.measure = lambda mixer, width: speed.Speed(mixer, width, 5e9 * width, 0.5)
speed.write = lambda speeds: print(*map(tuple, speeds), sep="\\n")
speed.main()
"""


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_a_measurement_trains_at_least_one_step(mixer):
    found = speed.measure(mixer, 8, seconds=0.0)
    assert found[:2] == (mixer, 8)
    assert found.flops > 0
    assert found.seconds > 0


def test_a_measurement_is_read_back_on_its_machine_only(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "folders", lambda: [tmp_path / "absent", tmp_path])
    assert kept.read() == []
    speeds = [kept.Speed("mlp", 8, 1e10, 0.5), kept.Speed("attention", 32, 2e9, 0.5)]
    path = kept.write(speeds)
    assert path
    assert kept.read() == speeds
    with monkeypatch.context() as other:
        other.setattr(kept, "processor", lambda: ("another", frozenset()))
        assert kept.read() == []
    path.write_text("damaged")
    assert kept.read() == []


def test_set_up_measures_with_every_core_busy():
    told = python("-m", "tests.script", SETUP, check=True).stdout.splitlines()
    assert told[:2] == ["('mlp', 64, 640000000000.0, 1.0)", "('mlp', 8, 80000000000.0, 1.0)"]
    assert told[2] == "A core of this machine trains at 640 GFLOP/s (6x6 Sudoku, d_model 64)"
