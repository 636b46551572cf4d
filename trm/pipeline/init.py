"""A folder for a new study: the pipeline's files and a small study to start from."""

import shutil
from pathlib import Path

from trm.errors import UserError
from trm.io import shipped, write_text

COPIED = (
    "Snakefile", "workflow/rules", "workflow/report", "envs/cpu", "profiles/local", "profiles/gpu", "profiles/slurm",
    "profiles/tpu", "config/README.md", "config/cloud.example.yaml", "config/figures.mplstyle", "config/hardware.yaml",
    "config/schema.json",
)  # fmt: skip


def write_study(folder: Path) -> None:
    """Write Snakefile, workflow, profiles and config, with two studies to edit, of a laptop and of the paper's size.
    UserError: the folder holds files of a study already, or cannot be written."""
    for name in ("Snakefile", "workflow", "profiles", "config"):
        if (folder / name).exists():
            raise UserError(f"{folder} already holds {name}: name a new folder")
    try:
        for name in COPIED:
            source, target = shipped(name), folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source, target)
    except OSError as error:
        # of a folder: (source, target, reason) of every file that could not be copied
        reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror
        raise UserError(f"{error.filename or folder}: {reason}; name a folder that can be written") from error
    for name in ("laptop", "experiments"):
        template = Path(__file__).with_name(f"own_{name}.yaml").read_text(encoding="utf-8")
        write_text(folder / f"config/{name}.yaml", template)
    if not (folder / ".gitignore").exists():
        write_text(folder / ".gitignore", "results/\nlogs/\n.snakemake/\n")
