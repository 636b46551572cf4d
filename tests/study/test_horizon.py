"""Settings that count in steps, in runs whose number of steps follows from something else."""

import pytest

from trm.study.fingerprint import run_identity
from trm.study.horizon import average_remark, initial_share, too_short
from trm.study.schema import RunConfig


def run(steps, **sections):
    training = {"steps": steps, "warmup_steps": 1} | sections.pop("training", {})
    return RunConfig.model_validate({"training": training, **sections})


STAGES = [{"until": 0.1, "h_cycles": 1}, {"until": 0.2, "h_cycles": 2}]
SHORT_STAGES = [{"until": 0.01, "h_cycles": 1}, {"until": 0.1, "h_cycles": 2}]
HINTS = [{"until": 0.51, "hints": [0, 2]}, {"until": 0.6, "hints": [0, 1]}]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (run(100, training={"warmup_steps": 100}), "warmup_steps=100 is not below training.steps=100"),
        (run(4, training={"snapshots": 3}), "training.snapshots=3 is more than half of training.steps=4"),
        (run(10, training={"curriculum": SHORT_STAGES}), "2 of training.curriculum has no step of training.steps=10"),
        (run(10, data={"curriculum": HINTS}), "stage 2 of data.curriculum has no step"),
        (run(10, training={"curriculum": STAGES, "snapshots": 5}), None),
    ],
)  # fmt: skip
def test_a_run_that_is_too_short_for_a_setting_is_refused(config, sentence):
    assert sentence in too_short(config) if sentence else not too_short(config)


def test_short_runs_are_named_by_their_corrected_average_and_long_ones_keep_their_names():
    assert run_identity(run(200))["ema"] == "bias-corrected"
    assert "ema" not in run_identity(run(65104))
    assert "ema" not in run_identity(run(200, training={"ema": 0.0}))


def test_the_share_of_the_initial_weights_is_told():
    short, long = run(200).training, run(65104).training
    off = run(200, training={"ema": 0.0}).training
    assert initial_share(short) == pytest.approx(0.8186, abs=1e-4)
    assert "1 run of 3" in average_remark([short, long, off])
    assert "82 % initial weights" in average_remark([short])
    assert average_remark([long, off]) == ""
