"""What set-up measures is what the plan reads."""

import pytest

from trm.backends.cpu import speed as kept
from trm.checks import speed


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
