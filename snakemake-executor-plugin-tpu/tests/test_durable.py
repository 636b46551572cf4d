"""What is known survives the machine that knew it, and what goes wrong on one host stays there."""

import json
import os
import re
import signal

import pytest

from snakemake_executor_plugin_tpu.emulator import EmulatedPod, why_not
from snakemake_executor_plugin_tpu.emulator.study import Study, until

LONG = {"steps": 12, "options": "--hold 6"}
BAD_HOST = """stopping = False
import socket
if socket.gethostname().endswith("w-0"):
    sys.exit("RuntimeError: TPU core halted (chip 2)")
"""


def stored(one, name: str) -> bool:
    return one.pod.bucket.blob(f"{one.prefix}/{name}").exists()


def edit(one, old: str, new: str) -> None:
    script = one.folder / "scripts" / "count.py"
    script.write_text(script.read_text().replace(old, new, 1))


def test_a_result_finished_while_the_laptop_sleeps_counts(study):
    """The pod's own idle rule has deleted the pod meanwhile; for the job that waits it is created again."""
    one = study({"a": LONG, "b": LONG}, resources={"tpu_hosts": 1}, retries=1, **{"tpu-idle-delete": 0.25})
    if not one.pod.network.separate:
        return  # there is no metadata server, so no guard
    one.pod.remove()
    call = one.start()
    first = re.search("job=(.)", call.wait_for(r"job=[ab] 0\] step 6$"))[1]
    call.signal(signal.SIGSTOP)
    for host in one.pod.hosts:
        host.drop_connections()
    for job in "ab":
        one.release(job)
    until(lambda: stored(one, f"counts/{first}.txt"))
    until(lambda: not any(node.state.name == "READY" for node in one.pod.api.nodes.values()))
    call.signal(signal.SIGCONT)
    assert call.wait() == 0, call.output
    assert "has stored its outputs: they count" in call.output
    assert "Trying to restart job" not in call.output
    assert len(one.table) == 2
    assert set(one.launches(first)) == {"1-0"}


def test_the_repeated_command_adopts_what_has_ended(study):
    """After `kill -9` of the controller and the end of the pod; no pod is created for it."""
    one = study({"a": LONG})
    call = one.start()
    call.wait_for(r"job=a 0\] step 6$")
    call.signal(signal.SIGKILL)
    call.wait()
    one.release("a")
    until(lambda: not one.pod.jobs())
    one.pod.remove()
    created = one.pod.api.created_nodes
    assert "has stored its outputs" in one.run("--nolock")
    assert set(one.launches("a")) == {"1-0"}
    assert one.pod.api.created_nodes == created


def test_a_bad_host_does_not_swallow_the_queue(study):
    one = study(
        {f"j{k}": {"steps": 30} for k in range(6)},
        **{"retries": 1, "keep-going": True, "tpu-check-host": "exit 1"},
    )
    edit(one, "stopping = False\n", BAD_HOST)
    output = one.run()
    assert "w0 of pod is set aside: 2 jobs failed there" in output
    assert "TPU core halted (chip 2)" in output
    assert "w0 of pod is set aside (2 jobs failed there" in output.splitlines()[-2]
    assert len(one.table) == 6


def test_a_hang_is_stopped_with_every_ranks_stack_and_resumed(study):
    one = study({"w": {**LONG, "hosts": 4}}, **{"tpu-stall": 0.1})
    call = one.start()
    call.wait_for(r"job=w 0\] step 6$")
    until(lambda: len(one.launches("w")) == 4)  # all ranks run: a Python that only starts has no stacks
    for host in one.pod.hosts[:2]:
        for pid, line in host.processes().items():
            if re.match(r"\S*python3 scripts/count.py", line):
                os.kill(pid, signal.SIGSTOP)
    assert call.wait() == 0, call.output
    assert "it made no progress for 0.1 minutes" in call.output
    logs = (one.folder / ".snakemake" / "tpu" / "logs").glob("*/launch-1/rank*.log")
    assert ["most recent call first" in log.read_text() for log in sorted(logs)] == [True] * 4
    assert one.launches("w")["2-0"]["from"] == 6


