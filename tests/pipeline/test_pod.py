"""The short form of `make rehearsal`: the whole pipeline on an emulated pod of two hosts."""

import json
import re
import signal
from pathlib import Path

import pytest
import yaml

from benchmarks.faults import until
from benchmarks.pod_faults import campaign
from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.emulator.hosts import send
from tests.pipeline.conftest import ROOT
from tests.rehearsal import PodStudy, rehearse, share_kernel

pytestmark = [pytest.mark.full, pytest.mark.skipif(bool(why_not()), reason=why_not() or "")]


def short_study(folder: Path, steps: int, **experiment: object) -> Path:
    """The rehearsal's, cut short; `experiment`: its data_size in other words."""
    document = yaml.safe_load((ROOT / "config/rehearsal.yaml").read_text())
    document["scales"]["rehearsal"]["seeds"] = [0]
    document["base"]["training"]["steps"] = steps
    document["base"]["data"]["test_puzzles"] = 100
    del document["experiments"]["model_size"]
    document["experiments"]["data_size"] |= experiment
    study = folder / "rehearsal.yaml"
    study.write_text(yaml.safe_dump(document, sort_keys=False))
    return study


def test_a_figure_asked_for_comes_back_through_a_preemption(tmp_path):
    """A pool of two slices with two hosts each: one run takes a whole slice, the others one host each."""
    study = short_study(tmp_path, steps=200)  # the preemption has to come between a checkpoint and the end
    rehearse(tmp_path / "rehearsal", "v4-16", 2, study, faults=("preemption",))


def test_a_short_campaign_of_faults_loses_nothing(tmp_path):
    done = campaign(tmp_path, faults=4, seed=4, slices=4)
    assert sum(map(len, done.recoveries.values())) == 4


def test_a_run_of_an_earlier_recipe_is_said_and_its_result_names_what_made_it(tmp_path):
    """A raised RECIPE_VERSION gives runs other names, so the job that still runs is none of the new call's."""
    one_point = {"grid": {}, "figures": [{"kind": "curves"}]}
    words = ("data_size", "--jobs", "1", "--tpu-accelerator-type", "v4-8", "--resources", "tpu_hosts=1")
    with EmulatedPod(tmp_path / "pod", "v4-8") as pod:
        share_kernel(pod, tmp_path)
        study = PodStudy(tmp_path / "study", pod, short_study(tmp_path, steps=30, **one_point), *words)
        recipe = study.folder / "trm/study/fingerprint.py"
        call = study.start(TRM_COMMIT="0123abc+")
        try:
            until(lambda: call.process.poll() is not None or pod.hosts[0].processes(study.program))
            send(signal.SIGSTOP, running := pod.hosts[0].processes(study.program))
            call.end()
            recipe.write_text(recipe.read_text().replace("RECIPE_VERSION = 1\n", "RECIPE_VERSION = 2\n"))
            call = study.start(TRM_COMMIT="4567def")
            end = "which an earlier call started and this one does not need."
            line = call.wait_for(re.escape(end))
            assert re.search(rf"^[\d:]{{8}} pod runs train-[0-9a-f]{{12}}, {re.escape(end)}$", line), line
            assert not study.results("training.json")
            send(signal.SIGCONT, running)
            until(lambda: call.process.poll() is not None or len(study.results("training.json")) > 1)
            made = [json.loads(text) for text in study.results("training.json").values()]
            told = [(run["recipe_version"], run["provenance"]) for run in made]
            facts = {(version, known["commit"], known["dirty"]) for version, known in told}
            assert facts == {(1, "0123abc", True), (2, "4567def", False)}, call.output
        finally:
            call.end()
