"""A Slurm cluster of one node for tests: real munged, slurmctld and slurmd, without root, in one folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

SBIN = "/usr/sbin:/usr/local/sbin:/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sbatch", "srun", "squeue", "sinfo", "scancel")

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldParameters=enable_configless
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=64000 Gres=gpu:2 State=UNKNOWN
PartitionName=gpu Nodes={host} Default=YES MaxTime=4:00:00 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=urgent Nodes={host} MaxTime=4:00:00 State=UP PriorityTier=2 PreemptMode=OFF
"""


def missing_program() -> str | None:
    """The first program of Slurm that is not installed, or None."""
    path = f"{os.environ.get('PATH', '')}:{SBIN}"
    return next((name for name in PROGRAMS if shutil.which(name, path=path) is None), None)


def free_ports(count: int) -> list[int]:
    """Free ports of the loopback interface."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Cluster:
    """One node with 8 CPUs, 64 GB and 2 (fake) GPUs; partitions `gpu` and `urgent`, which preempts `gpu`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.host = socket.gethostname().partition(".")[0]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("munge", "state", "spool", "bin"):
            (folder / name).mkdir(parents=True)
        (folder / "munge").chmod(0o700)
        key = folder / "munge/key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        controller_port, node_port = free_ports(2)
        self.configuration = folder / "slurm.conf"
        self.configuration.write_text(
            CONFIGURATION.format(
                host=self.host,
                user=user,
                folder=folder,
                controller_port=controller_port,
                node_port=node_port,
            )
        )
        (folder / "gres.conf").write_text(f"NodeName={self.host} Name=gpu File=/dev/null,/dev/zero\n")
        # Snakemake's job step removes SLURM_CONF from srun's environment; a real cluster has /etc/slurm.
        srun = folder / "bin/srun"
        path = shutil.which("srun")
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={self.configuration} exec {path} "$@"\n')
        srun.chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))},
            "SLURM_CONF": str(self.configuration),
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}:{SBIN}",
        }

    def start(self) -> None:
        """Start all three daemons and wait until the node takes jobs."""
        munge = self.folder / "munge"
        options = [f"--{name}-file={munge / name}" for name in ("key", "pid", "log", "seed")]
        self._start("munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *options)
        self._wait(lambda: (munge / "socket").exists(), "munged did not start")
        self.start_controller()
        self._start("slurmd", "-D", "-f", str(self.configuration))
        self._wait(lambda: self.state() == "idle", "the node did not come up")

    def start_controller(self) -> None:
        """Start slurmctld and wait until it answers."""
        self._start("slurmctld", "-D", "-f", str(self.configuration))
        self._wait(lambda: "is UP" in self.run("scontrol", "ping", check=False), "slurmctld did not answer")

    def kill_controller(self) -> None:
        """Kill slurmctld."""
        process = self._processes.pop("slurmctld")
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Stop all jobs and daemons."""
        self.run("scancel", "--state=PENDING", check=False)
        self.run("scancel", "--signal=KILL", "--full", "--state=RUNNING", check=False)
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def run(self, *words: str, check: bool = True) -> str:
        """Run a command and return its output."""
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, check=False, timeout=180
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(words)}: {done.stderr or done.stdout}")
        return done.stdout.strip()

    def jobs(self) -> dict[str, str]:
        """The state of every known job by its id."""
        lines = self.run("squeue", "-h", "--states=all", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def steps(self, job: str) -> list[Path]:
        """Sockets of the job's running steps, including the batch script."""
        return list((self.folder / "spool").glob(f"*_{job}.*"))

    def ready(self) -> None:
        """Resume the node after an earlier test and wait until it is idle."""
        if self.state() != "idle":
            self.run("scontrol", "update", f"nodename={self.host}", "state=resume", check=False)
        self._wait(lambda: self.state() == "idle", "the node is not idle")

    def state(self) -> str:
        """The state of the node, such as `idle`, `mixed` or `drained`."""
        return self.run("sinfo", "-h", "-p", "gpu", "-o", "%T")

    def show(self, job: str) -> dict[str, str]:
        """The properties of a job, from scontrol."""
        words = self.run("scontrol", "-o", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def report(self) -> str:
        """The ends of the daemons' logs, and the states of node and jobs."""
        texts = [path.read_text(errors="replace")[-2000:] for path in self.folder.glob("slurm*.log")]
        for words in (("sinfo", "-N", "-o", "%N %T %E"), ("squeue", "--states=all", "-o", "%i %T %r")):
            texts.append(self.run(*words, check=False))
        return "\n".join(texts)

    def _start(self, name: str, *options: str) -> None:
        program = shutil.which(name, path=self.environment["PATH"])
        with open(self.folder / f"{name}.out", "ab") as output:
            self._processes[name] = subprocess.Popen(
                [program, *options],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _wait(self, ready, problem: str) -> None:
        deadline = time.monotonic() + 180
        while not ready():
            if time.monotonic() > deadline:
                raise AssertionError(f"{problem}:\n{self.report()}")
            time.sleep(0.05)
