"""One slice: it is found or created, driven while it lives, and created again if the API says that it is lost.

Trouble of a slice is no failure of a job: jobs wait while it is brought up again and again. It is final if no slice has
been up in this call, or after an hour.
"""

import asyncio
import contextlib
import hashlib
import json
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .allocation import slice_of
from .capacity import Capacity
from .cloud import ORDERS, PodState, TpuCloud
from .control import Control, Taken, host_code
from .driver import end
from .errors import DOWN, CloudError, DeletedByUser, Offline, PodError, red
from .google import storage_transport
from .guarding import guard_in_words, guard_trouble, may_exist, remaining
from .health import SUSPECTS, Health, Place
from .settings import ExecutorSettings
from .worker.bucket import Bucket, Document, Forged, Refused, Transport, sign
from .worker.bucket import Offline as BucketOffline

LEAST_KEY = 32
BOOT_SECONDS = 900.0  # in which the hosts of a new slice have to write their first heartbeat
SPARE_SLICES = 2  # that replace a new one with a host that does not come up
TROUBLE_SECONDS = 3600.0
PAUSES = (5.0, 300.0)
CLOSE_SECONDS = 30.0  # in which Google has to answer at the end
ASK_SECONDS = 10.0  # between two questions to the API about a slice with a silent host
FOLDER = ".snakemake-tpu"
TRAFFIC_PRICE = 0.02  # USD per GB within a continent, https://cloud.google.com/storage/pricing#network-egress
TROUBLE = (PodError, BucketOffline, Refused, Forged)


def key_of(state: PodState, settings: ExecutorSettings) -> bytes:
    """Return the key in the node's metadata. Raises PodError if this plugin has not created the slice, or its jobs are
    in another bucket."""
    try:
        key, bucket = (
            bytes.fromhex(state.orders["key"]),
            str(state.orders["bucket"]).partition(f"/{FOLDER}/")[0],
        )
    except (KeyError, ValueError):
        raise PodError(
            f"TPU pod {settings.name} was not created by this version of the plugin: its hosts look for no jobs. Use "
            f"another tpu-name, or delete it by {DOWN}."
        ) from None
    named = f"gs://{(settings.bucket or '').removeprefix('gs://').rstrip('/')}"
    if bucket != named:
        raise PodError(
            f"TPU pod {settings.name} has its jobs in {bucket}, and this call names {named}: use that bucket, or "
            "another tpu-name."
        )
    return key


