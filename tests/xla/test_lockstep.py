"""Every host starts the same programs in the same order, whatever the phase: on a pod a program that only one host
starts waits for the others for ever."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CASES = ("mlp", "attention", "arc")
Phase = tuple[str, list[str], int]
"""Name, programs, compilations."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture(scope="module")
def hosts(folder: Path) -> list[dict[str, list[Phase]]]:
    """Phases of each case, for both hosts."""
    found = []
    for rank in range(2):
        command = [sys.executable, "-m", "tests.xla.ranks", str(rank), str(folder), json.dumps(CASES)]
        env: dict[str, Any] = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    written = {path.name for path in folder.glob("*-1") for path in path.rglob("*") if path.is_file()}
    # the second host wrote nothing but its own diagnostics
    assert written - {path.name for path in folder.glob("stopped-*/**/*")} <= {"xla-metrics-1.txt"}
    return found


@pytest.mark.parametrize("case", CASES)
def test_hosts_start_the_same_programs_in_the_same_order(hosts: list[dict[str, list[Phase]]], case: str):
    first, second = (host[case] for host in hosts)
    assert [phase[0] for phase in first] == [phase[0] for phase in second]
    for one, other in zip(first, second, strict=True):
        assert one == other, f"{case}: {one[0]}"
    wanted = {"step", "report", "validate", "snapshot", "save", "compare", "resume", "finish", "evaluate"}
    assert wanted <= {phase[0] for phase in first}


@pytest.mark.parametrize("case", CASES)
def test_only_the_first_checkpoint_compiles_a_program(hosts: list[dict[str, list[Phase]]], case: str):
    compiled = {
        name: [phase[2] for phase in hosts[0][case] if phase[0] == name] for name in ("save", "snapshot")
    }
    assert compiled["save"] in (
        [1, 0, 0],
        [0, 0, 0],
    )  # 0: known from the case before, whose slots have the same shapes
    assert sum(compiled["snapshot"]) == 0
    assert sum(phase[2] for phase in hosts[0][case] if phase[0] in ("finish", "resume", "compare")) == 0


def test_a_weight_that_one_host_alone_has_is_found_with_the_next_checkpoint(hosts: list[dict[str, Any]]):
    """All hosts are one worker of a sharded program, and each holds its own copy of the weights."""
    for host in hosts:
        assert len(host["faults"]) == 2  # NaN, and the lowest bit
        assert all("worker 1 does not hold the same weights as worker 0" in words for words in host["faults"])


def test_arc_trains_as_on_the_cpu(hosts: list[dict[str, list[Phase]]], folder: Path):
    from safetensors.numpy import load_file

    config = json.dumps(json.loads((folder / "out-arc-0/training.json").read_text())["config"])
    command = [sys.executable, "-m", "trm", "train", "--backend", "cpu", "--threads", "1", "--config", config]
    command += [
        "--dataset",
        str(folder / "arc"),
        "--out",
        str(folder / "cpu"),
        "--checkpoints",
        str(folder / "kept"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found, expected = (load_file(folder / name / "weights.safetensors") for name in ("out-arc-0", "cpu"))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        # AdamAtan2 takes steps of about lr = 1e-3 (puzzle vectors: 1e-2), also where rounding decides a gradient's sign
        assert abs(found[name] - tensor).mean() < 1e-3, name
