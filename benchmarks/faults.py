"""The faults that tests, rehearsals and campaigns inflict on studies: each has a name and an effect that it expects."""

import json
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_tpu.emulator import EmulatedPod
from snakemake_executor_plugin_tpu.emulator.hosts import Host, send
from snakemake_executor_plugin_tpu.google import storage_transport
from snakemake_executor_plugin_tpu.worker.bucket import Bucket

sys.path.insert(0, str(Path(__file__).parents[1] / "snakemake-executor-plugin-tpu" / "tests"))
from study import FINISHED, SNAKEMAKE, Call, Study, default_signals, until

QUOTA = "Quota 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted. Limit 64 in region us-central2"
SILENCE = 10.0  # seconds: longer than hosts and controllers of an emulated pod count as fresh


class Scene:
    """A study under a call of Snakemake, and the host (by its number) that the next fault hits.

    The study is one of the plugin's tests or the pipeline itself (tests/rehearsal.py).
    """

    def __init__(self, study: Any, number: random.Random | None = None):
        self.study, self.random = study, number or random.Random(0)
        self.pod: EmulatedPod = study.pod
        self.call: Call = study.start()
        self.outputs: list[str] = []
        self.rank, self.preempted, self.failures = 0, 0, 0

    @property
    def host(self) -> Host:
        return self.pod.hosts[self.rank]

    @property
    def output(self) -> str:
        """Return what all calls have said."""
        return "".join([*self.outputs, self.call.output])

    def pause(self, least: float, most: float) -> None:
        time.sleep(self.random.uniform(least, most))

    def again(self) -> None:
        """Call Snakemake again after a call that has ended."""
        self.call.wait()
        self.outputs.append(self.call.output)
        self.study.run("--unlock")
        self.call = self.study.start()

    def where(self) -> dict[str, list[int]]:
        """Return the numbers of the hosts on which each job runs."""
        lines = [list(host.processes(self.study.program).values()) for host in self.pod.hosts]
        return {
            job: [
                rank
                for rank, found in enumerate(lines)
                if any(f"checkpoints/{job} " in line for line in found)
            ]
            for job in self.study.jobs
        }

    def name(self) -> str:
        """Return the name of the slice of the host, "" for the only one."""
        number = self.rank // len(self.pod.groups[0])
        node = self.pod.booted.get(number) if len(self.pod.groups) > 1 else None
        return node.name.rpartition("/")[2] if node else ""

    def preempt(self, notice: float = 0.0) -> None:
        self.preempted += 1
        self.pod.preempt(notice, self.name())


@dataclass(frozen=True)
class Fault:
    """What inflicts it (False: there was nothing to hit); whether jobs lose their launch; whether one host is hit."""

    inflict: Callable[[Scene], Any]
    deadly: bool
    reach: str


FAULTS: dict[str, Fault] = {}


def fault(name: str, deadly: bool = False, reach: str = "pod") -> Callable[..., Any]:
    """Register a fault whose reach is one `host`, its `slice` or the `pod`."""

    def register(inflict: Callable[[Scene], Any]) -> Callable[[Scene], Any]:
        FAULTS[name] = Fault(inflict, deadly, reach)
        return inflict

    return register


# ---- hosts


@fault("reboot", deadly=True, reach="host")
def reboot(scene: Scene) -> None:
    scene.host.kill()
    scene.pause(0.2, 3)
    scene.host.boot()


@fault("killed loop", reach="host")
def kill_loop(scene: Scene) -> bool:
    return scene.host.kill_loop()


@fault("killed loops")
def kill_loops(scene: Scene) -> bool:
    return min([host.kill_loop() for host in scene.pod.hosts])


@fault("killed runner", deadly=True, reach="host")
def kill_runner(scene: Scene) -> bool:
    """Its processes run on and have nobody to end them but the loop."""
    runners = scene.host.processes("worker.runner")
    send(signal.SIGKILL, runners)
    return bool(runners)


@fault("frozen host", reach="host")
def freeze(scene: Scene) -> None:
    scene.host.freeze()
    scene.pause(1, 5)
    scene.host.release()


@fault("host frozen for long", reach="host")
def freeze_long(scene: Scene) -> None:
    """Silent, but not for as long as its jobs may run: nothing is launched elsewhere."""
    scene.host.freeze()
    time.sleep(1.5 * SILENCE)
    scene.host.release()


@fault("frozen loop", reach="host")
def freeze_loop(scene: Scene) -> bool:
    loops = scene.host.loops()
    send(signal.SIGSTOP, loops)
    scene.pause(2, 1.5 * SILENCE)
    send(signal.SIGCONT, loops)
    return bool(loops)


@fault("slow host", reach="host")
def slow_down(scene: Scene) -> None:
    scene.host.slow_down(4)
    scene.pause(3, 6)
    scene.host.release()


@fault("hang", deadly=True, reach="host")
def hang(scene: Scene) -> bool:
    stopped = scene.host.processes(scene.study.program)
    send(signal.SIGSTOP, stopped)
    return bool(stopped)