def test_a_controller_with_another_folder_is_kept_off_and_its_down_too(study):
    one, other = study({"a": LONG}), study({"b": {}}, **{"tpu-folder": ".other"})
    call = one.start()
    call.wait_for(r"job=a 0\] step 6$")
    assert "The pod is in use by the Snakemake of " in other.run(code=1)
    code, output = other.command("down")
    assert (code, "is in use by" in output) == (1, True)
    _, output = other.command("status")
    assert "count job=a" in output
    one.release("a")
    assert call.wait() == 0, call.output


@pytest.mark.parametrize("hosts", [1, 4])
def test_unknown_states_are_waited_for_and_can_be_deleted(study, hosts):
    one = study({"a": {**LONG, "hosts": hosts}})
    call = one.start()
    call.wait_for(r"job=a 0\] step 6$")
    (node,) = one.pod.api.nodes.values()
    node._pb.state = node._pb.health = 99
    one.pod.hosts[0].drop_connections()
    call.wait_for("UNKNOWN_99")
    code, output = one.command("status")
    assert (code, "node UNKNOWN_99" in output) == (1, True)
    node._pb.state, node._pb.health = 2, 1
    one.release("a")
    assert call.wait() == 0, call.output
    node._pb.state = 99
    assert one.command("down")[0] == 0
    assert not one.pod.api.nodes


def test_a_pod_whose_host_keys_are_forbidden_is_deleted_at_once(study):
    one = study({"a": {}})
    one.pod.remove()
    policy = "Constraint constraints/compute.disableGuestAttributesAccess violated for project emulated."
    one.pod.api.fail(1000, "FAILED_PRECONDITION", policy, method="GetGuestAttributes")
    output = one.run(code=1)
    assert "was deleted again" in output
    assert "disableGuestAttributesAccess" in output
    assert not one.pod.api.nodes


def test_a_job_goes_on_with_the_sources_of_its_start_which_is_said(study):
    one = study({"a": LONG})
    call = one.start()
    call.wait_for(r"job=a 0\] step 6$")
    call.signal(signal.SIGKILL)
    call.wait()
    edit(one, "stopping = False\n", "stopping = False  # another version\n")
    again = one.start("--nolock")
    again.wait_for("goes on with the sources with which it was started; they have changed since")
    one.release("a")
    assert again.wait() == 0, again.output
    assert set(one.launches("a")) == {"1-0"}
    (blob,) = one.pod.bucket.list_blobs(prefix=f"{one.prefix}/counts/.snakemake-tpu/")
    record = json.loads(blob.download_as_bytes())
    assert (record["state"], bool(re.fullmatch(r"[0-9a-f]{16}", record["sources"]))) == ("ended", True)


@pytest.mark.full
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "")
@pytest.mark.parametrize("address", ["the same", "another"])
def test_a_replaced_host_is_found_in_the_same_call(tmp_path, address):
    """Node and state stay as they were; the API has the new host's key some time after the host shows it."""
    with EmulatedPod(tmp_path / "pod", "v4-16", slices=2) as pod:
        size = {"tpu-accelerator-type": "v4-16", "resources": {"tpu_hosts": 2}, "tpu-recovery": 60}
        one = Study(tmp_path / "study", pod, {"w": {**LONG, "hosts": 2}}, **size)
        call = one.start()
        try:
            call.wait_for(r"job=w 1\] step 6$")
            ((name, node),) = pod.api.nodes.items()
            users: dict[str, list[str]] = {}
            for line in node.metadata["ssh-keys"].splitlines():
                users.setdefault(line.partition(":")[0], []).append(line.partition(":")[2])
            pod.hosts[1].kill()
            new = pod.hosts[3 if address == "another" else 1]
            new.boot(users, node.metadata.get("startup-script", ""))
            call.wait_for("looking for it|shows another host key")
            with pod.api.lock:
                node.network_endpoints[1].ip_address = new.address
                node.network_endpoints[1].access_config.external_ip = new.address
                pod.api.host_keys[name][1] = new.host_key
            assert call.wait() == 0, call.output
        finally:
            one.end()
        assert one.launches("w")["2-0"]["from"] == 6
        assert pod.api.created_nodes == 1
