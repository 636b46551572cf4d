"""What `executor.py` uses of snakemake-executor-plugin-slurm: private names, which any release may change."""

from importlib.metadata import version
from inspect import signature
from types import ModuleType
from typing import Any

from trm.errors import UserError

PACKAGE, WANTED = "snakemake-executor-plugin-slurm", ">=2.8,<2.9"
FUNCTIONS = {
    "get_job_wildcards": "job",
    "pending_jobs_for_rule": "dag rule_name",
    "Executor.__init__": "self workflow logger",
    "Executor.__post_init__": "self test_mode",
    "Executor._report_job_error_threadsafe": "self job_info msg",
    "Executor._report_job_submission_threadsafe": "self job_info",
    "Executor.cancel": "self",
    "Executor.cancel_jobs": "self active_jobs",
    "Executor.check_active_jobs": "self active_jobs",
    "Executor.get_account_arg": "self job",
    "Executor.run_array_jobs": "self jobs",
    "Executor.run_job": "self job",
    "Executor.shutdown": "self",
}
"""Parameters of each function."""
ATTRIBUTES = ("_fallback_partition", "_submitted_job_clusters", "max_array_size", "run_uuid", "slurm_logdir")
"""What `Executor.__post_init__` sets."""


def check_contract(plugin: ModuleType) -> None:
    """Compare the installed plugin with what is used of it. UserError: one sentence."""
    differ = [
        name for name, parameters in FUNCTIONS.items() if _parameters(plugin, name) != parameters.split()
    ]
    if not differ:
        differ = sorted({*ATTRIBUTES} - {*plugin.Executor.__post_init__.__code__.co_names})
    if differ:
        raise UserError(
            f"{PACKAGE} {version(PACKAGE)} does not fit: {differ[0]}, which this project uses, differs: "
            f"pip install '{PACKAGE}{WANTED}'"
        )


def _parameters(plugin: ModuleType, name: str) -> list[str] | None:
    found: Any = plugin
    for part in name.split("."):
        found = getattr(found, part, None)
    return list(signature(found).parameters) if found else None
