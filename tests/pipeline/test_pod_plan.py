"""What a TPU pod costs: profiles/tpu with each slice that it names, and jobs packed onto hosts."""

import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from snakemake.cli import parse_args

from tests.pipeline.conftest import planned
from tests.shell import ROOT
from trm.errors import UserError
from trm.launch.jobs import shell_prefix
from trm.pipeline import plan
from trm.pipeline.cloud import tpu_pod
from trm.pipeline.estimates import Cost, Estimates, Job
from trm.pipeline.project import Project, open_project


@pytest.fixture
def profile(monkeypatch, tmp_path):
    """Reads profiles/tpu with options of the command line: Snakemake's settings, and the project."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    for name in ("GOOGLE_CLOUD_PROJECT", "TRM_BUCKET", "TRM_ZONE", "TRM_POD"):
        monkeypatch.delenv(name, raising=False)

    def read(*options: str, **config) -> tuple[SimpleNamespace, Project]:
        words = ["--profile", "profiles/tpu", "-n", *options]
        monkeypatch.setattr(sys, "argv", [str(Path(sys.executable).with_name("snakemake")), *words])
        _, args = parse_args(words)
        for file in args.configfile:
            config = yaml.safe_load(Path(file).read_text()) | config
        return args, open_project(config, dryrun=True)

    return read


@pytest.mark.parametrize(
    ("options", "jobs", "whole", "chips", "usd"),
    [
        ([], 8, 8, 4, 32 * 0.9215),
        (["--tpu-accelerator-type", "v4-8"], 1, 1, 4, 4 * 0.9215),
        (["--tpu-accelerator-type=v4-32"], 4, 4, 4, 16 * 0.9215),
        (["--tpu-accelerator-type", "v4-8", "--tpu-slices", "8"], 8, 1, 4, 32 * 0.9215),
        (["--tpu-provisioning", "on-demand"], 8, 8, 4, 32 * 3.22),
        (["--tpu-provisioning=reserved", "--tpu-accelerator-type", "v4-32"], 4, 4, 4, 16 * 3.22),
    ],
)
def test_hosts_jobs_and_prices_follow_from_slice_and_provisioning(profile, options, jobs, whole, chips, usd):
    args, project = profile(*options, experiments="baseline")
    estimates = Estimates(project)
    assert (args.jobs, args.resources["tpu_hosts"].value, estimates.pod_hosts) == (jobs, jobs, whole)
    assert f"TRM_CHIPS_PER_HOST={chips}" in shell_prefix(project.settings)
    family = dict(word.split("=") for word in args.tpu_prices.split())
    assert float(family["v4"]) == estimates.hardware.usd_per_device_hour
    assert estimates.pod_usd == pytest.approx(usd)
    assert {estimates.hosts(run) for run in project.runs} <= {1, whole}
    found = planned(project, jobs)
    assert found["pod_hours"] >= found["total"]["seconds"] / 3600 / jobs * (1 - 1e-9)
    total = found["pod_hours"] * usd
    assert (
        found["total"]["usd"] == pytest.approx(total) == pytest.approx(sum(r["usd"] for r in found["rows"]))
    )
    assert f"busy or not at ${usd:,.2f} an hour = ${total:,.2f}; " in plan.text(found)
    assert "chip hours" in plan.text(found)


def test_a_slice_of_another_generation_needs_other_hardware(profile):
    _, project = profile("--tpu-accelerator-type", "v5litepod-8")
    with pytest.raises(UserError, match="slice is a v5litepod-8, and scale tpu of .* planned for v4-64: set"):
        _ = Estimates(project).hardware


def test_a_slice_that_does_not_exist_is_refused():
    with pytest.raises(UserError, match="unknown TPU slice 'v4-7'"):
        tpu_pod("v4-7")
    with pytest.raises(UserError, match="tpu-slices is 0: give a number of slices"):
        tpu_pod("v4-8", slices=0)


def machine(hosts: int, **seconds: float) -> SimpleNamespace:
    """Estimates of jobs with these seconds on slices of `hosts` hosts; names with `whole` take all of them."""
    return SimpleNamespace(
        pod_hosts=hosts,
        left=lambda job: Cost(seconds[job.name.split("/")[0]] if job.rule == "train" else 60.0, 0.0, 0.0),
        hosts_of=lambda job: hosts if job.name.startswith("whole") and job.rule == "train" else 1,
    )


def trainings(*names: str) -> list[Job]:
    return [Job("train", name) for name in names]


@pytest.mark.parametrize(
    ("hosts", "at_once", "jobs", "minutes"),
    [
        (8, 8, trainings(*"abcdefgh"), 60),
        (8, 8, trainings(*"abcdefghi"), 120),  # a second round, for which the whole pod is paid
        (1, 8, trainings(*"abcdefghi"), 120),
        (4, 8, trainings("whole1", "whole2"), 60),  # one on each of two slices
        (8, 8, trainings("whole1", "whole2"), 120),
        (8, 8, trainings("whole1", *"abcdefgh"), 120),
        (2, 2, [Job("evaluate", "a/1"), *trainings("a")], 61),
        (2, 2, [Job("dataset", "d"), *trainings("a"), Job("plot", "p")], 62),
    ],
)
def test_jobs_are_packed_in_rounds(hosts, at_once, jobs, minutes):
    seconds = dict.fromkeys([*"abcdefghi", "whole1", "whole2"], 3600.0)
    assert plan.packed(machine(hosts, **seconds), jobs, at_once) == 60 * minutes


@given(
    hosts=st.sampled_from([1, 2, 4]),
    slices=st.integers(1, 3),
    lengths=st.dictionaries(st.sampled_from([*"abcdefgh", "whole1", "whole2"]), st.floats(1, 1e4)),
)
def test_no_packing_is_shorter_than_its_work_or_much_longer(hosts, slices, lengths):
    found = machine(hosts, **lengths)
    packed = plan.packed(found, trainings(*lengths), hosts * slices)
    work = sum(length * (hosts if name.startswith("whole") else 1) for name, length in lengths.items())
    longest = max(lengths.values(), default=0.0)
    assert packed >= max(work / (hosts * slices), longest) * (1 - 1e-9)
    assert packed <= (work / slices + 2 * longest) * (1 + 1e-9)


def test_jobs_have_one_order_whatever_snakemakes_is():
    owners = {Job("train", "b-1"): "first", Job("train", "a-1"): "second", Job("evaluate", "a-1/e"): "second"}
    jobs = [*owners, Job("dataset", "d"), Job("train", "c-1"), Job("preflight")]
    orders = set()
    for seed in range(5):
        shuffled = random.Random(seed).sample(jobs, len(jobs))
        orders.add(tuple(plan.in_order(dict(enumerate(shuffled)), owners).values()))
    assert orders == {(jobs[5], jobs[3], jobs[0], jobs[1], jobs[4], jobs[2])}
