"""Snakemake executor plugin for Google Cloud TPU pods.

Jobs run on the hosts of one pod: one host each (packed) or the whole pod, where `{resources.mpi}` starts the same
command on every host. See docs/intro.md and docs/further.md.
"""

from .executor import Executor
from .settings import ExecutorSettings, common_settings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]
