"""Project, zone, bucket and pod: from config/cloud.yaml or the environment, checked before anything starts."""

import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from trm.errors import UserError
from trm.io import write_text
from trm.study.reading import read_yaml
from trm.study.slices import Pod, parse_slice

VARIABLES = {"project": "GOOGLE_CLOUD_PROJECT", "zone": "TRM_ZONE", "bucket": "TRM_BUCKET", "pod": "TRM_POD"}
PLACEHOLDERS = {
    "project": "unset-project", "zone": "us-central2-b", "bucket": "gs://unset", "pod": "unset-pod",
}  # fmt: skip
"""What a dry run plans with until they are set."""
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
    """`cloud_settings` for a profile of Snakemake: a dry run needs none of them. So what is missing is a placeholder
    here, and `unset` says what a real run needs; commands for people get the UserError.
    """
    program = Path(sys.argv[0])
    try:
        return {"unset": "", **cloud_settings()}
    except UserError as error:
        if "snakemake" not in (program.stem, program.parent.name):
            raise
        return {"unset": f"{error}{_credentials()} (docs/cloud.md)", **PLACEHOLDERS}


def _credentials() -> str:
    """What to do if this machine has no credentials of Google Cloud; empty: it has."""
    os.environ.setdefault("GCE_METADATA_TIMEOUT", "1")  # outside Google's machines nobody answers
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        google.auth.default()
    except DefaultCredentialsError:
        return "; get credentials by `gcloud auth application-default login`"
    return ""


def profile_config(name: str, **settings: Any) -> str:
    """Write a profile's settings of the workflow into a file for its `configfile:`, and return the path.

    `--config` adds to a file, but would replace the profile's whole `config:`, and with it the bucket.
    """
    path = Path(".snakemake") / f"profile-{name}.yaml"
    write_text(path, yaml.safe_dump(settings))
    return str(path)


def cloud_settings(path: str | Path = "config/cloud.yaml") -> dict[str, str]:
    """The four settings, and `wandb` if runs report to Weights & Biases.

    The environment wins over the file. UserError: names every setting that is missing or malformed, and both places
    where it can be set.
    """
    document = (read_yaml(path) or {}) if Path(path).exists() else {}
    unknown = set(document) - {*VARIABLES, "wandb"}
    if unknown:
        raise UserError(
            f"{path}: unknown key {sorted(unknown)[0]!r}; there are {', '.join(VARIABLES)}, wandb"
        )
    wandb = os.environ.get("TRM_WANDB") or document.get("wandb")
    settings, wrong, unset = ({"wandb": "yes"} if wandb else {}), [], []
    for name, variable in VARIABLES.items():
        value = os.environ.get(variable) or document.get(name)
        shape, words = SHAPES[name]
        if not value:
            unset.append(f"{name} ({variable})")
        elif not re.fullmatch(shape, str(value)):
            wrong.append(f"{name} is {value!r}, but must be {words} (it may come from {variable})")
        else:
            settings[name] = str(value).rstrip("/")
    if wandb and "WANDB_API_KEY" not in os.environ:
        wrong.append("wandb needs WANDB_API_KEY in the environment")
    if unset:
        wrong.append(f"set {', '.join(unset)} there or in the environment")
    if wrong:
        raise UserError(f"{path}: {'; '.join(wrong)}")
    return settings


def tpu_pod(accelerator_type: str, slices: int = 1, provisioning: str = "spot") -> "TpuPod":
    """What profiles/tpu asks for, unless the command line says otherwise by options of the plugin.

    Raises:
        UserError: there is no such slice, or the number of slices is none.
    """
    given = {"accelerator-type": accelerator_type, "slices": str(slices), "provisioning": provisioning}
    for name in given:
        for option in (f"--tpu-{name}", f"--{name}"):  # of Snakemake, and of the plugin's own commands
            for word, following in zip(sys.argv, [*sys.argv[1:], ""]):
                if word == option:
                    given[name] = following
                elif word.startswith(f"{option}="):
                    given[name] = word.partition("=")[2]
    if not given["slices"].isdecimal() or int(given["slices"]) < 1:
        raise UserError(f"tpu-slices is {given['slices']}: give a number of slices, 1 or more")
    pod = Pod(parse_slice(given["accelerator-type"]), int(given["slices"]))
    return TpuPod(pod, given["provisioning"])


class TpuPod(NamedTuple):
    """A pod and how it is paid for."""

    pod: Pod
    provisioning: str
    """spot, on-demand or reserved."""

    @property
    def settings(self) -> dict[str, Any]:
        """What the workflow has to know, for `profile_config`."""
        pricing = "spot" if self.provisioning == "spot" else "on-demand"
        return {"tpu_slice": self.pod.slice.name, "tpu_slices": self.pod.slices, "pricing": pricing}

    @property
    def prices(self) -> str:
        """USD per chip and hour by family, as `tpu-prices` of the plugin takes them."""
        return " ".join(f"{family}={usd}" for family, usd in tpu_prices(self.provisioning == "spot").items())


def tpu_prices(spot: bool) -> dict[str, float]:
    """USD per chip and hour by family (v4, v5litepod, ...), from the file of the plan's prices."""
    document = read_yaml("config/hardware.yaml")
    prices = {}
    for name, entry in document.items():
        if "slices" in entry:
            price = entry.get("usd_spot") if spot else None
            prices[name.partition("-")[0]] = float(entry["usd_per_device_hour"] if price is None else price)
    return prices
