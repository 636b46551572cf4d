"""A pod is deleted only if it is known to be lost, and never while somebody's job runs."""

import re
from dataclasses import replace

import pytest

from snakemake_executor_plugin_tpu.cloud import PodState
from snakemake_executor_plugin_tpu.emulator.hosts import make_key
from snakemake_executor_plugin_tpu.emulator.study import keys_of, until
from snakemake_executor_plugin_tpu.lifecycle import Pod, PodManager

LONG = {"steps": 12, "options": "--hold 6"}


@pytest.fixture
def blocked_ssh(tmp_path):
    """Return a PATH with an ssh that cannot connect while a file exists, and that file."""
    folder, block = tmp_path / "bin", tmp_path / "blocked"
    folder.mkdir()
    (folder / "ssh").write_text(
        f"#!/bin/sh\nif [ -e {block} ]; then\n"
        "echo 'ssh: connect to host w0 port 22: Connection timed out' >&2; exit 255; fi\n"
        'exec /usr/bin/ssh "$@"\n'
    )
    (folder / "ssh").chmod(0o755)
    return f"{folder}:/usr/bin:/bin", block


def test_somebody_without_a_key_deletes_nothing(study, tmp_path):
    one, other = study({"a": LONG}), study({"b": {}}, **{"tpu-recovery": 3})
    call = one.start()
    call.wait_for(r"job=a 0\] step 6$")
    keys = keys_of(one.pod)
    make_key(tmp_path / "other")
    output = other.run(code=1, SNAKEMAKE_TPU_SSH_KEY=str(tmp_path / "other"))
    assert f"does not let snakemake in with {tmp_path}/other" in output
    assert "nothing was deleted. Use the key with which the pod was created" in output
    one.release("a")
    assert call.wait() == 0, call.output
    assert keys_of(one.pod) == keys
    assert set(one.launches("a")) == {"1-0"}


def test_blocked_port_deletes_nothing_and_the_job_is_found_again(study, blocked_ssh):
    path, block = blocked_ssh
    one = study({"a": LONG}, **{"tpu-recovery": 60})
    call = one.start(PATH=path)
    call.wait_for(r"job=a 0\] step 6$")
    keys = keys_of(one.pod)
    block.touch()
    for host in one.pod.hosts:
        host.drop_connections()
    call.wait_for("looking for it")
    block.unlink()
    call.wait_for("re-attaching")
    one.release("a")
    assert call.wait() == 0, call.output
    assert keys_of(one.pod) == keys
    assert set(one.launches("a")) == {"1-0"}


def test_a_job_on_a_silent_host_fails_with_an_explanation_and_others_continue(study):
    one = study({"a": LONG, "b": LONG}, **{"tpu-recovery": 1, "keep-going": True})
    call = one.start()
    call.wait_for(r"job=a 0\] step 6$")
    call.wait_for(r"job=b 0\] step 6$")
    keys = keys_of(one.pod)
    (rank,) = [
        host.rank for host in one.pod.hosts if any("checkpoints/b " in line for line in host.jobs().values())
    ]
    if rank == 0:
        one.pod.hosts[0].kill()
        expected = "A host of the pod does not answer by ssh: w0"
    else:
        one.pod.hosts[rank].kill()
        expected = f"w{rank} has been silent for 1 s, and the TPU API says that the pod is READY"
    call.wait_for(expected)
    one.release("a")
    assert call.wait() == 1
    assert keys_of(one.pod) == keys
    assert set(one.launches("b")) == {"1-0"}
    if rank:
        assert "a counted" in one.pod.bucket.blob(f"{one.prefix}/counts/a.txt").download_as_text()


def test_down_spares_a_pod_in_use_unless_forced(study):
    one = study({"a": LONG, "b": LONG}, retries=3)
    call = one.start()
    call.wait_for(r"job=a 0\] step 6$")
    code, output = one.command("down")
    assert code == 1
    assert f"(process {call.process.pid} in {one.folder}, since " in output
    assert "`down --force` deletes the pod anyway" in output
    code, output = one.command("down", "--force")
    assert code == 0, output
    assert call.wait() == 1
    assert "was deleted (by `down`, gcloud or the console)" in call.output
    assert one.pod.api.nodes == {} == one.pod.api.queued


def test_stopped_job_is_not_started_again(study):
    one = study({"a": LONG}, retries=2)
    call = one.start()
    call.wait_for(r"job=a 0\] step 6$")
    slot = re.search(r"(count-[0-9a-f]{12})", one.command("status")[1])[1]
    assert one.command("stop", slot)[0] == 0
    assert call.wait() == 1
    assert "was stopped by `python -m snakemake_executor_plugin_tpu stop`" in call.output
    assert set(one.launches("a")) == {"1-0"}
    one.run()  # the next call starts it again
    assert one.launches("a")["2-0"]["from"] == 6


def test_a_failed_request_after_a_preemption_is_repeated(study):
    one = study({"a": LONG})
    call = one.start()
    call.wait_for(r"job=a 0\] step 6$")
    one.pod.api.fail_requests(2)
    one.pod.preempt()
    call.wait_for("no spot v4-32 in us-central2-b, requested since .* next try at")
    assert call.wait() == 0, call.output
    assert one.launches("a")["2-0"]["from"] == 6


def test_ctrl_c_while_queued_withdraws_the_request(study):
    one = study({"a": {}})
    one.pod.remove()
    one.pod.api.full_zones.add("us-central2-b")
    call = one.start()
    call.wait_for("WAITING_FOR_RESOURCES")
    call.signal(2)
    assert call.wait() == 1
    assert "the request was withdrawn" in call.output
    until(lambda: not one.pod.api.queued)


@pytest.mark.parametrize(
    ("node", "told", "current", "begun"),
    [("PREEMPTED", "", "a", 1), ("READY", "b", "a", 1), ("READY", "a", "a", 0), ("READY", "b", "b", 0)],
)
def test_a_lost_pod_is_recovered_even_by_a_job_with_an_old_number(node, told, current, begun):
    """One job's silent host gave the pod a new number; the next job that finds the pod lost has the old one."""
    seen = Pod(1, None, [], "python3", incarnation="a")
    manager, started = PodManager.__new__(PodManager), []
    manager.current = replace(seen, number=2, incarnation=current)
    manager._state = (0.0, PodState(node, "ACTIVE", addresses=("10.0.0.1",), incarnation=told))
    manager._start = lambda work: (started.append(work), work.close())
    manager.lose(seen, "the pod is gone")
    assert len(started) == begun
    assert (manager.current is None) == bool(begun)
