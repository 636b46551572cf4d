"""Google's packages, imported on first use: Snakemake imports every executor plugin at every start."""

import importlib
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError


class Lazy:
    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        try:
            module = importlib.import_module(self._name)
        except ImportError as error:
            raise WorkflowError(
                f"The tpu executor needs Google's client libraries ({error}): run `pip install google-cloud-tpu "
                "google-auth`."
            ) from None
        return getattr(module, attribute)


gx = Lazy("google.api_core.exceptions")
auth = Lazy("google.auth.exceptions")
tpu_v2 = Lazy("google.cloud.tpu_v2")
