"""Where a result says it comes from."""

import shutil
from pathlib import Path

import trm.provenance
from tests.shell import run


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false")
    return run("git", "-C", folder, *identity, *words, check=True).stdout.strip()


def test_only_the_projects_own_commit_is_named(tmp_path, monkeypatch):
    """A tarball unpacked inside somebody else's repository has no commit."""
    git(tmp_path, "init", "-q")
    unpacked = tmp_path / "vendor/trm-scaling"
    (unpacked / "trm").mkdir(parents=True)
    shutil.copy(trm.provenance.__file__, unpacked / "trm/provenance.py")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "Vendor it")
    monkeypatch.setattr(trm.provenance, "__file__", str(unpacked / "trm/provenance.py"))
    assert trm.provenance.commit() == (None, None)
    assert trm.provenance.commit_in_words() == ""
    # as on the hosts of a pod, from the call that started the job
    monkeypatch.setenv("TRM_COMMIT", "0123abc+")
    monkeypatch.setattr(trm.provenance, "loaded_commit", trm.provenance.cache(trm.provenance.commit))
    assert trm.provenance.loaded_commit() == ("0123abc", True)
    assert trm.provenance.commit_in_words() == "0123abc+"
    git(unpacked, "init", "-q")
    git(unpacked, "add", "-A")
    git(unpacked, "commit", "-qm", "Our own")
    assert trm.provenance.commit() == (git(unpacked, "rev-parse", "HEAD"), False)
    study = unpacked / "config/laptop.yaml"
    study.parent.mkdir()
    study.write_text("an edited study is in the identity of its runs")
    git(unpacked, "add", "-A")
    assert trm.provenance.commit()[1] is False
    with (unpacked / "trm/provenance.py").open("a") as file:
        file.write("# edited")
    assert trm.provenance.commit()[1] is True
    assert trm.provenance.provenance()["commit"] == "0123abc"  # that of the code when it was imported
