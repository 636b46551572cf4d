"""What snakemake-executor-plugin-slurm 2.8.0 does with its jobs while Slurm does not answer. Needs no Slurm.

python docs/upstream/outage.py     # prints 0 of 2: both jobs are forgotten; 2 of 2 with the patch in this folder
"""

import asyncio
import logging
from types import SimpleNamespace

import snakemake_executor_plugin_slurm as plugin
from throttler import Throttler


async def no_answer(command, logger):
    """squeue or sacct while slurmctld is away."""
    return None, None


async def main():
    """Look once at two running jobs."""
    plugin.query_job_status = no_answer
    executor = object.__new__(plugin.Executor)
    settings = SimpleNamespace(
        init_seconds_before_status_checks=1, status_attempts=2, status_command="squeue"
    )
    executor.workflow = SimpleNamespace(executor_settings=settings)
    executor.logger, executor.run_uuid = logging.getLogger(), "study"
    executor.status_rate_limiter = Throttler(rate_limit=100, period=1)
    executor._status_query_failures = executor._status_query_calls = 0
    executor._next_seconds_between_status_checks = 1
    jobs = [SimpleNamespace(external_jobid=number, aux={}) for number in ("1", "2")]
    kept = [job async for job in executor.check_active_jobs(jobs)]
    print(f"{len(kept)} of {len(jobs)} jobs are still watched")


asyncio.run(main())
