"""Write FOLDER/environment.yaml for conda (and Snakemake's `--sdm conda`) from torch.txt and requirements.lock.

Snakemake copies the file before it creates the environment, so it names every package itself instead of another file.
"""

import re
import sys
from pathlib import Path

HEAD = """\
# Written by `make lock`. By hand: conda env create -f {folder}/environment.yaml
name: trm
channels: [conda-forge]
dependencies:
  - python=3.12
  - pip
  - pip:
"""


def content(folder: Path) -> str:
    """The environment file for a folder with torch.txt and requirements.lock."""
    lines = [
        *(folder / "torch.txt").read_text().splitlines(),
        *(folder / "requirements.lock").read_text().splitlines(),
    ]
    pins = [line.rstrip(" \\") for line in lines if re.match(r"[A-Za-z0-9]", line)]
    return HEAD.format(folder=folder.as_posix()) + "".join(f"      - {pin}\n" for pin in pins)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    (target / "environment.yaml").write_text(content(target))
