"""`trm checkpoints list|clean` on a bucket."""

from pathlib import Path

import pytest

from trm.cli import main
from trm.pipeline.catalogue import RUN_FILES
from trm.pipeline.project import open_project
from trm.results import cleanup

STUDY = str(Path(__file__).parents[2] / "config/experiments.yaml")


@pytest.fixture
def options(gcs) -> list[str]:
    """A bucket with checkpoints of a finished run, an unfinished one and one of another study."""
    finished, unfinished, *_ = open_project({"study": STUDY}).runs
    for run in (finished, unfinished, "another-s0-0123abcd"):
        for file in ("step-1/manifest.json", "step-1/state.bin"):
            gcs.put_bytes(f"results/checkpoints/{run}/{file}", b"x" * 500)
    for file in RUN_FILES:
        gcs.put_bytes(f"results/runs/{finished}/{file}", b"x")
    return ["--study", STUDY, "--config", f"storage_prefix={gcs.uri}"]


def left(gcs) -> list[str]:
    return sorted({info.name.split("/")[2] for info in gcs.list("results/checkpoints/")})


def test_only_what_nobody_needs_is_removed_from_a_bucket(options, gcs, monkeypatch, capsys):
    finished, unfinished, *_ = open_project({"study": STUDY}).runs
    assert main(["checkpoints", "list", *options]) == 0
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    states = {"in use": "another-s0-0123abcd", "finished": finished, "unfinished": unfinished}
    assert said == [*(f"{state} 1 kB {run}" for state, run in states.items()), "3 kB of 3 runs"]
    assert main(["checkpoints", "clean", "--dry-run", *options]) == 0
    assert "would free 1 kB of 1 run\n" in capsys.readouterr().out
    assert len(left(gcs)) == 3
    assert main(["checkpoints", "clean", "--unknown", *options]) == 0
    assert left(gcs) == sorted(["another-s0-0123abcd", unfinished])
    monkeypatch.setattr(cleanup, "QUIET_SECONDS", -1.0)
    assert main(["checkpoints", "clean", "--unknown", *options]) == 0
    assert left(gcs) == [unfinished]
    assert sorted(info.name for info in gcs.list("results/runs/")) == sorted(
        f"results/runs/{finished}/{file}" for file in RUN_FILES
    )
