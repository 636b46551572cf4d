"""Every host starts the same programs in the same order, whatever the phase: on a pod a program that only one host
starts waits for the others for ever."""

import json
from pathlib import Path

import pytest

from tests.shell import ROOT, python
from tests.training.conftest import train_words
from trm.study.schema import RunConfig

CASES = ("mlp", "arc")
Phase = tuple[str, list[str], int]
"""Name, programs, compilations."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture(scope="module")
def hosts(folder) -> list[dict[str, list[Phase]]]:
    """Phases of each case, for both hosts."""
    words, env = ("tests.xla.ranks", folder, json.dumps(CASES)), {"TF_CPP_MIN_LOG_LEVEL": "2"}
    done = python("-m", *words, env=env, cwd=ROOT, timeout=900, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    written = {path.name for path in folder.glob("*-1") for path in path.rglob("*") if path.is_file()}
    # the second host wrote nothing but its own diagnostics
    assert written - {path.name for path in folder.glob("stopped-*/**/*")} <= {"xla-metrics-1.txt"}
    return found


@pytest.mark.parametrize("case", CASES)
def test_hosts_start_the_same_programs_in_the_same_order(hosts, case):
    first, second = (host[case] for host in hosts)
    assert [phase[0] for phase in first] == [phase[0] for phase in second]
    for (name, programs, _), (_, others, _) in zip(first, second, strict=True):
        assert programs == others, f"{case}: {name}"
    wanted = {"start", "step", "report", "validation", "snapshot", "checkpoint", "comparison of hosts"}
    assert wanted | {"resume", "finish", "evaluation"} <= {phase[0] for phase in first}


@pytest.mark.parametrize("case", CASES)
def test_only_the_first_checkpoint_compiles_a_program(hosts, case):
    def compiled(*names: str) -> list[int]:
        return [phase[2] for phase in hosts[0][case] if phase[0] in names]

    # 0: known from the case before, whose slots have the same shapes
    assert compiled("checkpoint") in ([1, 0, 0], [0, 0, 0])
    assert sum(compiled("snapshot", "finish", "resume", "comparison of hosts")) == 0


def test_a_weight_that_one_host_alone_has_is_found_with_the_next_checkpoint(hosts):
    """All hosts are one worker of a sharded program, and each holds its own copy of the weights."""
    for host in hosts:
        assert len(host["faults"]) == 2  # NaN, and the lowest bit
        assert all("worker 1 does not hold the same weights as worker 0" in words for words in host["faults"])


def test_arc_trains_as_on_the_cpu(hosts, folder):
    from safetensors.numpy import load_file

    run = RunConfig.model_validate(json.loads((folder / "out-arc-0/training.json").read_text())["config"])
    words = train_words(run, folder / "arc/set", folder / "cpu", "--backend", "cpu")
    python("-m", "trm", *words, cwd=ROOT, check=True)
    found, expected = (load_file(folder / name / "weights.safetensors") for name in ("out-arc-0", "cpu/run"))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        # AdamAtan2 takes steps of about lr = 1e-3 (puzzle vectors: 1e-2), also where rounding decides a gradient's sign
        assert abs(found[name] - tensor).mean() < 1e-3, name
