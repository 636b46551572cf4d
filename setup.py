"""Copies into the package what `trm solve` and `trm study init` need outside a checkout."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithStudy(build_py):
    """Adds trm/shipped/: models and the files of the pipeline."""

    def run(self):
        super().run()
        shipped = Path(self.build_lib, "trm", "shipped")
        shutil.rmtree(shipped, ignore_errors=True)
        for name in ("models", "config", "profiles", "workflow", "envs"):
            shutil.copytree(name, shipped / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy2("Snakefile", shipped)


setup(cmdclass={"build_py": WithStudy})
