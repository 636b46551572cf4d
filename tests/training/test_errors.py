"""Bad input and bad luck end in one sentence."""

import re
from pathlib import Path

import pytest
import torch

from tests.shell import python
from tests.training.conftest import after, config, train, train_words, trainer
from trm import io
from trm.backends.base import precision_of
from trm.backends.cuda.gpus import why_no_gpu
from trm.backends.registry import open_backend
from trm.backends.workers import world_from_environment
from trm.cli import main
from trm.errors import UserError
from trm.training.memory import is_out_of_memory


@pytest.mark.parametrize(("which", "what"), [(slice(None), "the loss"), (slice(0, 1), "a weight")])
def test_what_is_no_number_is_named_with_step_and_checkpoint(which, what, dataset_folder, tmp_path):
    found = trainer(config(training={"warmup_steps": 0}), dataset_folder, tmp_path, checkpoint_minutes=1e-6)
    after(found, 6, lambda: found.state.params[which].fill_(float("inf")))
    with pytest.raises(UserError, match=f"{what} is not finite at step 7") as caught:
        found.run()
    assert "last good checkpoint is step 6" in str(caught.value)
    assert "training.lr=0.001" in str(caught.value)


def test_a_step_that_does_not_fit_is_split_by_itself(dataset_folder, tmp_path, monkeypatch):
    whole = trainer(config(), dataset_folder, tmp_path / "whole")
    assert whole.run() == 0
    monkeypatch.setattr(type(whole.backend), "memory_limit", lambda backend: 5_000_000)
    split = trainer(config(), dataset_folder, tmp_path / "split")
    assert split.state.micro > whole.state.micro == 1
    assert split.run() == 0
    torch.testing.assert_close(split.state.params, whole.state.params, rtol=1e-3, atol=1e-5)


MEMORY = """
import resource, sys
from pathlib import Path
from tests.training.conftest import config, trainer
from trm.errors import UserError
when, rows, data, root = sys.argv[1:]

def little_room():
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))

try:
    run = config(training={"batch_size": int(rows), "precision": "float16"})  # by PyTorch, which needs more memory
    if when == "at the start":
        little_room()
    found = trainer(run, Path(data), Path(root))
    if when == "in a step":
        little_room()
    found.run()
except UserError as error:
    print("UserError:", error)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is limited through Linux's /proc")
@pytest.mark.parametrize(("when", "rows"), [("at the start", 2**17), ("in a step", 2**14)])
def test_memory_that_really_runs_out(when, rows, dataset_folder, tmp_path):
    done = python("-c", MEMORY, when, rows, dataset_folder, tmp_path)
    sentence = done.stdout.splitlines()[-1]
    assert f"UserError: out of memory with {rows} rows at once on one device" in sentence, done.stderr
    assert re.search(r"training\.micro_batches=\d+ is estimated to fit", sentence)


@pytest.mark.parametrize(
    ("words", "memory"),
    [
        ("[enforce fail] DefaultCPUAllocator: can't allocate memory: ...", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", True),
        ("Triton Error [CUDA]: out of memory", True),
        ("shapes differ", False),
    ],
)
def test_out_of_memory_is_recognised(words, memory):
    assert is_out_of_memory(RuntimeError(words)) is memory


NO_GPU = why_no_gpu(torch.__version__, torch.version.cuda)
NARROW = config({"d_model": 32}, {"init_from": "first"})
REFUSED = {
    "another task": (["--set", "data.task=maze"], "data.task"),
    "other boxes": (["--set", "data.box_rows=3"], "cells per puzzle 16"),
    "other copies": (["--set", "data.augmentations=7"], "augmentations"),
    "no data set": (["--dataset", "no-such-set"], "no-such-set"),
    "no file": (["--runtime", "nowhere.json"], "nowhere.json"),
    "other weights": (
        ["--config", NARROW.model_dump_json()],
        "embed.weight has shape (6, 16), but this model requires (6, 32)",
    ),
    "no GPU": (["--backend", "cuda"], f"trm train: backend cuda: {NO_GPU}"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_is_said(case, dataset_folder, tmp_path, capsys):
    words, sentence = REFUSED[case]
    if case == "no GPU" and torch.cuda.is_available():
        pytest.skip("cuda is here")
    if case == "other weights":
        train(config(), dataset_folder, tmp_path, "first")
    assert main(train_words(config(), dataset_folder, tmp_path, *words)) == 2
    assert sentence in capsys.readouterr().err


def test_what_cannot_be_evaluated_is_said(dataset_folder, tmp_path, capsys):
    rest = f"--dataset {dataset_folder} --out {tmp_path}/e".split()
    for run, said in ((tmp_path, "train the run first"), ("NOTHING", "The run NOTHING does not exist")):
        assert main(["evaluate", "--run", str(run), *rest]) == 2
        assert said in capsys.readouterr().err


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(io.os, "fsync", full)
    with pytest.raises(UserError, match="the disk is full"):
        io.write_bytes(tmp_path / "x", b"data")
    assert list(tmp_path.iterdir()) == []


def test_devices(monkeypatch, capsys):
    monkeypatch.delenv("TRM_BACKEND", raising=False)
    if not torch.cuda.is_available():
        assert open_backend().name == "cpu"
        assert capsys.readouterr().out.strip() == f"backend cpu: {NO_GPU.partition(': ')[0]}"
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="RANK=3"):
        world_from_environment()


def test_precision_says_why():
    assert precision_of("auto", True, "this CPU").name == "bfloat16"
    assert precision_of("auto", False, "this CPU").name == "float32"
    assert "no fast bfloat16" in precision_of("bfloat16", False, "this CPU").reason
