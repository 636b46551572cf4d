"""Snakemake's `config`, parsed once: what the profile and `--config` say about a study."""

import re
import shlex
import sys
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from trm.errors import UserError
from trm.storage.base import is_remote
from trm.study.merge import nearest
from trm.study.reading import error_sentence, parse_yaml
from trm.study.schema import Count
from trm.study.slices import Slice, parse_slice

EVENTS = "TRM_EVENTS"
"""Environment variable with the path of the file through which Snakemake's process tells the console what happens."""
OVERRIDE = re.compile(r"[\s,]+(?=[A-Za-z_]\w*(?:\.\w+)+\s*=)")
"""Separates two overrides in one text; a comma inside a value is not followed by `section.key=`."""


class Settings(BaseModel):
    """Keys of Snakemake's `config` that the pipeline reads. Variables of the study (`$name`) come beside them."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    study: str = "config/experiments.yaml"
    """The study's file."""
    scale: str = ""
    """Key under `scales` of the study; empty: its first one."""
    experiments: str = "report"
    """`report`, `study`, or names and patterns of experiments separated by commas."""
    point: str = ""
    """Label, or value in a label, of the one grid point that experiments given as targets run."""
    set: dict[str, Any] = {}
    """Overrides of every run by dotted key; part of the identity, except `runtime.*`."""
    logs: Annotated[str, Field(min_length=1)] = "logs"
    """Folder of the jobs' logs."""
    storage_prefix: str = ""
    """gs://bucket/prefix or s3://bucket/prefix of data sets, runs and checkpoints; empty: this disk."""
    unset: str = ""
    """What the profile's cloud settings lack; a dry run plans without it, as if the bucket were empty."""
    hardware: str = "config/hardware.yaml"
    """File with the speed and price of each machine, used for cost estimates."""
    budget_hours: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Device-hours for which the plan lists what they buy."""
    grant_days: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Days of a grant for which the plan lists what fits, in the order of the study's phases."""
    pricing: Literal["on-demand", "spot", "grant"] = "on-demand"
    """How the machine is paid for: the plan's prices."""
    preflight: Literal["", "local", "gpu", "tpu"] = ""
    """Profile of the check that every host passes before the first job; empty: none."""
    pod: str = ""
    """Name of the TPU pod."""
    tpu_slice: str = ""
    """TPU slice of the pod, such as v4-64, from which hosts, chips and price follow; empty: that of
    config/hardware.yaml."""
    tpu_slices: Count = 1
    """Slices of the pod, all alike."""
    pod_hosts: Count | None = None
    """Hosts of one slice, where an emulated one has others than its name says."""
    whole_pod: str = ""
    """Pattern of the names of runs that take all hosts."""
    backend: Literal["", "cpu", "cuda", "xla"] = ""
    """Backend that every job must use; empty: the best of the machine's."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs of a training or evaluation job, for each of its workers."""
    workers: Count = 1
    """Processes, one on each GPU, that share each batch of a run on one machine; a run whose batch they cannot share
    equally takes fewer. `placement.workers` of the study comes first."""
    nodes: Count = 1
    """Slurm nodes over which the workers of a run are spread equally; a run whose workers they do not divide takes
    fewer."""
    max_runtime: Annotated[int, Field(ge=0)] = 0
    """Longest job in minutes; a longer run stops before that with a checkpoint, and another job resumes it. 0: no
    limit."""
    lost_minutes: Annotated[float, Field(gt=0)] = 10.0
    """Minutes after which a job that Slurm does not know and whose log does not grow counts as lost."""
    container: str = ""
    """Image in which jobs run with `--sdm apptainer`, built from the Dockerfile (docs/cluster.md)."""
    xla_python: str = ""
    """Interpreter with torch_xla, for experiments that compare backends on this machine."""

    @property
    def slice(self) -> Slice | None:
        return parse_slice(self.tpu_slice) if self.tpu_slice else None

    @field_validator("tpu_slice")
    @classmethod
    def _known_slice(cls, value: str) -> str:
        return parse_slice(value).name if value else ""

    @field_validator("set", mode="before")
    @classmethod
    def _overrides(cls, value: Any) -> dict[str, Any]:
        return parse_overrides(value)

    @field_validator("logs", "storage_prefix")
    @classmethod
    def _without_slash(cls, value: str) -> str:
        return value.rstrip("/")

    @field_validator("storage_prefix")
    @classmethod
    def _in_a_bucket(cls, value: str) -> str:
        if value and not is_remote(value):
            raise UserError(
                f"storage_prefix: {value} is a path: write gs://bucket/prefix or s3://bucket/prefix"
            )
        return value


