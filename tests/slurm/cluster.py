"""A Slurm cluster of two nodes, and another one of one, for tests: real daemons, without root, in one folder."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path

PATIENCE = 120  # seconds, on a machine that is busy with other tests
SBIN = "/usr/sbin:/usr/local/sbin:/sbin"
PROGRAMS = (
    *("munged", "slurmctld", "slurmd", "scontrol", "sbatch", "srun", "squeue", "sinfo", "scancel"),
    *("slurmdbd", "sacctmgr", "sacct", "mariadbd", "mariadb-install-db", "mariadb"),
)
NODES = {"n0": "a100", "n1": "h100", "n2": "h100"}
"""Each node, whose host name it is, and the model of its GPUs; the last one is the other cluster's."""
DEVICES = ("null", "zero", "full", "random")
"""Stand-ins for GPUs: one device file each."""

CONFIGURATION = """\
ClusterName={cluster}
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld-{cluster}.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldParameters=enable_configless
StateSaveLocation={state}
SlurmdSpoolDir={folder}/spool/%n
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
SlurmdTimeout=10
MessageTimeout=5
MinJobAge=300
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
NodeName=DEFAULT CPUs=8 RealMemory=64000 State=UNKNOWN
{nodes}
PartitionName=gpu Nodes={names} Default=YES MaxTime=4:00:00 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=urgent Nodes={names} MaxTime=4:00:00 State=UP PriorityTier=2 PreemptMode=OFF Hidden=YES
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={records_port}
AccountingStoragePass={folder}/munge/socket
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
"""
RECORDER = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=records
"""


def missing_program() -> str | None:
    """The first program of Slurm that is not installed, or None."""
    path = f"{os.environ.get('PATH', '')}:{SBIN}"
    return next((name for name in PROGRAMS if shutil.which(name, path=path) is None), None)


def reserve_ports(count: int) -> tuple[socket.socket, list[int]]:
    """Free ports that follow one another, and the socket that keeps them from other clusters until it is closed.

    They are none of those that the system gives to any program that connects: a daemon may start late, or again.
    """
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    every = range(2_000, 65_000, count + 1)
    firsts = [first for first in every if first + count < low or first > high] or [*every]
    for first in random.sample(firsts, len(firsts)):
        ports = [*range(first + 1, first + 1 + count)]
        with suppress(OSError):  # somebody has one of them
            kept = socket.create_server(("127.0.0.1", first))
            try:
                for port in ports:
                    with socket.socket() as probe:
                        probe.bind(("", port))
            except OSError:
                kept.close()
                raise
            return kept, ports
    raise AssertionError(f"no {count} free ports follow one another")


class Cluster:
    """Two nodes of 8 CPUs, 64 GB and 4 (fake) GPUs each; partition `gpu`, and the hidden `urgent`, which preempts it.

    `start_other` starts a cluster of one node. slurmdbd and MariaDB keep records. `folder`: an empty one.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._nodes = [*NODES][:2]
        self._host = socket.gethostname().partition(".")[0]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("munge", "test", "other", *(f"spool/{node}" for node in NODES)):
            (folder / name).mkdir(parents=True)
        (folder / "munge").chmod(0o700)
        key = folder / "munge/key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        program = shutil.which("slurmctld", path=f"{os.environ['PATH']}:{SBIN}") or ""
        self.version = subprocess.run(
            [program, "-V"], capture_output=True, text=True, check=True
        ).stdout.split()[-1]
        self._names = {"folder": folder, "host": self._host, "user": self.user}
        self._reserved, (self._port, self._database_port, *ports) = reserve_ports(7)
        self.configuration = self._configuration("test", self._nodes, ports[:3])
        self.other = self._configuration("other", [*NODES][2:], ports[3:])
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))},
            "SLURM_CONF": str(self.configuration),
            "PATH": f"{os.environ['PATH']}:{SBIN}",
        }

    def _configuration(self, cluster: str, nodes: list[str], ports: list[int]) -> Path:
        """Write the configuration of a cluster; `ports` are its controller's and its nodes'."""
        state = self.folder / cluster
        port, *ports = ports
        lines = [
            f"NodeName={node} NodeHostname={node} NodeAddr=127.0.0.1 Port={port} Gres=gpu:{NODES[node]}:{len(DEVICES)}"
            + (" Feature=ib" if NODES[node] == "h100" else "")
            for node, port in zip(nodes, ports, strict=True)
        ]
        own = {"cluster": cluster, "state": state, "controller_port": port, "records_port": self._port}
        text = CONFIGURATION.format(**self._names, **own, nodes="\n".join(lines), names=",".join(nodes))
        (state / "slurm.conf").write_text(text)
        if not self.version.startswith("22."):  # a later slurmd looks for cgroups
            (state / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        files = ",".join(f"/dev/{device}" for device in DEVICES)
        gpus = [f"NodeName={node} Name=gpu Type={NODES[node]} File={files}\n" for node in nodes]
        (state / "gres.conf").write_text("".join(gpus))
        return state / "slurm.conf"

    def start(self) -> None:
        """Start all daemons and wait until the nodes take jobs."""
        munge = self.folder / "munge"
        options = [f"--{name}-file={munge / name}" for name in ("key", "pid", "log", "seed")]
        self._start("munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *options)
        self.wait(lambda: (munge / "socket").exists(), "munged did not start")
        self._start_records()
        self.start_controller()
        for node in self._nodes:
            self.start_node(node)
        self.wait(lambda: not self._busy(), "the nodes did not come up")

    def start_other(self) -> Cluster:
        """Start the cluster `other`, once, and return it. This one's `SLURM_CONF` serves both."""
        if "other" not in self._processes:
            self._start("slurmctld", "-D", "-f", str(self.other), key="other")
            self.start_node("n2", self.other)
        found = copy(self)
        found._nodes = ["n2"]
        found.environment = self.environment | {"SLURM_CLUSTERS": "other"}
        self.wait(lambda: not found._busy(), "the other cluster did not come up")
        return found

    def start_node(self, node: str, configuration: Path | None = None) -> None:
        """Start a node's slurmd, with the node's name as the host's."""
        own = ("--map-current-user", "--keep-caps") if os.getuid() else ()
        command = f'hostname {node} && exec slurmd -D -N {node} -f "$0"'
        words = ("--uts", *own, "sh", "-c", command, str(configuration or self.configuration))
        self._start("unshare", *words, key=node)

    @contextmanager
    def configured(self, line: str) -> Iterator[None]:
        """Another line of slurm.conf meanwhile."""
        text = self.configuration.read_text()
        self._configure(f"{text}{line}\n")
        try:
            yield
        finally:
            self._configure(text)

    def _configure(self, text: str) -> None:
        self.configuration.write_text(text)
        self.run("scontrol", "reconfigure")

    @contextmanager
    def limited(self, limit: str) -> Iterator[None]:
        """A limit for this user meanwhile, such as `MaxSubmitJobs=1`."""
        words = ("sacctmgr", "-i", "modify", "user", self.user, "set")
        self.run(*words, limit)
        try:
            yield
        finally:
            self.run(*words, f"{limit.rpartition('=')[0]}=-1")

    def kill_node(self, node: str) -> None:
        """Kill a node's slurmd and all of its jobs' processes, as a power failure does."""
        daemon = self._processes.pop(node)
        daemon.kill()
        daemon.wait()
        for number in self._tasks(node):
            parent = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
            with suppress(OSError):  # it ended with another one
                if "slurmstepd" in Path(f"/proc/{parent}/comm").read_text():
                    os.kill(parent, signal.SIGKILL)
                os.kill(number, signal.SIGKILL)

    @contextmanager
    def frozen(self, daemon: str) -> Iterator[None]:
        """A daemon that does not answer meanwhile: `slurmctld`, or a node's slurmd."""
        self._processes[daemon].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._processes[daemon].send_signal(signal.SIGCONT)

    def process(self, daemon: str) -> int:
        """The process id of a daemon."""
        return self._processes[daemon].pid

    def kill_worker(self, node: str) -> None:
        """Kill the worker of a run that trains on a node."""
        self._kill(*(pid for pid in self._tasks(node) if "RANK=" in Path(f"/proc/{pid}/environ").read_text()))

    @staticmethod
    def _kill(*numbers: int) -> None:
        for number in numbers:
            with suppress(OSError):  # it ended meanwhile
                os.kill(number, signal.SIGKILL)

    def _tasks(self, node: str) -> list[int]:
        """Processes of this cluster's jobs on a node."""
        mine = {f"SLURMD_NODENAME={node}", f"SLURM_CONF={self.configuration}"}
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile
                if mine <= set((folder / "environ").read_text().split("\0")):
                    found.append(int(folder.name))
        return found

    def _start_records(self) -> None:
        folder = self.folder / "database"
        folder.mkdir()
        self.run(
            *("env", f"TMPDIR={folder}"),  # another server would remove its temporary tables as left over
            *("mariadb-install-db", "--no-defaults", f"--user={self.user}", f"--datadir={folder}"),
            *("--skip-test-db", "--auth-root-authentication-method=normal"),
        )
        where = f"--socket={folder}/socket"
        self._start(
            *("mariadbd", "--no-defaults", f"--user={self.user}", f"--datadir={folder}", where),
            *(f"--tmpdir={folder}", f"--pid-file={folder}/pid"),
            *("--bind-address=127.0.0.1", f"--port={self._database_port}"),
        )
        sql = "create user slurm@'%' identified by 'slurm'; grant all on records.* to slurm@'%'"
        grant = ("mariadb", "--no-defaults", "-uroot", where, "-e", sql)
        self.wait(lambda: not self._try(*grant), "the database did not start")
        path = self.configuration.with_name("slurmdbd.conf")
        numbers = {"port": self._port, "database_port": self._database_port}
        path.write_text(RECORDER.format(**self._names, **numbers))
        path.chmod(0o600)
        self._start("slurmdbd", "-D")
        self.wait(lambda: not self._try("sacctmgr", "-n", "list", "cluster"), "slurmdbd did not answer")
        for words in (("cluster", "test,other"), ("account", "lab"), ("user", self.user, "account=lab")):
            self.run("sacctmgr", "-i", "add", *words)

    def _try(self, *words: str) -> int:
        return subprocess.run(words, env=self.environment, capture_output=True, check=False).returncode

    def start_controller(self, *options: str) -> None:
        """Start slurmctld and wait until it answers."""
        self._start("slurmctld", "-D", "-f", str(self.configuration), *options)
        self.wait(lambda: "is UP" in self.run("scontrol", "ping", check=False), "slurmctld did not answer")

    def end_controller(self, by: int = signal.SIGTERM) -> None:
        """End slurmctld; after SIGTERM it saves its state."""
        process = self._processes.pop("slurmctld")
        process.send_signal(by)
        process.wait()

    def end_jobs(self) -> None:
        """End all jobs, and kill their processes, which would have half a minute."""
        self.run("scancel", "--me", check=False)
        for node in self._nodes:
            self._kill(*self._tasks(node))

    def stop(self) -> None:
        """Stop all jobs and daemons."""
        if "slurmctld" in self._processes and self._processes["slurmctld"].poll() is None:
            self.end_jobs()
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._reserved.close()

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

    def ready(self) -> None:
        """Resume the nodes after an earlier test and wait until they are idle."""
        for node in self._nodes:
            if node not in self._processes:
                self.start_node(node)
        for node in self._busy():
            self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        self.wait(lambda: not self._busy(), "the nodes are not idle")

    def _busy(self) -> list[str]:
        """Nodes that are not idle, or have not registered their GPUs: one that answers a ping counts as idle before."""
        shown = self.run("scontrol", "-o", "show", "nodes", check=False).splitlines()
        idle = [line for line in shown if " State=IDLE " in line and re.search(r" SlurmdStartTime=\d", line)]
        return [
            node for node in self._nodes if not any(line.startswith(f"NodeName={node} ") for line in idle)
        ]

    def show(self, job: str) -> dict[str, str]:
        """The properties of a job, from scontrol."""
        words = (
            self.run("scontrol", "-o", "show", "job", job).replace("gres/gpu:", "gres:gpu:").split()
        )  # 24.11, 22.05
        return dict(word.split("=", 1) for word in words if "=" in word)

    def report(self) -> str:
        """The ends of the daemons' logs, and the states of node and jobs."""
        texts = [path.read_text(errors="replace")[-2000:] for path in self.folder.glob("slurm*.log")]
        for words in (("sinfo", "-N", "-o", "%N %T %E"), ("squeue", "--states=all", "-o", "%i %T %r")):
            texts.append(self.run(*words, check=False))
        return "\n".join(texts)

    def _start(self, name: str, *options: str, key: str = "") -> None:
        program = shutil.which(name, path=self.environment["PATH"])
        with open(self.folder / f"{key or name}.out", "ab") as output:
            self._processes[key or name] = subprocess.Popen(
                [program, *options],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def check(self) -> None:
        """Fail if a daemon has ended by itself."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                said = (self.folder / f"{name}.out").read_text(errors="replace")[-2000:]
                raise AssertionError(f"{name} ended with exit code {process.returncode}:\n{said}")

    def wait(self, ready: Callable[[], object], problem: str) -> None:
        """Wait until a condition holds, which it never will without one of the daemons."""
        deadline = time.monotonic() + PATIENCE
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise AssertionError(f"{problem}:\n{self.report()}")
            time.sleep(0.2)