@fault("no token", reach="host")
def no_token(scene: Scene) -> None:
    """The metadata server gives no token for a while, and those that were given are not accepted any more."""
    google = scene.pod.google
    google.token_status = 503
    google.tokens.clear()
    scene.pause(2, 6)
    google.token_status = 200


@fault("full disk", deadly=True, reach="host")
def fill_disk(scene: Scene) -> None:
    scene.host.fill_disk(".snakemake-tpu/tasks/ended-long-ago/copy")


@fault("bad host", reach="host")
def bad_host(scene: Scene) -> bool:
    """Every job on the host dies for some seconds, beginning with the one that runs there: a failure of the job."""
    scene.host.disk("bad").touch()
    running = scene.host.processes(scene.study.program)
    send(signal.SIGKILL, running)
    scene.pause(3, 6)
    mark = scene.host.disk("bad")  # by the way of a process that lives
    scene.failures += bool(running) + len(mark.read_bytes())
    mark.unlink()
    return bool(running)


# ---- preemptions


@fault("preemption", deadly=True, reach="slice")
def preempt(scene: Scene) -> None:
    scene.preempt()


@fault("preemption with notice", deadly=True, reach="slice")
def preempt_with_notice(scene: Scene) -> None:
    scene.preempt(notice=3.0)


@fault("preemption, no capacity", deadly=True, reach="slice")
def preempt_no_capacity(scene: Scene) -> None:
    scene.pod.api.fail_requests(2)
    scene.preempt()


@fault("preemption, slow states", deadly=True, reach="slice")
def preempt_slow_states(scene: Scene) -> None:
    scene.pod.api.seconds_per_state = 1.0
    scene.preempt()


@fault("preemption, quota text", deadly=True, reach="slice")
def preempt_quota(scene: Scene) -> None:
    for _ in range(2):
        scene.pod.api.refuse(8, QUOTA)
    scene.preempt()


@fault("preemption, deletion refused", deadly=True, reach="slice")
def preempt_deletion_refused(scene: Scene) -> None:
    words = "is in state SUSPENDING"
    scene.pod.api.fail(2, "FAILED_PRECONDITION", words, method="DeleteQueuedResource")
    scene.preempt()


@fault("preemption, one 403", deadly=True, reach="slice")
def preempt_forbidden(scene: Scene) -> None:
    scene.preempt()
    scene.pod.api.fail(1, "PERMISSION_DENIED", "IAM is late", method="GetQueuedResource")


@fault("preemption, deaf host", deadly=True, reach="slice")
def preempt_deaf(scene: Scene) -> None:
    """The startup script of a new host does not run at once."""
    scene.host.deaf = True
    scene.preempt()
    until(lambda: scene.host.is_up)
    scene.pause(1, 4)
    scene.host.deaf = False
    scene.host.boot()


@fault("preemption, bucket away", deadly=True, reach="slice")
def preempt_without_bucket(scene: Scene) -> None:
    scene.pod.gcs.proxy.down = True
    scene.preempt()
    scene.pause(3, 1.5 * SILENCE)
    scene.pod.gcs.proxy.down = False


@fault("preemption during an upload", deadly=True, reach="slice")
def preempt_during_upload(scene: Scene) -> bool:
    proxy = scene.pod.gcs.proxy
    proxy.latency, before = 1.0, len(proxy.uploads)
    deadline = time.monotonic() + 20
    while len(proxy.uploads) == before and time.monotonic() < deadline:
        time.sleep(0.01)
    scene.preempt()
    proxy.latency = 0.0
    return len(proxy.uploads) > before


@fault("two preemptions", deadly=True, reach="slice")
def preempt_twice(scene: Scene) -> None:
    scene.preempt()
    until(lambda: scene.host.is_up)
    scene.pause(0, 3)
    scene.preempt()


# ---- controllers


@fault("killed controller")
def kill_controller(scene: Scene) -> None:
    scene.call.signal(signal.SIGKILL)
    scene.again()


@fault("killed controller, later call")
def kill_controller_for_long(scene: Scene) -> None:
    scene.call.signal(signal.SIGKILL)
    scene.call.wait()
    scene.pause(SILENCE, 1.5 * SILENCE)
    scene.again()


@fault("hung up controller")
def hang_up(scene: Scene) -> None:
    scene.call.signal(signal.SIGHUP)
    scene.again()


@fault("interrupted controller", deadly=True)
def interrupt(scene: Scene) -> None:
    scene.call.signal(signal.SIGINT)
    scene.again()


@fault("sleeping controller")
def sleep(scene: Scene) -> None:
    scene.call.signal(signal.SIGSTOP)
    scene.pause(2, 2 * SILENCE)
    scene.call.signal(signal.SIGCONT)


@fault("preemption, sleeping controller", deadly=True, reach="slice")
def preempt_asleep(scene: Scene) -> None:
    scene.call.signal(signal.SIGSTOP)
    scene.pause(1, SILENCE)
    scene.preempt()
    scene.call.signal(signal.SIGCONT)


