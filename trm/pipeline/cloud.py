"""Project, zone, bucket and pod: from config/cloud.yaml or the environment, checked before anything starts."""

from __future__ import annotations

import os
import re
from pathlib import Path

import yaml

from trm.errors import UserError

VARIABLES = {"project": "GOOGLE_CLOUD_PROJECT", "zone": "TRM_ZONE", "bucket": "TRM_BUCKET", "pod": "TRM_POD"}
SHAPES = {
    "project": (r"[a-z][a-z0-9-]{4,28}[a-z0-9]", "6 to 30 lower-case letters, digits and dashes"),
    "zone": (r"[a-z]+-[a-z]+\d+-[a-z]", "a zone such as us-central2-b"),
    "bucket": (
        r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9._/-]*)?",
        "gs://bucket or gs://bucket/prefix",
    ),
    "pod": (r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", "lower-case letters, digits and dashes"),
}


def profile_settings() -> dict[str, str]:
    """`cloud_settings` for a profile, which Snakemake evaluates while it parses its options: an error there would be
    the last of 140 lines of usage, so this ends the process with the sentence alone."""
    try:
        return cloud_settings()
    except UserError as error:
        raise SystemExit(f"profile: {error}") from None


def cloud_settings(path: str | Path = "config/cloud.yaml") -> dict[str, str]:
    """The four settings; the environment wins over the file.

    Raises:
        UserError: names the first setting that is missing or malformed, and both places where it can be set.
    """
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        document = {}
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    unknown = set(document) - set(VARIABLES)
    if unknown:
        raise UserError(f"{path}: unknown key {sorted(unknown)[0]!r}; there are {', '.join(VARIABLES)}")
    settings = {}
    for name, variable in VARIABLES.items():
        value = os.environ.get(variable) or document.get(name)
        shape, words = SHAPES[name]
        if not value:
            raise UserError(f"{path}: {name} is not set: write it there, or set {variable}")
        if not re.fullmatch(shape, str(value)):
            raise UserError(f"{path}: {name} is {value!r}, but must be {words} (it may come from {variable})")
        settings[name] = str(value).rstrip("/")
    return settings
