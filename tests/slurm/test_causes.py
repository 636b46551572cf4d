"""Why jobs wait, and what must be there before any is submitted."""

import shutil

import pytest
import snakemake_executor_plugin_slurm as plugin

from trm.errors import UserError
from trm.slurm import causes, contract


@pytest.mark.parametrize(
    ("reason", "words", "stays"),
    [
        ("JobHeldAdmin", "an administrator", True),
        ("launch failed requeued held", "scontrol release 7", True),
        ("AssocMaxWallDurationPerJobLimit", "lower max_runtime", True),
        ("AssocMaxGRESPerJob", "lower gpus", True),
        ("QOSMinGRES", "slurm_partition=NAME", True),
        ("AssocGrpGRES", "at once", False),
        ("AssocGrpGRESRunMinutes", "at once", False),
        ("AssocGrpCPUMinutesLimit", "computing time", False),
        ("QOSMaxJobsPerUserLimit", "at once", False),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "sinfo -R", False),
        ("Licenses", "scontrol show job 7", False),
    ],
)
def test_a_reason_is_said_in_words(reason, words, stays):
    sentence, needs_somebody = causes.waiting("7", reason)
    assert f"({reason})" in sentence
    assert words in sentence
    assert needs_somebody is stays


@pytest.mark.parametrize(
    ("select", "gpus", "said"), [("linear", 1, "no --gpus"), ("linear", 0, ""), ("cons_tres", 1, "")]
)
def test_a_slurm_that_takes_no_gpus_is_named(monkeypatch, select, gpus, said):
    monkeypatch.setattr(shutil, "which", lambda name: name)
    answer = f"SelectType              = select/{select}"
    monkeypatch.setattr(causes, "ask", lambda *words: (True, answer))
    sentence = causes.unfit(gpus)
    assert said in sentence
    assert bool(sentence) is bool(said)


def test_slurms_commands_are_needed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="not found: start Snakemake where they are, or load them first"):
        causes.unfit(1)


@pytest.mark.parametrize(
    ("owner", "name", "other"),
    [
        (plugin, "get_job_wildcards", lambda job, options: ""),
        (plugin.Executor, "run_job", None),
        (plugin.Executor, "__post_init__", lambda self, test_mode: None),
    ],
)
def test_another_plugin_is_refused_in_a_sentence(monkeypatch, owner, name, other):
    contract.check_contract(plugin)
    monkeypatch.setattr(owner, name, other)
    with pytest.raises(UserError, match="differs: pip install 'snakemake-executor-plugin-slurm>=2.8,<2.9'"):
        contract.check_contract(plugin)
