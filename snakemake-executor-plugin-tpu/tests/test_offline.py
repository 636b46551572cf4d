"""A controller without a network, and local rules that fail: the jobs on the pod go on."""

import signal

import pytest

from snakemake_executor_plugin_tpu.emulator import gcs
from snakemake_executor_plugin_tpu.emulator.study import keys_of, until

LONG = {"steps": 12, "options": "--hold 6"}


@pytest.fixture
def cut(healthy_pod):
    """Return the pod, whose network can be cut."""
    if not healthy_pod.network.separate:
        pytest.skip("the hosts share this machine's network: it needs iproute2 and CAP_NET_ADMIN")
    yield healthy_pod
    healthy_pod.connect(True)


def test_jobs_go_on_while_the_controller_is_offline(study, cut):
    """For longer than tpu-reconnect and tpu-recovery together."""
    one = study({"a": LONG}, retries=1)
    call = one.start()
    call.wait_for(r"job=a 0\] step 6$")
    keys = keys_of(cut)
    cut.connect(False)
    call.wait_for(r"Cannot reach Google since \d\d:\d\d .*; nothing was changed, your jobs go on")
    seen = cut.api.calls.count("GetNode")
    until(lambda: cut.api.calls.count("GetNode") > seen + 3)
    assert call.process.poll() is None
    cut.connect(True)
    call.wait_for("Google answers again")
    one.release("a")
    assert call.wait() == 0, call.output
    assert "Trying to restart job" not in call.output
    assert "says that the pod is READY" not in call.output
    assert "Unknown child process" not in call.output
    assert set(one.launches("a")) == {"1-0"}
    assert keys_of(cut) == keys


def test_an_error_of_a_local_rule_leaves_the_jobs_running(study, monkeypatch):
    one = study({"a": {}, "b": LONG}, **{"keep-going": True})
    snakefile = one.folder / "Snakefile"
    rules = (
        'localrules: taken, both\nrule taken:\n    input: remote("counts/a.txt")\n    output: "taken.txt"\n'
    )
    rules += '    shell: "cp {input} {output}"\n'
    rules += 'rule both:\n    input: "taken.txt", remote("counts/b.txt")\n'
    snakefile.write_text(snakefile.read_text() + rules)
    forward = gcs.ProxyHandler._forward

    def refuse(handler):
        if handler.command == "GET" and "counts%2Fa.txt" in handler.path and "alt=media" in handler.path:
            handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
            return handler._error(403, "denied")
        return forward(handler)

    monkeypatch.setattr(gcs.ProxyHandler, "do_GET", refuse)
    call = one.start("both")
    assert call.wait() == 1
    assert "1 job(s) go on on the TPU pod" in call.output
    assert "run the same command again to go on with them" in call.output
    monkeypatch.undo()
    again = one.start("both")
    again.wait_for("re-attaching")
    one.release("b")
    assert again.wait() == 0, again.output
    assert set(one.launches("b")) == {"1-0"}


def test_a_termination_signal_is_a_ctrl_c(study):
    one = study({"a": LONG})
    call = one.start()
    call.wait_for(r"job=a 0\] step 6$")
    call.signal(signal.SIGTERM)
    assert call.wait() == 1
    assert "Stopping 1 job(s) on the TPU pod" in call.output
    assert "Traceback" not in call.output
    assert one.pod.jobs() == {}
