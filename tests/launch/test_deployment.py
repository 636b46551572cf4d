"""`--sdm conda` and `--sdm apptainer` run jobs with the Python of the environment or image; here it differs."""

import os
from types import SimpleNamespace

import pytest
from snakemake.settings.types import DeploymentMethod

from tests.pipeline.conftest import STUDY, new_project
from tests.shell import python
from trm.errors import UserError
from trm.launch.jobs import deployed
from trm.pipeline.settings import Settings

PYTHON = "#!/bin/sh\necho this is the Python of the deployment >&2\nexit 3\n"
CONDA = """\
#!/bin/sh
case "$*" in
--version) echo conda 24.7.1;;
"info --json") echo '{{"conda_prefix": "{folder}", "platform": "linux-64"}}';;
*channel_priority*) echo '{{"get": {{"channel_priority": "strict"}}}}';;
*create*) while [ "$1" != --prefix ]; do shift; done; mkdir -p "$2/bin"; cp "{folder}/image/python" "$2/bin";;
esac
"""
APPTAINER = """\
#!/bin/bash
[ "$1" = --version ] && echo apptainer version 1.3.0 && exit
while [[ "$1" != *bash && "$1" != *sh ]]; do shift; done
PATH="{folder}/image:/usr/bin:/bin" exec "$@"
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A study, in whose PATH are stand-ins for conda and apptainer."""
    activate = 'export PATH="$1/bin:$PATH"'
    scripts = {"conda": CONDA, "activate": activate, "apptainer": APPTAINER, "../image/python": PYTHON}
    (tmp_path / "bin").mkdir()
    (tmp_path / "image").mkdir()
    for name, text in scripts.items():
        (tmp_path / "bin" / name).write_text(text.format(folder=tmp_path))
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "study").mkdir()
    (tmp_path / "image.sif").touch()
    return new_project(tmp_path / "study", STUDY)


@pytest.mark.parametrize("method", ["conda", "apptainer"])
def test_jobs_use_the_python_that_was_asked_for(project, method):
    words = ("--cores", "1", "--until", "dataset", "--retries", "0", "--sdm", method)
    image = f"container={project.folder.parent / 'image.sif'}"
    command = ("-m", "snakemake", "--profile", "profiles/local", *words, "--config", image)
    done = python(*command, cwd=project.folder, check=False)
    assert done.returncode
    assert "this is the Python of the deployment" in done.stdout
    assert not (project.folder / "results/datasets").exists()


def test_the_host_runs_jobs_that_have_no_image():
    def under(method, **settings):
        return deployed(Settings(**settings), SimpleNamespace(deployment_method={method}))

    assert not under(DeploymentMethod.APPTAINER)
    assert not under(DeploymentMethod.ENV_MODULES)
    with pytest.raises(UserError, match="nodes > 1 needs srun"):
        under(DeploymentMethod.APPTAINER, container="image.sif", nodes=2)
