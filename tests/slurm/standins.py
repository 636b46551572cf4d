"""Stand-ins for Snakemake's jobs, and the executor with a record of what it reports."""

import asyncio
import threading
import time
from pathlib import Path
from types import SimpleNamespace

from trm.slurm.commands import SlurmJob
from trm.slurm.executor import Executor


class Job:
    """What the executor reads of a job of rule `train`."""

    name, threads, log, restart_times, attempt = "train", 1, (), 1, 1
    rule = SimpleNamespace(name="train")

    def __init__(self, run="a", **resources):
        self.jobid, self.wildcards, self.resources, self.output = run, (run,), Resources(resources), ("none",)

    def is_group(self):
        return False


class Resources(dict):
    """Snakemake's: a dictionary whose values are attributes, too."""

    __setattr__ = dict.__setitem__

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]


class Submitting(Executor):
    """An executor whose jobs' ends are kept; `states` are Slurm's."""

    def __init__(self, folder):
        settings = {
            **{"init_seconds_before_status_checks": 0, "keep_successful_logs": True, "requeue": True},
            **dict.fromkeys(("qos", "reservation", "pass_command_as_script", "array_jobs")),
        }
        self.workflow = SimpleNamespace(
            executor_settings=SimpleNamespace(**settings),
            workdir_init=str(folder),
            scheduler=SimpleNamespace(_user_kill=None),
        )
        Executor.__init__(self, self.workflow, None)
        self.study, self.slurm_logdir = "small", folder
        self._job_submission_executor = SimpleNamespace(submit=lambda function, job: function(job))
        self.lock, self.wait, self.next_seconds_between_status_checks = threading.Lock(), True, 1e9
        say = lambda text, **rest: print(text)  # noqa: E731
        self.logger = SimpleNamespace(**dict.fromkeys(("debug", "info", "warning", "error"), say))
        self._failed_nodes, self._main_event_loop, self._partitions = set(), None, None
        self.submitted, self.failed, self.succeeded, self.states = {}, [], [], {}

    def report_job_submission(self, info):
        self.submitted[info.job.jobid] = info.external_jobid

    def report_job_error(self, info, msg, **rest):
        self.failed.append((info.job.jobid, msg))

    def report_job_success(self, info):
        self.succeeded.append(info.job.jobid)

    async def _states(self, jobs):
        return {job: self.states[job.number] for job in jobs if job.number in self.states}

    def look(self, *infos):
        """Jobs that go on."""

        async def look():
            return [info async for info in self.check_active_jobs(infos)]

        return asyncio.run(look())


def submitted(number="7"):
    aux = {"slurm": SlurmJob("", number, "small.train.a"), "slurm_logfile": Path("log"), "since": time.time()}
    return SimpleNamespace(job=Job(), external_jobid=number, aux=aux)
