"""Validation and evaluation on several XLA devices: the puzzles are shared out, the sums are those of plain torch."""

import json
from pathlib import Path

import pytest

from tests.shell import ROOT, python
from tests.training.conftest import train
from tests.training.puzzles import write_dataset

from .steps import config

SCRIPT = """
import json, sys
from pathlib import Path
from tests.evaluation.test_evaluate import spread_halting
from trm.backends.registry import open_backend
from trm.evaluation import symmetry
from trm.evaluation.evaluate import Evaluation
from trm.model import inference
from trm.study.schema import EvaluationConfig
from trm.training.dataset import Dataset
from trm.training.outputs import load_weights
from trm.training.validate import validate

backend, data = open_backend(sys.argv[1], 1), Dataset(Path(sys.argv[2]))
evaluation = Evaluation(load_weights(Path(sys.argv[3])), data, EvaluationConfig(), backend)
net, measures, ignore = evaluation.net, evaluation.policies, data.puzzles.ignore
config = evaluation.trained.config.data
shared = []
step = net.step
def watched(*states):
    found = step(*states)
    if backend.name == "xla":
        import torch_xla
        shared.append("devices=[1,4,1]" in torch_xla._XLAC._get_xla_sharding_spec(found[0]))
    return found
net.step = watched
test = data.originals("test", backend)
score = evaluation._score()
validate(net, *test, 2, ignore, score)
score = score.sums.cpu().tolist()
batches = set()
def counted(*states):
    batches.add(states[2].shape[1])
    return step(*states)
net.step = counted

inference.inference_batch = lambda *_: 4  # several batches, the last one short
compilations = getattr(backend, "compilations", int)
def fixed(depth, view_steps=0, *shown):
    before = compilations()
    views = symmetry.random_views(config, view_steps, depth, *shown)
    found = measures.fixed(test, (depth,), views)
    score = found.scores[depth].result(backend.total)
    return {"score": [score["puzzles"], score["cross_entropy"]], "rows": list(found.answers.shape),
            "halt": found.halt_logits.tolist(), "compiled": compilations() - before}
fixed_scores = [fixed(depth) for depth in (4, 4, 9)]
viewed = [fixed(depth, 1) for depth in (4, 5)]
symmetry.GUESS_FROM = 3  # deeper passes of hardly trained weights differ by rounding alone
shown = [fixed(depth, 1, 3) for depth in (4, 5)]
guessed = [fixed(depth, 1, 3, 2) for depth in (4, 5)]
symmetries = symmetry.restart_symmetries(config, 3)
restarts = measures.restarts(test, 2, (1, 3), (0.0, 0.0), symmetries).best
net.step = step
spread_halting(net)
for name in ("halt.weight", "halt.bias"):
    net._weights[name] = backend.place(net._weights[name])
def confident(depth):
    before = compilations()
    score = measures.fixed(test, (depth,), stopping=True).confident[depth].result(backend.total)
    return {"steps": score["mean_steps"], "score": [score["puzzles"], score["cross_entropy"]],
            "compiled": compilations() - before}
stopping = [confident(depth) for depth in (6, 6, 9)]
print(json.dumps({
    "score": score, "shared": shared, "fixed": fixed_scores,
    "restarts": [restarts[k].result(backend.total)["puzzles"] for k in (1, 3)],
    "viewed": viewed, "shown": shown, "guessed": guessed, "batches": sorted(batches), "confident": stopping,
}))
"""


def score(backend: str, folder: Path, run: Path) -> dict:
    devices = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}
    done = python("-m", "tests.script", SCRIPT, backend, folder, run, env=devices, cwd=ROOT, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_puzzles_are_shared_out(tmp_path):
    folder = write_dataset(tmp_path / "tiny", train=8, validation=8, test=27)  # five rows short of 4 x 2 x 4
    run = train(config("mlp", steps=2), folder, tmp_path).out
    plain, found = (score(backend, folder, run) for backend in ("cpu", "xla"))
    assert found["restarts"] == [27, 27]
    assert found["batches"] == [16]  # four rows a device; the last batch is filled up
    assert plain["batches"] == [3, 4]
    kinds = ("fixed", "viewed", "shown", "guessed")
    everything = ([run for kind in kinds for run in result[kind]] for result in (plain, found))
    for one, other in zip(*everything, strict=True):
        assert other["score"] == pytest.approx(one["score"], rel=1e-3)
        assert other["rows"] == [27, 16]
        assert other["halt"] == pytest.approx(one["halt"], abs=1e-3)
    assert found["fixed"][2]["compiled"] == 0  # a deeper evaluation runs the same programs more often
    for kind in ("viewed", "shown", "guessed"):  # nor do other orders of the cells, nor what they show
        assert found[kind][1]["compiled"] == 0
    assert len({plain[kind][0]["score"][1] for kind in kinds}) == 4
    for one, other in zip(plain["confident"], found["confident"], strict=True):
        assert 1 < one["steps"] < 9
        assert other["steps"] == pytest.approx(one["steps"])
        assert other["score"] == pytest.approx(one["score"], rel=1e-3)
    assert found["confident"][2]["compiled"] == 0  # who stops when changes no program
    assert found["score"] == pytest.approx(plain["score"], rel=1e-5)
    assert plain["score"][0] == 27
    assert found["shared"] == [True, True]
