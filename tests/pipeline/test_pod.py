"""The short form of `make rehearsal`: the whole pipeline on an emulated pod of two hosts."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.pod_faults import campaign, default_signals, until
from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.emulator.hosts import send
from tests import warm
from tests.pipeline.conftest import ROOT
from tests.rehearsal import PREFIX, STUDY, checkout, compiled_kernel, programs, rehearse, share_kernel

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
    study = short_study(tmp_path, steps=100)
    outcome = rehearse(tmp_path / "rehearsal", "v4-16", 2, study, 2, faults=("preemption",))
    assert outcome.failures == [], "\n".join(outcome.rows)


def test_a_short_campaign_of_faults_loses_nothing(tmp_path):
    done = campaign(tmp_path, faults=4, seed=4, slices=4)
    assert sum(map(len, done.recoveries.values())) == 4


class Call:
    """A call of Snakemake from a version of the study, on a pod of one host."""

    def __init__(self, folder: Path, pod: EmulatedPod, version: str):
        self.log = folder.with_name(f"{version}.log")
        command = [sys.executable, "-m", "snakemake", "--profile", "profiles/pod", "data_size", "--jobs", "1"]
        command += ["--tpu-accelerator-type", "v4-8", "--resources", "tpu_hosts=1"]
        names = {"TRM_BUCKET": f"gs://{pod.bucket.name}/{PREFIX}", "TRM_COMMIT": version}
        with default_signals(), self.log.open("wb") as log:
            self.process = warm.Popen(
                [*command, "--config", "pod_hosts=1", STUDY],
                cwd=folder,
                env=os.environ | pod.environment | names,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def says(self, words: str) -> bool:
        text = self.log.read_text(errors="replace")
        assert self.process.poll() is None, text
        return words in text

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def test_a_run_of_an_earlier_recipe_is_said_and_its_result_names_what_made_it(tmp_path):
    """A raised RECIPE_VERSION gives runs other names, so the job that still runs is none of the new call's."""
    one_point = {"grid": {}, "figures": [{"kind": "curves"}]}
    folder = checkout(tmp_path / "study", short_study(tmp_path, steps=30, **one_point))
    recipe = folder / "trm/study/fingerprint.py"

    with EmulatedPod(tmp_path / "pod", "v4-8") as pod:
        share_kernel(pod, compiled_kernel(tmp_path))

        def results() -> list[tuple[int, str, bool]]:
            blobs = pod.bucket.list_blobs(prefix=f"{PREFIX}/results/runs/")
            found = [json.loads(b.download_as_bytes()) for b in blobs if b.name.endswith("/training.json")]
            return [(r["recipe_version"], r["provenance"]["commit"], r["provenance"]["dirty"]) for r in found]

        def training() -> list[int]:
            return programs(pod.hosts[0], "-m trm train")

        call = Call(folder, pod, "0123abc+")
        try:
            until(lambda: call.says("") and training())
            send(signal.SIGSTOP, running := training())
            call.kill()
            recipe.write_text(recipe.read_text().replace("RECIPE_VERSION = 1\n", "RECIPE_VERSION = 2\n"))
            call = Call(folder, pod, "4567def")
            until(lambda: call.says("which an earlier call started and this one does not need.\n"))
            (line,) = re.findall(r"^[\d:]{8} (.* runs train-.*)", call.log.read_text(), re.MULTILINE)
            end = "which an earlier call started and this one does not need."
            assert re.fullmatch(rf"pod runs train-[0-9a-f]{{12}}, {re.escape(end)}", line), line
            assert results() == []
            send(signal.SIGCONT, running)
            until(lambda: call.says("") and len(results()) > 1)
            assert set(results()) == {(1, "0123abc", True), (2, "4567def", False)}
        finally:
            call.kill()
