"""Calls and hosts in one process: real controllers and loops over a bucket in memory and a TPU API that tests set."""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import threading
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from calls import REQUEST

from snakemake_executor_plugin_tpu import job, slice
from snakemake_executor_plugin_tpu.cloud import PodState
from snakemake_executor_plugin_tpu.control import host_code
from snakemake_executor_plugin_tpu.health import Health
from snakemake_executor_plugin_tpu.job import JobRun
from snakemake_executor_plugin_tpu.pool import Pool
from snakemake_executor_plugin_tpu.settings import ExecutorSettings
from snakemake_executor_plugin_tpu.slice import Slice
from snakemake_executor_plugin_tpu.worker import loop, runner
from snakemake_executor_plugin_tpu.worker.bucket import Bucket

KEY = bytes(32)
TIMES = {"poll": 0.001, "beat": 0.0, "log": 0.0, "look": 1e9, "silence": 60.0, "fence": 3600.0}
ARCHIVE = host_code()
CODE = hashlib.sha256(ARCHIVE).hexdigest()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


class Storage:
    """Cloud Storage; `strike` sees each upload before it happens, and may answer it by a status."""

    def __init__(self):
        self.objects, self.now, self.lock = {}, 1e9, threading.Lock()
        self.strike = lambda name: None

    def __call__(self, method, path, body, headers):
        parts = urlsplit(path)
        if method == "POST":
            mark = f"--{headers['Content-Type'].partition('boundary=')[2]}".encode()
            about, data = (part.split(b"\r\n\r\n", 1)[1][:-2] for part in body.split(mark)[1:3])
            name, wanted = json.loads(about)["name"], parse_qs(parts.query).get("ifGenerationMatch")
            if status := self.strike(name):
                return status, {}, b"emulated"
            with self.lock:
                generation = self.objects.get(name, (b"", 0))[1]
                if wanted and int(wanted[0]) != generation:
                    return 412, {}, b""
                self.objects[name] = (data, generation + 1, self.now)
            return 200, {}, json.dumps({"generation": generation + 1}).encode()
        if "/o/" not in parts.path:
            return 200, {}, b'{"location": ""}'
        if (found := self.objects.get(unquote(parts.path.partition("/o/")[2]))) is None:
            return 404, {}, b"no such object"
        data, generation, written = found
        dates = {"Date": formatdate(self.now), "Last-Modified": formatdate(written)}
        return 200, {"X-Goog-Generation": str(generation), **dates}, data

    def names(self, *ends):
        return [name for name in self.objects if name.endswith(ends)]


class Host:
    """A loop; its tasks run until the test or a `stop` ends them."""

    def __init__(self, scene, name, node, rank):
        self.scene, self.name, self.asleep = scene, f"{name}.{node}.{rank}", False
        self.root = scene.folder / self.name
        self.root.mkdir()
        orders = {"rank": rank, "node": node, "boot": "1", "times": TIMES, "key": KEY.hex(), "code": CODE}
        orders |= {"hosts": 1, "idle_seconds": 0, "end": 0, "bucket": scene.url(name)}
        with self.here():
            self.loop = loop.Loop(orders)
        self.loop.bucket.transport = scene.storage

    @contextlib.contextmanager
    def here(self):
        self.scene.here = self
        os.environ["TPU_HOST_ROOT"] = str(self.root)
        yield

    def step(self):
        with self.here():
            for task in self.running:
                if stop := loop.read_json(task.folder / "stop"):
                    self.end(143, stop["why"])
            self.loop.step()

    @property
    def running(self):
        return [task for task, host, _ in self.scene.started if host is self and not task.exit()]

    def end(self, code=0, why="exited"):
        for task in self.running:
            task.write_exit({"code": code, "why": why, "started": 0.0, "ended": 1.0})


