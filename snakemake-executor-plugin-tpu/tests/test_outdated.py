"""A launch of an earlier call serves only if it makes what this call asks for."""

from types import SimpleNamespace

import pytest
from scene import Scene, until
from snakemake.io import IOFile, ancient, flag, temp
from snakemake.settings.types import DAGSettings
from snakemake.sourcecache import LocalSourceFile

from snakemake_executor_plugin_tpu.identity import fingerprint_of, is_forced, why_outdated

LAUNCHED = 1e9


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("why", ["", "its output gs://b/weights is gone"])
async def test_a_launch_of_an_earlier_call_serves_unless_it_is_outdated(tmp_path, monkeypatch, why, ended):
    scene, asked = Scene(tmp_path, monkeypatch), []
    host = scene.up()
    async with scene.playing():
        async with scene.call() as call:
            call.run()
            await until(lambda: scene.started and call.slice.control)
        if ended:
            host.end()
            await until(lambda: scene.storage.names("/verdict"))
        async with scene.call() as call:
            _, task = call.run(outdated=lambda *launch: asked.append(launch) or why)
            await until(lambda: "of an earlier call" in call.output)
            await until(lambda: host.end() or task.done())
            assert task.result().ok
            if why:
                assert why in call.output
    for _, _, alive in scene.started:
        alive.close()
    assert len(scene.started) == 1 + bool(why)
    [(launched, told)] = asked
    assert told == ended
    assert launched > LAUNCHED  # by this machine's clock


def stored(name, changed=LAUNCHED, exists=True, made=str):
    found = SimpleNamespace(query=f"gs://b/{name}", mtime=lambda: changed, exists=lambda: exists)
    return IOFile(flag(made(name), "storage_object", found))


def job(inputs, outputs, group=False):
    one = SimpleNamespace(input=inputs, output=outputs, is_group=lambda: False)
    return SimpleNamespace(jobs=[one], is_group=lambda: True) if group else one


NEW = LAUNCHED + 60


@pytest.mark.parametrize(
    ("case", "forced", "running", "ended"),
    [
        (job([stored("a")], [stored("b")]), False, "", ""),
        (job([stored("a", NEW)], [stored("b")]), False, *2 * ["gs://b/a has changed since"]),
        (job([stored("a", LAUNCHED + 6)], [stored("b")]), False, "", ""),
        (job([stored("a", NEW, made=ancient)], [stored("b")]), False, "", ""),
        (job([stored("b", NEW)], [stored("b")], group=True), False, "", ""),
        (job([], [stored("a"), stored("b", exists=False)]), False, "", "its output gs://b/b is gone"),
        (job([], [stored("b", exists=False, made=temp)]), False, "", "its output gs://b/b is gone"),
        (job([], [stored("b", exists=False, made=temp)], group=True), False, "", ""),
        (job([], [stored("b")]), True, "", "it is forced"),
    ],
)
def test_why_a_launch_is_outdated(case, forced, running, ended):
    assert why_outdated(case, forced, LAUNCHED, ended=False) == running
    assert why_outdated(case, forced, LAUNCHED, ended=True) == ended


@pytest.mark.parametrize(
    ("settings", "forced"),
    [
        ({}, False),
        ({"forceall": True}, True),
        ({"forcerun": {"count"}}, True),
        ({"forcerun": {"gs://b/b"}}, True),
        ({"forcerun": {"table"}}, False),
        ({"forcetargets": True, "targets": {"b"}}, True),
        ({"targets": {"b"}}, False),
    ],
)
def test_what_the_user_forces(settings, forced):
    case = job([], [stored("b")])
    case.rule = SimpleNamespace(name="count")
    assert is_forced(case, DAGSettings(**settings)) == forced


def test_a_local_input_that_has_changed_makes_a_launch_outdated(tmp_path):
    path = tmp_path / "settings.json"
    path.touch()
    case = job([IOFile(str(path))], [stored("b")])
    assert why_outdated(case, False, LAUNCHED, ended=False) == f"{path} has changed since"
    assert why_outdated(case, False, path.stat().st_mtime, ended=False) == ""


def test_a_job_whose_script_has_changed_is_outdated(tmp_path):
    (tmp_path / "Snakefile").write_text("")
    script = tmp_path / "count.py"
    rule = SimpleNamespace(
        name="count", shellcmd=None, script="count.py", basedir=LocalSourceFile(str(tmp_path))
    )
    one = SimpleNamespace(rule=rule, input=[], params={}, threads=1, is_group=lambda: False)
    script.write_text("1")
    first = fingerprint_of(one)
    assert fingerprint_of(one) == first
    script.write_text("2")
    assert fingerprint_of(one) != first
    rule.script = "{name}.py"
    assert fingerprint_of(one)
