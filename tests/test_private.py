"""What another user of the machine prepares in its temporary folder is never run and never written."""

import os
import tempfile
from pathlib import Path

import pytest

from trm.backends.cpu import build
from trm.cli import use_writable_cache
from trm.io import build_folders, private_folder, write_bytes

NOBODY = 65534


def owned_by_another(folder: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    folder.mkdir(0o755)
    os.chown(folder, NOBODY, NOBODY)


def open_to_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def a_link(folder: Path) -> None:
    target = folder.with_name("elsewhere")
    target.mkdir(0o700)
    folder.symlink_to(target)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """The machine's temporary folder; this user's caches are empty."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    return folder


@pytest.mark.parametrize("prepare", [owned_by_another, open_to_all, a_link])
def test_a_prepared_folder_is_left_out(temporary, tmp_path, monkeypatch, prepare):
    folder = temporary / f"trm-{os.getuid()}"
    prepare(folder)
    (folder / f"{build._wanted()}-{build._digest('c++')}.so").write_bytes(b"another user's code")
    with pytest.raises(PermissionError):
        private_folder()
    monkeypatch.setattr(build, "SOURCE", tmp_path / "source")
    (tmp_path / "source").mkdir()
    assert folder not in build_folders(tmp_path / "source")
    use_writable_cache()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache/trm/inductor")
    monkeypatch.setattr(build, "compiler", lambda: None)
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler was found"):
        build.library.__wrapped__()


def test_compiled_programs_are_in_a_folder_of_this_user_alone(temporary):
    folder = temporary / f"trm-{os.getuid()}"
    use_writable_cache()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder / "inductor")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert build_folders(Path("source"))[-1] == private_folder() == folder


def test_a_link_under_a_guessed_name_is_not_followed(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / f".a.json.{os.getpid()}.tmp").symlink_to("mine")
    write_bytes(tmp_path / "a.json", b"{}")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "a.json").read_bytes() == b"{}"


def test_two_writers_of_one_file_do_not_share_a_temporary_file(tmp_path, monkeypatch):
    """Two hosts of a shared folder may have processes of one number: here the second writes before the first ends."""
    replace, path = os.replace, tmp_path / "a.json"

    def second(source, target):
        monkeypatch.setattr(os, "replace", replace)
        write_bytes(path, b"second")
        replace(source, target)

    monkeypatch.setattr(os, "replace", second)
    write_bytes(path, b"first")
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a.json"]