def split(config: dict[str, Any]) -> tuple[Settings, dict[str, str]]:
    """The pipeline's own settings, and the other keys, which should be variables of the study. UserError: a value out
    of range."""
    _refuse_comments(config)
    given = {key: value for key, value in config.items() if value not in (None, "")}
    own = {key: value for key, value in given.items() if key in Settings.model_fields}
    try:
        settings = Settings.model_validate(own)
    except ValidationError as error:
        raise UserError(f"--config {error_sentence(error, Settings)}") from error
    return settings, {key: str(value) for key, value in given.items() if key not in own}


def _refuse_comments(config: dict[str, Any]) -> None:
    """Refuse a `--config` of the command line that Snakemake has cut at a comment (UserError)."""
    for key, _, text in (word.partition("=") for word in sys.argv):
        kept, sign, _ = text.strip("'\"").partition(" #")
        if sign and str(config.get(key)) == kept.strip():
            raise UserError(
                f"--config {key}: Snakemake reads only {kept!r}, as a comment begins at ' #': rename the file, or give "
                "it in a YAML file with --configfile"
            )


def check_keys(rest: Iterable[str], variables: Iterable[str]) -> None:
    """Refuse a key of Snakemake's config that is neither a setting nor a variable of the study (UserError)."""
    known = sorted({*Settings.model_fields, *variables})
    for key in rest:
        if key not in known:
            raise UserError(
                f"--config {key}: unknown key{nearest(key, known)}; config/README.md lists all keys"
            )


def parse_overrides(value: Any) -> dict[str, Any]:
    """`set` of Snakemake's config or `--set`: a mapping, or `key=value` texts separated by spaces or commas.

    Values are read as YAML, so 1e-3 is a number and [1, 2] a list.
    """
    if not value:
        return {}
    if isinstance(value, dict):
        _refuse_numbers_as_text(value)
        return value
    texts = [str(text).strip() for text in (value if isinstance(value, list) else [value])]
    overrides = {}
    for pair in (pair for text in texts for pair in OVERRIDE.split(text)):
        key, sign, text = str(pair).partition("=")
        if not sign:
            raise UserError(f"--set {pair}: must be key=value, such as training.steps=1000")
        overrides[key.strip()] = parse_yaml(text, f"--set {key.strip()}")
    return overrides


def _refuse_numbers_as_text(overrides: dict[str, Any]) -> None:
    """Refuse a mapping of the command line, whose numbers Snakemake reads as text (UserError)."""
    flat: dict[str, Any] = {}
    for key, value in overrides.items():
        flat |= (
            {f"{key}.{name}": item for name, item in value.items()}
            if isinstance(value, dict)
            else {key: value}
        )
    if any(
        isinstance(item, str) and not isinstance(parse_yaml(item, "--set"), str) for item in flat.values()
    ):
        words = " ".join(f"{key}={item}" for key, item in flat.items())
        raise UserError(
            f"--config set: Snakemake reads the numbers of a mapping as text: write set='{words}'"
        )


def options_of(config: dict[str, Any]) -> str:
    """Options by which a `trm` command sees the same study as Snakemake does with `config`, quoted for a shell."""
    words = []
    for key, value in config.items():
        if value not in (None, "", {}):
            text = " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
            words += ["--config", f"{key}={text}"]
    return shlex.join(words)
