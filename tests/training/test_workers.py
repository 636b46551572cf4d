"""Several processes over gloo: the same result as one, and an end instead of a hang."""

import json
import os
import shutil
import signal
import socket
import sys

import pytest
import torch

from snakemake_executor_plugin_tpu.worker.tpurun import free_port
from tests import shell
from tests.training.conftest import config, history, train_words, trainer
from trm.backends.workers import choose_interface
from trm.study.schema import PlacementConfig
from trm.training import loop
from trm.training.outputs import load_weights

RUN = {"micro_batches": 2, "puzzle_lr": 1e-2, "steps": 6}


def train(run, data, root, workers):
    """What a run says that is trained by several workers."""
    words = train_words(run, data, root, "--workers", str(workers), "--backend", "cpu", log_every=1)
    return shell.python("-m", "trm", *words, check=True).stdout


def test_several_workers_give_the_losses_of_one(dataset_folder, tmp_path):
    """With Muon, which takes Adam-atan2's steps outside of the blocks."""
    losses = []
    for workers in (1, 4):
        train(config(training=RUN | {"optimizer": "muon"}), dataset_folder, tmp_path / str(workers), workers)
        losses.append([float(row["train/loss"]) for row in history(tmp_path / str(workers))])
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_an_average_kept_by_the_first_worker_is_that_of_every_worker(dataset_folder, tmp_path):
    """EMA on one worker, handed over at each validation, against EMA on every worker: the very same average."""
    averages, rows = [], []
    for average in ("every", "first"):
        placement = PlacementConfig(workers=2, average=average)
        run = config(training=RUN).model_copy(update={"placement": placement})
        root = tmp_path / average
        assert train(run, dataset_folder, root, 2).count("step 6/6") == 1  # one writes
        averages.append(load_weights(root / "run").weights("ema")["head.weight"])
        rows.append([row["eval/cross_entropy"] for row in history(root)])
        assert json.loads((root / "run/training.json").read_text())["workers"] == 2
        assert all(int(history(root)[-1][f"perf/peak_host_bytes/{rank}"]) > 2**26 for rank in (0, 1))
    assert torch.equal(*averages)
    assert rows[0] == rows[1]
    assert any(rows[0])


def faulty(fault, data, root):
    """Outputs and exit codes of two workers, the second with a fault of tests/training/worker.py."""
    common = os.environ | {"WORLD_SIZE": "2", "TRM_WORKER_TIMEOUT": "60"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    if sys.platform == "linux":  # not the address of the host's name, which other tests' networks may hide
        common["GLOO_SOCKET_IFNAME"] = "lo"
    command = [sys.executable, "-m", "tests.training.worker", fault, data, root]
    processes = [shell.start(*command, env=common | {"RANK": str(rank)}) for rank in range(2)]
    outputs = [processes[0].communicate()[0]]
    if fault == "hang":  # it will not end by itself
        processes[1].kill()
    outputs.append(processes[1].communicate()[0])
    return outputs, [process.returncode for process in processes]


def test_a_worker_with_other_weights_is_named(dataset_folder, tmp_path):
    outputs, codes = faulty("perturb", dataset_folder, tmp_path)
    assert codes == [2, 2], outputs
    sentence = "worker 1 does not hold the same weights as worker 0 at step 4"
    assert all(sentence in output for output in outputs)


def test_weights_are_compared_at_first_every_so_many_steps_and_before_a_checkpoint(
    dataset_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(loop, "COMPARE_EVERY", 4)
    found, compared = trainer(config(), dataset_folder, tmp_path), []
    found.compare_workers = lambda: compared.append(found.record.done)
    found.run()
    assert compared == [0, 4, 6, 8, 12, 12]  # the first validation, at step 6, saves the best so far


def test_a_worker_that_hangs_ends_the_job_with_one_sentence(dataset_folder, tmp_path):
    """Of one that dies: under torchrun below."""
    outputs, codes = faulty("hang", dataset_folder, tmp_path)
    assert codes == [2, -9], outputs
    assert outputs[0].count("UserError: worker 0 of 2 stops: another worker died or did not answer") == 1


def test_under_torchrun_a_killed_worker_takes_the_job_down(dataset_folder, tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launcher += ["--monitor-interval", "3"]  # torchrun would sooner end the survivor than let it say why
    run = config(training={"steps": 100_000})
    words = train_words(run, dataset_folder, tmp_path, "--backend", "cpu", log_every=5)
    with shell.start(*launcher, "-m", "trm", *words) as job:
        assert any("step 10/" in line for line in job.stdout)
        workers = shell.run("ps", "-o", "pid=", "--ppid", job.pid).stdout.split()
        os.kill(max(map(int, workers)), signal.SIGKILL)
        rest = job.stdout.read()
    assert job.returncode == 1
    assert rest.count("trm train: worker") == 1, rest
    assert "trm train: worker 0 of 2 stops: another worker died or did not answer within 300 s" in rest


MEET = """
import torch
from trm.backends.workers import Workers, world_from_environment
workers = Workers("gloo", *world_from_environment())
total = torch.ones(3)
workers.all_reduce(total)
print(int(total.sum()), flush=True)
workers.close()
"""


def test_under_torchrun_workers_meet_though_the_hosts_name_leads_nowhere(tmp_path, monkeypatch):
    """As documented; the name has an address of TEST-NET-1 (RFC 5737), as behind some firewalls and VPNs."""
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n192.0.2.1 {socket.gethostname()}\n")
    (tmp_path / "meet.py").write_text(MEET)
    elsewhere = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    elsewhere += ['mount --bind "$0" /etc/hosts && exec "$@"', tmp_path / "hosts"]
    if not shutil.which("unshare") or shell.run(*elsewhere, "true").returncode:
        pytest.skip("this machine gives no namespaces to users: /etc/hosts cannot be replaced")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    environment = {"TRM_WORKER_TIMEOUT": "60", "PYTHONPATH": os.getcwd()}
    command = [*elsewhere, *launcher, "--nproc-per-node", "2", tmp_path / "meet.py"]
    assert shell.run(*command, env=environment, check=True).stdout.count("6") == 2


@pytest.mark.parametrize(
    ("variables", "interface"),
    [
        ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, "lo"),
        ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "eth7"}, "eth7"),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, None),  # of several machines
        ({"WORLD_SIZE": "4"}, None),
    ],
)
def test_workers_of_one_machine_alone_meet_on_its_loopback_interface(monkeypatch, variables, interface):
    for name in ("LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that what is set is taken back
        monkeypatch.delenv(name)
    for name, value in (variables | {"MASTER_ADDR": "host-0"}).items():
        monkeypatch.setenv(name, value)
    choose_interface()
    found = os.environ.get("GLOO_SOCKET_IFNAME")
    assert found == interface or (interface, found) == ("lo", "lo0")
    assert os.environ["MASTER_ADDR"] == ("127.0.0.1" if interface else "host-0")
