"""torch_xla's extension needs the shared libpython, and uv's interpreters are linked to a static one.

torch_xla 2.9.0's extension looks for it in `$ORIGIN/torch_xla/lib` alone (its RUNPATH).
"""

import re
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from snakemake_executor_plugin_tpu.worker import environment

LIBRARY = f"libpython{sys.version_info[0]}.{sys.version_info[1]}.so.1.0"
SHARED = Path(sysconfig.get_config_var("LIBDIR"), LIBRARY)
LIKE_THE_LOADER = f"""
from pathlib import Path
if not Path(__file__).with_name("lib").joinpath({LIBRARY!r}).exists():
    raise ImportError("{LIBRARY}: cannot open shared object file")
__version__ = "2.9.0"
"""


@pytest.mark.skipif(not SHARED.exists(), reason=f"needs {SHARED}")
def test_torch_xla_loads_where_only_the_interpreter_has_libpython(tmp_path, capsys, monkeypatch):
    """The build fails if it does not, and says how many chips torch_xla sees."""
    monkeypatch.setenv("TPU_HOST_ROOT", str(tmp_path))
    python = tmp_path / "environment" / "bin" / "python"
    venv.create(python.parents[1])
    environment.finish_torch_xla(python)  # an environment without torch_xla
    assert capsys.readouterr().out == ""

    package = next(python.parents[1].glob("lib/python*/site-packages")) / "torch_xla"
    (package / "_internal").mkdir(parents=True)
    (package / "__init__.py").write_text(LIKE_THE_LOADER)
    (package / "_internal" / "tpu.py").write_text("def num_available_chips():\n    return 4\n")
    environment.finish_torch_xla(python)
    assert capsys.readouterr().out == "torch_xla 2.9.0 loads and sees 4 TPU chips\n"
    assert (package / "lib" / LIBRARY).resolve() == SHARED.resolve()

    (package / "lib" / LIBRARY).unlink()
    monkeypatch.setattr(environment, "FACTS", re.sub(r"'lib': \[.*?\]", "'lib': []", environment.FACTS))
    with pytest.raises(RuntimeError, match=f"ImportError: {LIBRARY}: cannot open shared object file"):
        environment.finish_torch_xla(python)