class Scene:
    """Slices whose states the test sets in `states`, their hosts, and calls of controllers."""

    def __init__(self, folder: Path, monkeypatch):
        self.folder, self.storage = folder, Storage()
        self.states, self.asked, self.refusals, self.hosts = {}, {}, [], []
        self.started, self.beside = [], []
        """The tasks with their hosts and locks, and those that began beside another launch of their job."""
        monkeypatch.setenv("TPU_HOST_ROOT", str(folder))
        monkeypatch.setattr(runner, "start", self.start)
        monkeypatch.setattr(loop, "free_disk", lambda: 1 << 40)
        for module in (job, slice):
            monkeypatch.setattr(module, "PAUSES", (0.001, 0.001))
        monkeypatch.setattr(slice, "host_code", lambda: ARCHIVE)

    def url(self, name):
        return f"gs://bucket/.snakemake-tpu/{name}/{hashlib.sha256(KEY).hexdigest()[:12]}"

    def bucket(self, name="pod"):
        return Bucket(self.url(name), KEY, self.storage)

    def up(self, name="pod", node="n1", hosts=1):
        """Let the API have a slice that is READY, with hosts."""
        orders = {"key": KEY.hex(), "node": node, "times": dict(TIMES), "bucket": self.url(name)}
        self.states[name] = PodState("READY", "ACTIVE", incarnation=node, created_here=True, orders=orders)
        self.hosts += [Host(self, name, node, rank) for rank in range(hosts)]
        return self.hosts[-1]

    def say(self, name="pod", **state):
        """Let the API say something else of a slice."""
        self.states[name] = replace(self.states[name], **state)

    def start(self, task, spec, variables, sources):
        others = [other for other, _, _ in self.started if not other.exit()]
        self.beside += [task.name for other in others if other.name.split(".")[0] == task.name.split(".")[0]]
        (task.folder / "work").mkdir(parents=True)
        for name in ("log", "fence"):
            (task.folder / name).touch()
        (task.folder / "exit").write_bytes(bytes(512))
        alive = open(task.folder / "alive", "w")  # noqa: SIM115
        fcntl.flock(alive, fcntl.LOCK_EX)
        self.started.append((task, self.here, alive))

    @property
    def launches(self):
        return [f"{task.name} on {host.name}" for task, host, _ in self.started]

    async def go_on(self):
        """Let the hosts go on."""
        while True:
            for host in self.hosts:
                if not host.asleep:
                    host.step()
            await asyncio.sleep(0.001)

    @contextlib.asynccontextmanager
    async def playing(self):
        hosts = asyncio.ensure_future(self.go_on())
        try:
            yield
        finally:
            hosts.cancel()
            await asyncio.gather(hosts, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def call(self, **settings):
        call = Call(self, **settings)
        try:
            yield call
        finally:
            for run in call.tasks:
                run.cancel()
            await asyncio.gather(*call.tasks, return_exceptions=True)
            for one in call.pool.slices:
                await one.close(report=False)


class Call:
    def __init__(self, scene, **settings):
        usual = {"project": "p", "zone": "us-central2-b", "name": "pod", "bucket": "bucket", "create": True}
        usual |= {"idle_delete": 0, "grace": 0, "accelerator_type": "v4-8", "api_endpoint": "127.0.0.1:1"}
        self.scene, self.settings, self.lines, self.tasks = (
            scene,
            ExecutorSettings(**usual | settings),
            [],
            [],
        )
        health, folder = Health(self.lines.append), scene.folder / "call"
        self.slices = [
            Slice(one, folder, self.lines.append, health, lambda: True, scene.storage)
            for one in self.settings.of_slices()
        ]
        self.slice = self.slices[0]
        for each in self.slices:
            each.cloud.poll_seconds, each.cloud.describe = (0.001, 0.001), self.describe_of(each.name)
            each.cloud.create = self.never
        self.pool = Pool(self.slices, self.lines.append, health)

    def describe_of(self, name):
        async def describe(attempts=0.0):
            self.scene.asked[name] = self.scene.asked.get(name, 0) + 1
            if self.scene.refusals:
                raise self.scene.refusals.pop()
            return self.scene.states[name]

        return describe

    async def never(self, metadata):
        await asyncio.Event().wait()

    def run(self, slot="job", **request):
        """Start a job; return its run, and the task of its outcome."""
        wanted = replace(REQUEST, slot=slot, label=slot, **request)
        run = JobRun(wanted, self.pool, self.scene.folder / "logs" / slot, self.settings, self.lines.append)
        self.pool.runs[slot] = run
        self.tasks.append(asyncio.ensure_future(run.run()))
        return run, self.tasks[-1]

    @property
    def output(self):
        return "\n".join(self.lines)