@fault("deletion by itself, sleeping controller", deadly=True, reach="slice")
def end_itself(scene: Scene) -> bool:
    """The pod deletes itself as its idle rule would, unseen by the controller."""
    api = scene.pod.api
    scene.call.signal(signal.SIGSTOP)
    nodes = {
        name: node
        for name, node in api.nodes.items()
        if name.endswith(f"/{scene.name()}") or not scene.name()
    }
    for name, node in nodes.items():
        orders = json.loads(node.metadata["snakemake-tpu"])
        bucket = Bucket(orders["bucket"], bytes.fromhex(orders["key"]), storage_transport(), 60.0)
        bucket.create(
            f"ended/{orders['node']}", {"why": "it has been idle for 30 minutes", "node": orders["node"]}
        )
        api.delete_by_rest(name.replace("/nodes/", "/queuedResources/"), True)
    scene.preempted += 1
    scene.pause(0, 3)
    scene.call.signal(signal.SIGCONT)
    return bool(nodes)


@fault("second controller")
def second_controller(scene: Scene) -> bool:
    """Somebody else's Snakemake on the same pod is refused, and nothing else happens."""
    folder = scene.study.folder.with_name(f"{scene.study.folder.name}-other{time.monotonic_ns()}")
    other = Study(folder, scene.pod, {"x": {}}, **scene.study.profile)
    call = other.start()
    code = call.wait()
    # It may succeed if the study has ended meanwhile.
    assert not code or "is in use by the Snakemake of" in call.output, call.output
    other.end()
    return code != 0


# ---- the TPU API


def errors(scene: Scene, *error: str) -> None:
    """Let the API fail while it is asked, as it is about a host that is silent."""
    scene.pod.api.fail(3, *error)
    freeze_long(scene)


@fault("TPU API 503", reach="host")
def api_unavailable(scene: Scene) -> None:
    errors(scene)


@fault("TPU API 429", reach="host")
def api_exhausted(scene: Scene) -> None:
    errors(scene, "RESOURCE_EXHAUSTED", "Quota exceeded for requests per minute per user")


@fault("TPU API away", reach="host")
def api_away(scene: Scene) -> None:
    scene.pod.api.offline = True
    freeze_long(scene)
    scene.pod.api.offline = False


@fault("unknown state", reach="host")
def unknown_state(scene: Scene) -> None:
    for node in scene.pod.api.nodes.values():
        node._pb.state = 99
    freeze_long(scene)
    for node in scene.pod.api.nodes.values():
        node._pb.state = 2  # READY


# ---- the bucket


@fault("GCS 500/503")
def few_failures(scene: Scene) -> None:
    scene.pod.gcs.proxy.failures = 5


@fault("short outage")
def outage(scene: Scene) -> None:
    scene.pod.gcs.proxy.outage(scene.random.uniform(1, 5))


@fault("long outage")
def long_outage(scene: Scene) -> None:
    scene.pod.gcs.proxy.outage(2 * SILENCE)


@fault("lost answers")
def lossy(scene: Scene) -> bool:
    """Every second upload succeeds and is answered 503."""
    proxy = scene.pod.gcs.proxy
    before, proxy.lossy = len(proxy.uploads), True
    scene.pause(3, 8)
    proxy.lossy = False
    return len(proxy.uploads) > before


@fault("429 for each name")
def limited(scene: Scene) -> bool:
    proxy = scene.pod.gcs.proxy
    proxy.limited, proxy.limit = 0, True
    scene.pause(3, 8)
    proxy.limit = False
    return proxy.limited > 0


@fault("slow uploads")
def slow_uploads(scene: Scene) -> bool:
    proxy = scene.pod.gcs.proxy
    before, proxy.latency = len(proxy.uploads), 2.0
    scene.pause(4, 8)
    proxy.latency = 0.0
    return len(proxy.uploads) > before


@fault("403 on checkpoints")
def refuse_checkpoints(scene: Scene) -> bool:
    """No job may call a step its progress that the bucket lacks."""
    proxy, before = scene.pod.gcs.proxy, len(scene.pod.gcs.proxy.uploads)
    proxy.refused = "checkpoints"
    scene.pause(3, 6)
    said = progress(scene)
    published = scene.study.steps()
    proxy.refused = ""
    for job, step in said.items():
        assert step <= published.get(job, (0, 0))[0], f"{job} says {step}, published is {published}"
    return bool(said) and len(proxy.uploads) > before


def progress(scene: Scene) -> dict[str, int]:
    """Return what each running job has reported as its progress."""
    said = {}
    for job, ranks in scene.where().items():
        if ranks:
            for path in scene.pod.hosts[ranks[0]].disk(".snakemake-tpu").glob("tasks/*/progress"):
                text = path.read_text()
                said |= {job: int(text)} if text.isdigit() else {}
    return said


__all__ = ["FAULTS", "FINISHED", "SNAKEMAKE", "Call", "Fault", "Scene", "Study", "default_signals", "until"]
