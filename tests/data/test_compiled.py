"""Compiled code is imported only where it is needed, and cached where it can be."""

import subprocess
import sys
from pathlib import Path

from trm.compiled import sources_digest
from trm.io import first_writable


def test_the_first_folder_that_can_be_written_is_chosen(tmp_path):
    (tmp_path / "file").write_text("no folder")
    wanted = tmp_path / "deep" / "cache"
    assert first_writable([Path("/proc/none"), tmp_path / "file" / "x", wanted]) == wanted
    assert wanted.is_dir()
    assert first_writable([tmp_path / "file" / "x"]) is None


def test_a_change_in_any_compiled_file_is_another_cache(tmp_path):
    (tmp_path / "a.py").write_text("@njit\ndef f(): return 1")
    (tmp_path / "b.py").write_text("nothing compiled")
    first = sources_digest(tmp_path)
    (tmp_path / "b.py").write_text("still nothing")
    assert sources_digest(tmp_path) == first
    (tmp_path / "a.py").write_text("@njit\ndef f(): return 2")
    second = sources_digest(tmp_path)
    assert second != first
    (tmp_path / "b.py").write_text("from numba.extending import intrinsic")
    assert sources_digest(tmp_path) not in (first, second)


def test_the_trainers_imports_need_no_compiler():
    code = """if True:
        import sys
        from trm.data import dataset, sampler
        from trm.tasks import build, task_of
        task_of("sudoku"), task_of("maze"), task_of("arc")
        print([name for name in ("numba", "torch", "scipy", "pandas", "google.cloud.storage") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
