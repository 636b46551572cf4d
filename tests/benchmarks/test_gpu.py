"""The script for a GPU, run whole at a tiny size on the CPU."""

import json
import signal
import subprocess
import sys

import pytest

from benchmarks import gpu


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpu", *map(str, arguments)])
    return gpu.main()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # from within torch.compile
def test_jobs_and_table(tmp_path, monkeypatch, capsys):
    jobs = ["ceilings", "checks", "train-mlp-compiled", "evaluate-mlp-eager"]
    for job in jobs:
        assert call(monkeypatch, "--tiny", "--out", tmp_path, "--job", job) == 0
    # what is done is not done again: the rest only collects
    monkeypatch.setattr(gpu, "jobs", lambda: jobs)
    assert call(monkeypatch, "--tiny", "--out", tmp_path) == 0
    out = capsys.readouterr().out
    assert "== " not in out
    for job in jobs:
        assert job in out
    found = json.loads((tmp_path / "gpu.json").read_text())
    trained = found["train-mlp-compiled"]["result"]
    assert trained["ratio"] > 0
    assert 0 < trained["share"] < 2
    assert found["evaluate-mlp-eager"]["result"]["full_test_minutes"] > 0


BARE = """
import sys

class Others:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("yaml", "numba", "safetensors", "scipy", "pandas", "matplotlib", "snakemake"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Others())
from benchmarks import gpu
sys.exit(gpu.main())
"""


def test_torch_numpy_and_pydantic_suffice(tmp_path):
    words = ("--tiny", "--out", str(tmp_path), "--job", "train-mlp-eager")
    done = subprocess.run([sys.executable, "-c", BARE, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "train-mlp-eager.json").read_text())["result"]["ratio"] > 0


def test_a_broken_job_leaves_the_others_alone(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(gpu, "jobs", lambda: ["train-nothing-eager", "ceilings"])
    assert call(monkeypatch, "--tiny", "--out", tmp_path) == 1
    out = capfd.readouterr().out
    assert "== train-nothing-eager: FAILED" in out
    assert "== ceilings: done" in out
    assert "failed: train-nothing-eager" in out


def test_a_spent_budget_leaves_what_is_finished(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(gpu, "jobs", lambda: ["ceilings", "workers"])
    clock = iter([0.0, 1.0, 1.0, 1.0, 1.0, 61.0])
    monkeypatch.setattr(gpu.time, "monotonic", lambda: next(clock, 61.0))
    assert call(monkeypatch, "--tiny", "--minutes", "1", "--out", tmp_path) == 0
    assert "no time for: workers" in capfd.readouterr().out
    assert list(json.loads((tmp_path / "gpu.json").read_text())) == ["ceilings"]


def test_what_was_started_ends_with_the_budget(tmp_path, monkeypatch, capfd):
    """The checks took all of it, while another process compiled."""
    monkeypatch.setattr(gpu, "jobs", lambda: ["checks", "ceilings"])
    begin, started = gpu.start, []
    monkeypatch.setattr(gpu, "start", lambda name: started.append(begin(name)) or started[-1])
    assert call(monkeypatch, "--tiny", "--minutes", "0", "--out", tmp_path) == 0
    assert "no time for: checks, ceilings" in capfd.readouterr().out
    assert [process.poll() for process in started] == [-signal.SIGKILL]


@pytest.mark.full
def test_two_workers_and_a_killed_run(tmp_path, monkeypatch, capfd):
    assert call(monkeypatch, "--tiny", "--out", tmp_path, "--only", "workers", "resume") == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["workers"]["result"]["rows_per_second"] > 0
    assert found["resume"]["result"]["resumes"] == 1


def test_an_unknown_job_is_refused(tmp_path, monkeypatch):
    with pytest.raises(SystemExit):
        call(monkeypatch, "--out", tmp_path, "--only", "nothing")
