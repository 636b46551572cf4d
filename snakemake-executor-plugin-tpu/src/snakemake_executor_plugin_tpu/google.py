"""Google's packages, imported on first use: Snakemake imports every executor plugin at every start."""

import importlib
from types import ModuleType
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError


class Lazy:
    """A module that is imported on first use."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(load(self._name), attribute)


def load(name: str) -> ModuleType:
    """Import a module of Google's packages.

    Raises:
        WorkflowError: the package is missing.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise WorkflowError(
            f"The tpu executor needs Google's client libraries ({error}): run `pip install google-cloud-tpu "
            "google-auth`."
        ) from None


gx = Lazy("google.api_core.exceptions")
auth = Lazy("google.auth.exceptions")