class Slice:
    """One slice of the pool. `control` is None while the slice is not up."""

    def __init__(
        self,
        settings: ExecutorSettings,
        folder: Path,
        say: Callable[[str], None],
        health: Health | None = None,
        is_busy: Callable[[], bool] = lambda: False,
        transport: Transport | None = None,
    ) -> None:
        self.settings, self.folder, self.is_busy = settings, folder, is_busy
        self.name, self.hosts = settings.name or "", slice_of(settings.accelerator_type).hosts
        self.say = lambda sentence: say(f"TPU pod {self.name}: {sentence}")
        self.health = health or Health(say)
        self.cloud = TpuCloud(settings, say)
        self.capacity = Capacity(self.cloud, say, self._metadata, self._last_words)
        self.control: Control | None = None
        self.holder: dict[int, str] = {}
        """The job that holds a host."""
        self.error: PodError | None = None
        self.was_up, self._failing_since = False, 0.0
        """Whether a job could run there in this call, and since when it has not come up again."""
        self.on_tick: Callable[[], None] = lambda: None
        self.ticked = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._transport, self.stop = transport, threading.Event()
        self._key, self._node, self._created, self._existed = b"", "", False, False
        self._state: tuple[float, PodState] | None = None
        self._told: dict[str, str] = {}
        self._spare = SPARE_SLICES
        self._ours = self._deleted = False
        """Whether this plugin has created the slice."""
        self._failed_ranks: dict[int, set[str]] = {}

    # ---- its life

    @property
    def is_starting(self) -> bool:
        return self.task is not None and not self.task.done() and not (self.control or self.error)

    def start(self) -> asyncio.Task[None]:
        """Bring the slice up and drive it until it is lost, unless that is going on."""
        if self.task is None or self.task.done() or self.error:
            self.error = None
            self.task = asyncio.ensure_future(self._live())
            self.task.add_done_callback(lambda _: self.on_tick())  # jobs that wait start it again
        return self.task

    async def _live(self) -> None:
        pause = PAUSES[0]
        while True:
            try:
                await self._bring_up()
                self._lose(await self._drive())
                self._existed, self._deleted = not self._deleted, False
                return
            except TROUBLE as error:
                self._lose(str(error))
                now = time.monotonic()
                self._failing_since = self._failing_since or now
                final = isinstance(error, (DeletedByUser, Taken)) or not self.was_up
                if final or now - self._failing_since > TROUBLE_SECONDS:
                    self._fail(error if isinstance(error, PodError) else PodError(str(error)))
                    return
                self.say(red(f"{error} Jobs wait; next try in {pause:.0f} s"))
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSES[1])
            except Exception as error:
                self._fail(PodError(f"The plugin failed on the pod: {type(error).__name__}: {error}"))
                return

    def _fail(self, error: PodError) -> None:
        self._lose(str(error))
        self.error = error
        self.say(red(f"{error}"))
        self.on_tick()

    def _lose(self, why: str) -> None:
        """Forget the incarnation; its jobs notice at the next tick."""
        control, self.control = self.control, None
        if control is not None:
            control.close()
            self.health.forget(self.name)
            self.say(f"it is lost ({why})")
        self._tick()

    def _tick(self) -> None:
        self.ticked.set()
        self.ticked = asyncio.Event()
        self.on_tick()

    async def news(self, seconds: float | None = None) -> None:
        """Wait for the next look at the hosts, or for the end, at most so many seconds."""
        ticked = asyncio.ensure_future(self.ticked.wait())
        tasks = {ticked, self.task} if self.task else {ticked}
        await asyncio.wait(tasks, timeout=seconds, return_when="FIRST_COMPLETED")
        ticked.cancel()

    async def _bring_up(self) -> None:
        state = await self.cloud.describe()
        if not state.is_ready:
            if self.settings.end and self.settings.create and time.time() > self.settings.end_time():
                raise PodError(f"tpu-end ({self.settings.end}) has passed: nothing is created after it.")
            await self._prepare_key(state)
            try:
                state = await self.capacity.wait(self._existed)
            finally:
                self._existed = self.capacity.existed
        self._check_type(state)
        self._key, node = key_of(state, self.settings), str(state.orders["node"])
        self._created, self._ours = state.call == self.cloud.call, state.created_here
        self._failed_ranks = {}
        self._save_key()
        bucket = await asyncio.to_thread(self.bucket, self._key)
        document = {"node": node, "python": self.settings.python}
        document |= await asyncio.to_thread(self._upload, bucket)
        control = Control(bucket, self.hosts, document, state.orders["times"], self.cloud.call)
        await asyncio.to_thread(control.acquire)
        self._node, self._state, self._told = state.incarnation, (time.monotonic(), state), {}
        if self.settings.check_host:
            self.health.unchecked |= await asyncio.to_thread(self._unchecked, bucket, node)
        await asyncio.to_thread(self._tell_region, bucket)
        self.control, self._deleted = control, False
        self.say(f"it is up; its hosts {'start' if self._created else 'are asked what they do'}")

    def bucket(self, key: bytes) -> Bucket:
        """Return the slice's part of the bucket, where a new key starts anew.

        Calls are repeated as long as a job may run without a controller.
        """
        self._transport = self._transport or storage_transport()
        bucket = (self.settings.bucket or "").removeprefix("gs://").rstrip("/")
        # the key's hash names it without telling it
        place = f"gs://{bucket}/{FOLDER}/{self.name}/{hashlib.sha256(key).hexdigest()[:12]}"
        return Bucket(place, key, self._transport, self.cloud.patience, self.say, self.stop)

    def _unchecked(self, bucket: Bucket, node: str) -> set[Place]:
        """Return the hosts that have not passed the check since the node was made, in this call or an earlier one."""
        passed = {"node": node, "check": self.settings.check_host}
        return {(self.name, rank) for rank in range(self.hosts) if bucket.read(_checked(rank)) != passed}

    async def note_checked(self, rank: int) -> None:
        """Tell later calls that a host has passed the check."""
        if control := self.control:
            passed = {"node": control.setup["node"], "check": self.settings.check_host}
            document = sign(control.bucket.key, _checked(rank), passed)
            with contextlib.suppress(*TROUBLE):  # then they check it again
                await asyncio.to_thread(control.bucket.put, _checked(rank), document)

    def _tell_region(self, bucket: Bucket) -> None:
        """Say what it costs that bucket and slice are in different regions, if the account may ask."""
        region = (self.settings.zone or "").rpartition("-")[0]
        try:
            place = bucket.location()
        except (Refused, BucketOffline):
            return
        if not region.startswith(place):  # as us-central2 with us
            day = 24 * self.hosts * TRAFFIC_PRICE
            costs = (
                f"at least {TRAFFIC_PRICE} USD per GB, {day:.2f} USD a day if each host moves a GB an hour"
            )
            where = f"its bucket gs://{bucket.name} is in {place} and its hosts are in {region}"
            self.say(red(f"{where}: traffic between them costs {costs}"))

    def _upload(self, bucket: Bucket) -> Document:
        """Upload the loop's code and the lock of the jobs' environment; return what assignments say of them."""
        python, files = self.settings.environment_python, (self.settings.requirements or "").split()
        try:
            lock = "\n".join(Path(name).expanduser().read_text() for name in files)
        except OSError as error:
            raise PodError(f"tpu-requirements: {error.filename} cannot be read ({error.strerror}).") from None
        name = hashlib.sha256(f"{python}\n{lock}".encode()).hexdigest()[:16] if files else ""
        setup = {"name": name, "lock": bucket.create_content("sources", lock.encode()), "python": python}
        return {"code": bucket.create_content("code", host_code()), "setup": setup}

    # ---- the key

    @property
    def _key_file(self) -> Path:
        return self.folder / f"{self.name}.key"

    async def _prepare_key(self, state: PodState) -> None:
        """Use the key of what is left of a slice, or of this folder's last one: it knows how that one's jobs ended."""
        if state.orders:
            self._key = key_of(state, self.settings)
        if not self._key:
            try:
                self._key = bytes.fromhex(self._key_file.read_text())
            except (OSError, ValueError):
                self._key = secrets.token_bytes(LEAST_KEY)
        self._save_key()

    def _save_key(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._key_file.touch(mode=0o600)
        self._key_file.write_text(self._key.hex())

    def _metadata(self) -> dict[str, str]:
        """Return the metadata of a new node: the startup script and its orders. Uploads what the script fetches."""
        settings, bucket = self.settings, self.bucket(self._key)
        orders = {name: getattr(settings, name) for name in ("project", "zone", "name")}
        orders |= {"bucket": bucket.url, "key": self._key.hex(), "code": self._upload(bucket)["code"]}
        orders |= {"node": uuid.uuid4().hex[:12], "hosts": self.hosts, "times": settings.times()}
        orders |= {"idle_seconds": 60 * settings.idle_delete, "end": settings.end_time()}
        script = (Path(__file__).parent / "worker" / "bootstrap.py").read_text()
        return {"startup-script": script, ORDERS: json.dumps(orders)}

    def _last_words(self, node: str) -> str:
        found = self.bucket(self._key).read(f"ended/{node}")
        return str(found["why"]) if found else ""

    def _check_type(self, state: PodState) -> None:
        if state.accelerator_type not in ("", self.settings.accelerator_type):
            raise PodError(
                f"TPU pod {self.name} is a {state.accelerator_type}, but the profile says "
                f"{self.settings.accelerator_type}: change tpu-accelerator-type, or use another tpu-name."
            )

    # ---- while it is up

    async def _drive(self) -> str:
        """Drive the slice until it is lost; return why."""
        control, began = self.control, time.monotonic()
        assert control
        while True:
            await asyncio.to_thread(control.tick, self.is_busy())
            self._tell_hosts(control)
            await self._retire()
            self._tick()
            silent = any(
                not control.is_fresh(rank) or control.beats[rank]["shutdown"] for rank in range(self.hosts)
            )
            if why := await self.why_gone(ASK_SECONDS) if silent or self.trouble else self.gone:
                return why
            if silent and self._created and time.monotonic() - began > BOOT_SECONDS:
                await self._replace_dead(control)
            await asyncio.sleep(control.times["poll"])

    async def why_gone(self, age: float = 1.0) -> str | None:
        """Return why this incarnation is gone, if the API says so; an answer counts for so many seconds."""
        now = time.monotonic()
        if self._state is None or now - self._state[0] > min(age, 5 * self.cloud.poll_seconds[0]):
            try:
                self._state = (now, await self.cloud.describe(attempts=1 if self.cloud.told else 4))
            except Offline:
                pass
            except CloudError as error:
                self._tell("state", red(f"its state is unknown ({error})"))
        return self.gone

    @property
    def gone(self) -> str | None:
        """Return why this incarnation is gone by the API's last answer."""
        if self._state is None:
            return None
        state = self._state[1]
        if state.incarnation not in ("", self._node):
            return "the pod was created again"
        return None if state.may_run_jobs else f"the pod is gone: {state}"

    @property
    def trouble(self) -> str | None:
        """Return what the API said last, unless READY: no job starts there, but those that run there may go on."""
        state = self._state[1] if self._state else None
        return f"the TPU API says {state}" if state and not state.is_ready else None

    @property
    def is_unclear(self) -> bool:
        """Whether this call cannot reach a slice that was up, and whose hosts may run on."""
        return self.control is None and self._state is not None and not self.gone

    def _tell(self, topic: str, sentence: str) -> None:
        """Say a sentence when it changes."""
        if self._told.get(topic, "") != sentence:
            self._told[topic] = sentence
            if sentence:
                self.say(sentence)

    def _tell_hosts(self, control: Control) -> None:
        """Say what is new about the hosts; raise if no host of this call ever could make the jobs' environment."""
        wanted, states = control.setup["setup"]["name"], dict[int, str]()
        for rank, beat in control.beats.items():
            made, lines = beat["environment"], "\n        ".join(beat["environment"]["lines"])
            if made["name"] == wanted:
                states[rank] = made["state"]
            failed = f"w{rank} cannot make the jobs' environment and tries again; jobs wait:\n        {lines}"
            self._tell(f"environment {rank}", red(failed) if made["state"] == "failed" else "")
            if beat["error"]:
                self._tell(f"error {rank}", red(f"w{rank}: {beat['error']}"))
        fresh = [rank for rank in range(self.hosts) if control.is_fresh(rank)]
        ready = sum(states.get(rank) == "ready" for rank in fresh)
        environment = f", the environment is ready on {ready}" if wanted else ""
        self._tell("up", f"{len(fresh)} of {self.hosts} host(s) answer{environment}")
        if self.settings.idle_delete or self.settings.end:
            guards = [beat["guard"] for beat in control.beats.values()]
            if guards and not (guards[0]["limit"] or guards[0]["end"]):
                self._tell("guard", red(guard_in_words(None)))
            self._tell("guard error", red(guard_trouble(guards)))
        if "ready" in states.values():
            self.was_up, self._failing_since = True, 0.0
        elif states and set(states.values()) == {"failed"} and not self.was_up:
            lines = "\n        ".join(control.beats[min(control.beats)]["environment"]["lines"])
            raise PodError(
                f"The jobs' environment cannot be made on the hosts of {self.name}:\n        {lines}"
            )

    async def _replace_dead(self, control: Control) -> None:
        """Make a new slice again if some of its hosts never came up; raise if none did."""
        never = [rank for rank in range(self.hosts) if rank not in control.beats]
        if not never:
            self._created = False
            return
        names = ", ".join(f"w{rank}" for rank in never)
        if len(never) < self.hosts and self._spare and not self.holder:
            self._spare -= 1
            self.say(red(f"{names} did not come up, others did; the slice is deleted and made anew"))
            await self._delete()
            return
        self._created = False
        place = f"--zone={self.settings.zone} --project={self.settings.project}"
        where = f"{self.name} {place} --worker={never[0]}"
        sentence = (
            f"{names} of {self.name} never wrote a heartbeat to {control.bucket.url} within {BOOT_SECONDS:.0f} s. The "
            "API says that the pod is READY, so nothing was deleted. Its serial console has what its startup script "
            f"says: `gcloud compute tpus tpu-vm ssh {where} --command='sudo journalctl -u google-startup-scripts'`. "
            f"{DOWN} deletes the pod."
        )
        if len(never) == self.hosts:
            raise PodError(sentence)
        self.say(red(sentence))

    @property
    def why_retire(self) -> str:
        """Return why the slice is to be replaced, which takes a slice of this plugin that may be created again."""
        ranks = [rank for rank, jobs in self._failed_ranks.items() if len(jobs) >= SUSPECTS]
        why = f"whole-slice jobs failed on w{ranks[0]} twice" if ranks else self.health.long_aside(self.name)
        return why if self.settings.create and self._ours else ""

    async def _retire(self) -> None:
        """Delete a slice with a bad host, once its jobs have ended; the jobs that wait get a new one."""
        if (why := self.why_retire) and not self.holder:
            self.say(red(f"{why}; the slice is deleted and made anew"))
            await self._delete()

    async def _delete(self) -> None:
        """Delete this incarnation and no later one; the next one is asked for as if there had been none."""
        self._deleted = True
        await self.cloud.delete(lambda now: now.incarnation == self._node)

    def note_rank(self, job: str, rank: int) -> None:
        """Note the host whose rank ended a whole-slice job: after two jobs the slice is replaced."""
        self._failed_ranks.setdefault(rank, set()).add(job)

    # ---- its hosts

    def free(self) -> list[int]:
        """Return the hosts that could take a job now."""
        if self.control is None or self.why_retire or self.gone or self.trouble or self._deleted:
            return []
        return [rank for rank in self.control.free() if rank not in self.holder]

    def take(self, job: str, hosts: list[int]) -> None:
        self.holder.update(dict.fromkeys(hosts, job))

    def release(self, job: str) -> None:
        self.holder = {rank: holder for rank, holder in self.holder.items() if holder != job}

    def unhealthy(self) -> str:
        """Return in words that the API called the slice unhealthy when it was asked last."""
        health = self._state[1].health if self._state else ""
        return f"; the TPU API says {health}" if health.startswith("UNHEALTHY") else ""

    # ---- the end

    async def close(self, report: bool = True) -> str:
        """Leave the slice as it is; return what exists and costs money."""
        used = self.was_up or self.capacity.requested
        if self.task is not None:
            await end(self.task)
        self.cloud.patience = CLOSE_SECONDS
        self.stop.set()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.capacity.withdraw()
        except (CloudError, TimeoutError) as error:
            why = str(error) or f"Google has not deleted it within {CLOSE_SECONDS:.0f} s"
            self.say(red(f"the request could not be withdrawn: {why} {DOWN} withdraws it"))
        if self.control is not None:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await asyncio.to_thread(self.control.release)
            except (*TROUBLE, TimeoutError) as error:
                self.say(f"its lease could not be released and ends by itself: {str(error) or 'no answer'}")
            self.control.close()
        left = ""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                left = await remaining(self.settings, self.cloud, used) if report else ""
                await self.cloud.close()
        except TimeoutError:
            if used and report:
                left = left or may_exist(self.settings, f"Google did not answer within {CLOSE_SECONDS:.0f} s")
        return left


def _checked(rank: int) -> str:
    return f"hosts/{rank}/checked"


def describe_beat(beat: Mapping[str, Any], lease_age: float) -> str:
    """Return in words what a host does."""
    if not beat["job"]:
        environment = beat["environment"]
        return "-" if environment["state"] == "ready" else f"environment {environment['state']}"
    words = f"{beat['job'][0]} (launch {beat['job'][1]}, progress {beat['progress'] or '-'}"
    words += f", {beat['status']}" if beat["status"] else ""
    return words + (f", unattended for {lease_age:.0f} s)" if lease_age > 30 else ")")
