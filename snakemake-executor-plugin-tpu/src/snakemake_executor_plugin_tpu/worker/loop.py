"""The loop of a host: it reads its assignment from the bucket, runs it, and writes heartbeats, logs and the verdict.

A tick tries each operation once and may end anywhere: the next one, or the next loop, goes on from the local files and
the bucket. Nothing of a launch runs before its `start` object exists, and a launch ends by its `verdict` object: who
creates it first (this host, or a controller that gives the launch up) decides.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import files, runner
from .bucket import Bucket, Document, Forged, Lost, Offline, Refused, sign, unseal
from .files import LEAST_DISK, Task, free_disk, make_ballast, read_json, read_line, root, write_json
from .idle import Idle
from .tpurun import rank_variables

CHUNK = 256 << 10
CHUNKS = (
    8  # of the log in a tick, so that heartbeats go on beside a job that prints faster than it is uploaded
)
TAIL_LINES = 20
RESTARTED: Document = {"code": None, "why": "restarted"}
BUILD_PAUSES = (5.0, 600.0)


def folder_of(setup: Document) -> Path:
    """Return the folder of the jobs' environment."""
    return root() / "environments" / str(setup["name"])


class Builder:
    """Makes the jobs' environment (environment.py) in a process of its own, again after growing pauses if it fails."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.name, self.state, self.pause, self.again_at = "", "", BUILD_PAUSES[0], 0.0
        self.outdated = False  # what is being built is not wanted any more

    def step(self, setup: Document, bucket: Bucket) -> None:
        """Bring the environment nearer to what the assignment names."""
        wanted = setup["name"]
        if wanted != self.name:
            self.name, self.state, self.again_at = wanted, "", 0.0
            self.outdated = self.process is not None
        if self.process is not None and self.process.poll() is not None:
            failed = self.process.returncode and not self.outdated
            self.process, self.outdated = None, False
            self.state = "failed" if failed else ""
            self.pause = min(2 * self.pause, BUILD_PAUSES[1]) if failed else BUILD_PAUSES[0]
            self.again_at = time.monotonic() + self.pause if failed else 0.0
        if not wanted or (folder_of(setup) / "complete").exists():
            self.state = "ready"
        elif self.process is None and time.monotonic() >= self.again_at:
            request = {"name": wanted, "lock": bucket.content("sources", setup["lock"]).decode()}
            self._start({**request, "python": setup["python"]})

    def _start(self, request: Document) -> None:
        argv = [sys.executable, "-m", f"{runner.PACKAGE}.worker.environment"]
        environment = {**os.environ, "PYTHONPATH": str(runner.CODE)}
        with open(root() / "environment.log", "wb") as log:
            self.process = subprocess.Popen(
                argv, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        assert self.process.stdin
        with self.process.stdin as pipe:
            pipe.write(json.dumps(request).encode())
        self.state = "building"

    def about(self) -> Document:
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = (root() / "environment.log").read_text(errors="replace").strip().splitlines()
        count = 12 if self.state == "failed" else 1
        lines = [] if self.state == "ready" else lines[-count:]
        return {"name": self.name, "state": self.state, "lines": lines}

    def end(self) -> None:
        if self.process is not None:
            self.process.terminate()


class Loop:
    """What one host does. `orders` are from the node's metadata (`snakemake-tpu`) and about the host itself."""

    def __init__(self, orders: Document) -> None:
        self.orders, self.rank = orders, int(orders["rank"])
        self.incarnation = f"{orders['node']}.{orders['boot']}"
        self.times: dict[str, float] = orders["times"]
        self.key = bytes.fromhex(orders["key"])
        self.bucket = Bucket(orders["bucket"], self.key)
        self.state = root() / "state"
        self.state.mkdir(parents=True, exist_ok=True)
        self.current: Document | None = read_json(self.state / "current")
        self.done, self.seen = read_json(self.state / "done"), read_json(self.state / "seen", 0)
        self.assignment: Document = {}
        self.builder = Builder()
        self.told: tuple[Any, float] = (None, float("-inf"))
        self.logged_at = 0.0
        self.busy_at = self.moved_at = time.monotonic()
        self.progress: str | None = None
        self.error, self.trouble, self.shutting_down = "", "", False
        self.idle = Idle(orders, self.bucket)

    # ---- the ticks

    def forever(self) -> None:
        signal.signal(signal.SIGTERM, self._on_sigterm)
        while True:
            self.step()
            time.sleep(self.times["poll"])

    def step(self) -> None:
        """Do a tick. What goes wrong is printed, and the heartbeat tells of it."""
        last, self.error, self.trouble = self.error, "", ""
        try:
            self.tick()
        except (OSError, Forged, Refused) as problem:  # Offline is an OSError
            self.moved_at = time.monotonic()  # without the bucket there is no progress
            self.error = f"{type(problem).__name__}: {problem}"
            if self.error != last:
                print(time.strftime("%F %T"), self.error, flush=True)
            if not isinstance(problem, Offline):
                self.trouble = self.error
                with contextlib.suppress(OSError, Refused):
                    self._beat()  # which the tick may not have reached

    def _on_sigterm(self, *_: Any) -> None:
        """The host is shut down, as at the beginning of a preemption: end the job while there is time."""
        self.shutting_down = True
        self.builder.end()

    def tick(self) -> None:
        if self.current is None and not self.shutting_down:
            self._look()
            if self.current is None and free_disk() < LEAST_DISK:
                Task.prune(set())
            if self.assignment:
                self.builder.step(self.assignment["setup"], self.bucket)
        if self.current is not None:
            self.busy_at = time.monotonic()
            self._follow(self.current)
        self._beat()
        if self.current and self.task.folder.is_dir():
            os.utime(self.task.folder / "fence")
        idle = None if self.current else time.monotonic() - self.busy_at
        if why := self.idle.step(idle, self.current):
            self.bucket.create(self._path("stop"), {"why": why})

    # ---- the assignment

    @property
    def task(self) -> Task:
        assert self.current
        run = f".{self.current['run']}" if self.current["index"] else ""
        return Task(f"{self.current['job']}.{self.current['launch']}{run}")

    def _path(self, name: str) -> str:
        assert self.current
        return f"jobs/{self.current['job']}/{self.current['launch']}/{name}"

    def _save(self) -> None:
        write_json(self.state / "current", self.current)

    def _look(self) -> None:
        found = self.bucket.read(f"hosts/{self.rank}/assignment")
        # An old one, or one of an earlier node, may have been written again by somebody without the key.
        if found is None or found["seq"] < self.seen or found["node"] != self.orders["node"]:
            return
        if found["seq"] != self.seen:
            self.seen = found["seq"]
            write_json(self.state / "seen", self.seen)
        self.assignment = found
        if found["job"] and [found["job"], found["launch"]] != self.done:
            self.current = {**found, "index": found["hosts"].index(self.rank), "run": 1, "chunks": 0}
            self.progress, self.moved_at = None, time.monotonic()
            self._save()
        elif found["code"] != self.orders["code"]:
            # A controller of another version: the bootstrap fetches its loop and starts it.
            files.write_text(root() / "wanted", found["code"])
            sys.exit(0)

    def _finish(self) -> None:
        assert self.current
        self.done = [self.current["job"], self.current["launch"]]
        write_json(self.state / "done", self.done)
        (self.state / "current").unlink(missing_ok=True)
        self.current = None

    def _follow(self, current: Document) -> None:
        """Do what is due for the current launch."""
        task, state = self.task, self.task.state()
        if state == "vanished":
            # First: without their runner they have no fence, and a verdict frees the chips.
            runner.end_orphans(task)
        stop = self.bucket.read(self._path("stop"))
        if state == "running":
            stop = stop or self._why_stop(current, task)
            if stop and not (task.folder / "stop").exists():
                write_json(task.folder / "stop", {"grace": current["grace"], **stop})
        if state != "absent" and not self._upload(current, task, last=state != "running"):
            return
        if current["index"]:
            self._follow_rank(current, task, state, stop)
        elif state == "absent":
            self._begin(current, task, stop)
        elif state != "running":
            self._verdict(current, task, task.exit() or RESTARTED)

    def _begin(self, current: Document, task: Task, stop: "Document | None") -> None:
        if stop:
            self._verdict(current, task, {"code": None, "why": stop["why"]})
        elif self.bucket.create(self._path("start"), {"host": self.rank, "incarnation": self.incarnation})[1]:
            self._start(current, task, current, {})
        else:
            self._verdict(current, task, RESTARTED)

    def _follow_rank(self, current: Document, task: Task, state: str, stop: "Document | None") -> None:
        run = f"runs/{current['run']}"
        if state == "absent":
            if stop:
                self._finish()
                return
            if (wanted := self.bucket.read(self._path(run))) is None:
                return
            started = {"incarnation": self.incarnation}
            if self.bucket.create(self._path(f"{run}/start-{current['index']}"), started)[1]:
                size = len(current["hosts"])
                variables = rank_variables(current["index"], size, wanted["address"], wanted["port"])
                self._start(current, task, wanted, {**unseal(self.key, wanted), **variables})
                return
            state = "vanished"
        if state != "running":
            end = task.exit() or RESTARTED
            told = {"rank": current["index"], "host": self.rank, "tail": task.tail(TAIL_LINES), **end}
            self.bucket.create(self._path(f"{run}/exit-{current['index']}"), told)
            if end["code"] != 0:
                self.bucket.create(self._path(f"{run}/end"), told)
            current["run"] += 1
            self._save()

    def _start(self, current: Document, task: Task, command: Document, more: dict[str, str]) -> None:
        """Start the command of the assignment, or of `tpurun` on another host."""
        folder = folder_of(current["setup"]) if current["setup"]["name"] else None
        sources = self.bucket.content("sources", current["sources"]) if current["sources"] else None
        python = f"{folder}/bin/python" if folder else current["python"]
        variables = {
            **{"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", "TPU_PYTHON": python},
            **{"TPU_JOB": current["job"], "TPU_LAUNCH": str(current["launch"])},
            **{"TPURUN_SIZE": str(len(current["hosts"])), "TPURUN_RUNS": self._path("runs")},
            **{"TPURUN_GRACE": str(current["grace"]), "TPURUN_PATIENCE": str(current["lease"] or 1e9)},
            **unseal(self.key, current),
            **more,
        }
        runtime = 0 if current["index"] else current["runtime"]
        spec = {"argv": command["argv"], "directory": command.get("directory", ".")}
        spec["path"] = [f"{folder}/bin"] if folder else []
        spec |= {"runtime": runtime, "grace": current["grace"], "fence": self.times["fence"]}
        Task.prune({task.name})
        make_ballast()  # an earlier launch may have used it up
        runner.start(task, spec, variables, sources)

    def _why_stop(self, current: Document, task: Task) -> "Document | None":
        """Return why a running task has to end now; the first host creates the stop of a whole launch."""
        if self.shutting_down:
            return {"why": "shutdown"}
        if current["index"]:
            end = self.bucket.read(self._path(f"runs/{current['run']}/end"))
            return {"why": f"rank {end['rank']} failed"} if end else None
        if (progress := read_line(task.folder / "progress")) != self.progress:
            self.progress, self.moved_at = progress, time.monotonic()
        limit = current["stall"] if progress or current["reports"] else 0
        if limit and time.monotonic() - self.moved_at > limit:
            frozen = 5 * self.times["poll"] if len(current["hosts"]) > 1 else 0.1
            return self.bucket.create(self._path("stop"), {"why": "stalled", "stacks": frozen})[0]
        return None

    def _verdict(self, current: Document, task: Task, end: Document) -> None:
        """Decide the launch, after its other hosts have been told to stop."""
        about = {"host": self.rank, "incarnation": self.incarnation, "tail": task.tail(TAIL_LINES)}
        about["progress"] = read_line(task.folder / "progress")
        if end["why"] == "again":
            about["about"] = read_line(task.folder / "again")
        if len(current["hosts"]) > 1:
            self.bucket.create(self._path("stop"), {"why": "ended"})
            number = len(list(task.folder.glob("run-*")))
            if end["code"] and number and (failed := self.bucket.read(self._path(f"runs/{number}/end"))):
                about |= {key: failed[key] for key in ("rank", "host", "tail") if key in failed}
        found, ours = self.bucket.create(self._path("verdict"), {**about, **end})
        if not ours:
            print(f"{self._path('')} was decided by another: {found['why']}", flush=True)
        self._finish()

    # ---- what is written often

    def _upload(self, current: Document, task: Task, last: bool) -> bool:
        """Add chunks of the log. Each is created once, so a loop that has lost count finds what is there.

        Returns False if the task has ended and some of its log is left for the next tick.
        """
        if not last and time.monotonic() - self.logged_at < self.times["log"]:
            return True
        self.logged_at = time.monotonic()
        # What a rank printed in each run of tpurun follows in the same numbering.
        sent: int = read_json(task.folder / "sent", 0)
        with contextlib.suppress(FileNotFoundError), open(task.folder / "log", "rb") as log:
            for _ in range(CHUNKS):
                log.seek(sent)
                if not (data := log.read(CHUNK)):
                    return True
                number = current["chunks"] + 1
                name = self._path(f"log-{current['index']}/{number:06d}")
                try:
                    self.bucket.put(name, data, 0)
                except Lost:
                    found = self.bucket.get(name)
                    data = found.data if found else data
                sent += len(data)
                write_json(task.folder / "sent", sent)
                current["chunks"] = number
                self._save()
            return not last
        return True

    def _beat(self) -> None:
        now, task = time.monotonic(), self.task if self.current else None
        current = self.current or {"job": None, "launch": 0, "chunks": 0}
        state: Document = {
            "node": self.orders["node"],
            "seen": self.seen,
            "done": self.done,
            "job": [current["job"], current["launch"]] if self.current else None,
            "chunks": current["chunks"],
            "progress": read_line(task.folder / "progress") if task else None,
            "environment": self.builder.about(),
            "guard": self.idle.about(),
            "shutdown": self.shutting_down,
            "code": self.orders["code"],
        }
        told, told_at = self.told
        # At most one write per second and object.
        if now - told_at < (self.times["beat"] if state == told else min(1.0, self.times["beat"])):
            return
        changing = {"idle": now - self.busy_at, **machine()}
        changing |= {"status": read_line(task.folder / "status") if task else None, "error": self.trouble}
        name = f"hosts/{self.rank}/beat"
        self.bucket.put(name, sign(self.key, name, {**state, **changing}))
        self.told = (state, now)


def machine() -> Document:
    """Return load, processors, memory and free disk of this host, in bytes."""
    found: Document = {"load": os.getloadavg()[0], "cpus": os.cpu_count() or 1, "disk_free": free_disk()}
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        found["memory"], found["memory_free"] = (
            int(lines[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable")
        )
    return found


def main() -> int:
    Loop(read_json(root() / "orders.json")).forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
