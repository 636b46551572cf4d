"""Compiled code is imported only where it is needed, and cached where it can be."""

import shutil
from pathlib import Path

from tests.shell import ROOT, python
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


HITS = """
import numpy as np
from trm.compiled import numba
from trm.data.rng_kernels import mix
mix(np.uint64(1))
print(sum(mix.stats.cache_hits.values()), numba.config.CACHE_DIR)
"""


def test_each_job_of_a_pod_finds_what_an_earlier_one_has_compiled(tmp_path, monkeypatch):
    """Its sources lie in a folder that goes with the job."""
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    env = {"TPU_TASK_FOLDER": "here", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for job, hits in (("first", 0), ("second", 1)):
        shutil.copytree(ROOT / "trm", tmp_path / job / "trm", ignore=shutil.ignore_patterns("__pycache__"))
        found, folder = python("-c", HITS, cwd=tmp_path / job, env=env, check=True).stdout.split()
        assert int(found) == hits
        assert Path(folder).parent == tmp_path / "cache/trm"
        shutil.rmtree(tmp_path / job)


LIGHT = """
import sys
def imported(names):
    print(*(name for name in names.split() if name in sys.modules))
import trm.study.dataset_identity
imported("numpy torch numba")
import trm.analysis.kinds
imported("numpy pandas matplotlib scipy")
import trm.data.dataset, trm.data.sampler, trm.tasks, trm.tasks.build
[trm.tasks.task_of(name) for name in ("sudoku", "maze", "arc")]
imported("numba torch scipy pandas google.cloud.storage")
"""


def test_light_modules_import_nothing_heavy():
    assert python("-c", LIGHT, check=True).stdout == "\n\n\n"
