"""A run as each of two hosts sees it: the programs that each of its phases starts, in their order, as JSON.

    python -m tests.xla.ranks FOLDER '["mlp", "arc"]'

The other host is not there: what it would send equals what this one holds. Rank 0 comes first, because the other one
reads its checkpoints and weights. Both run in this process, which compiles the programs of a training once. Programs
are known by torch_xla's hashes of their graphs.
"""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
GRAPHS = FOLDER / "graphs.txt"
os.environ |= {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4", "XLA_SAVE_TENSORS_FILE": str(GRAPHS)}

import torch  # noqa: E402 (torch_xla reads the environment when it is imported)
import torch_xla  # noqa: E402
from torch import Tensor  # noqa: E402

from tests.training.puzzles import write_dataset  # noqa: E402
from tests.xla.steps import config  # noqa: E402
from trm.backends.tpu.device import XlaBackend  # noqa: E402
from trm.checks.tpu_check.tracing import PHASES  # noqa: E402
from trm.errors import UserError  # noqa: E402
from trm.evaluation.evaluate import evaluate_run  # noqa: E402
from trm.study.schema import DataConfig, EvaluationConfig, RunConfig, RuntimeConfig  # noqa: E402
from trm.tasks.build import build_dataset, build_source  # noqa: E402
from trm.training.dataset import Dataset  # noqa: E402
from trm.training.loop import Trainer  # noqa: E402

ARC = {"task": "arc", "source": "generate", "arc_side": 6, "augmentations": 3}
ARC |= {"train_puzzles": 5, "validation_puzzles": 5, "test_puzzles": 5}
STEPS, STOP = 6, 4


class Host(XlaBackend):
    """One of two hosts."""

    stop_at = 0
    others: Tensor | None = None  # what the other host holds, if a fault makes this one differ

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank, self._processes = rank, 2

    def gather(self, vector: Tensor) -> list[Tensor]:
        self.gathered = vector
        return [vector if self.others is None else self.others, vector]

    def broadcast(self, tensor: Tensor) -> None:
        pass

    def stop_agreed(self, stop: Tensor, step: int, requested: int) -> bool:
        return step == self.stop_at


class Log:
    """Programs by phase."""

    backend: Host

    def __init__(self) -> None:
        self.phases, self._read, self._replayed = [], 0, []
        native = torch_xla._XLAC
        start = native._run_cached_graph

        def run_cached_graph(program: Any, arguments: Any) -> Any:
            self._replayed.append(f"replay {program.hex()}")
            return start(program, arguments)

        native._run_cached_graph = run_cached_graph

    def phase(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, with its programs noted under `name`; phases within it are noted by themselves."""

        def run(*arguments: Any, **options: Any) -> Any:
            self._take("between")
            before = self.backend.compilations()
            found = call(*arguments, **options)
            self._take(name, self.backend.compilations() - before)
            return found

        return run

    def _take(self, name: str, compiled: int = 0) -> None:
        self.backend.synchronize()
        text = ""
        for path in FOLDER.glob(f"{GRAPHS.name}*"):  # of one process there is one
            with open(path) as file:
                file.seek(self._read)
                text, self._read = file.read(), file.tell()
        hashes = re.findall(r"Graph Hash: (\w+)", text)
        programs, self._replayed = [*hashes, *self._replayed], []
        if programs or name != "between":
            self.phases.append([name, programs, compiled])


def run_of(case: str) -> RunConfig:
    if case != "arc":
        return config(case, steps=STEPS, snapshots=2, micro_batches=2)
    run = config("attention", steps=STEPS, snapshots=2, puzzle_lr=1e-2)
    return run.model_copy(update={"data": DataConfig.model_validate(ARC)})


def dataset_of(case: str) -> Path:
    place = FOLDER / ("arc" if case == "arc" else "sudoku")
    if case != "arc":
        return place if place.exists() else write_dataset(place)
    if not place.exists():
        build_source(run_of(case).data, place / "source")
        build_dataset(run_of(case).data, place / "source", place / "set")
    return place / "set"


def trainer(case: str, log: Log, checkpoints: Path) -> Trainer:
    runtime = RuntimeConfig(log_every=1, evals=3)
    out = FOLDER / f"out-{case}-{log.backend.rank}"
    out.mkdir(exist_ok=True)
    dataset = Dataset(dataset_of(case))
    found = Trainer(run_of(case), dataset, out, checkpoints, log.backend, runtime, time.monotonic())
    for method, name in PHASES.items():
        setattr(found, method, log.phase(name, getattr(found, method)))
    found.saver.snapshot = log.phase("snapshot", found.saver.snapshot)
    return found


def faults(found: Trainer) -> list[str]:
    """What a run says at a checkpoint if one weight of this host alone is NaN, or differs in its lowest bit."""
    found.compare_workers()
    host, params, said = found.backend, found.state.params[0], []
    assert isinstance(host, Host)
    host.others, whole = host.gathered, params.clone()
    for value in (
        torch.tensor(torch.nan),
        torch.nextafter(host.fetch(params)[0, 3], torch.tensor(torch.inf)),
    ):
        with torch.no_grad():
            params.copy_(whole)
            params[0, 3] = value.to(params.device)
        try:
            found.save()
        except UserError as error:
            said.append(str(error))
    return said


def phases(rank: int, cases: list[str], log: Log) -> dict[str, Any]:
    """Programs by case, as this host sees them, and what it says of faults."""
    backend = log.backend = Host(rank)
    found: dict[str, Any] = {}
    for case in cases:
        own, stopped = FOLDER / f"checkpoints-{case}-{rank}", FOLDER / f"stopped-{case}"
        backend.stop_at = STOP
        log.phase("start", trainer)(case, log, own).run()
        if rank == 0:
            shutil.copytree(own, stopped)
        shutil.copytree(stopped, own, dirs_exist_ok=True)
        backend.stop_at = 0
        assert log.phase("resume", trainer)(case, log, own).run() == 0
        settings = EvaluationConfig(confident=True, restarts=(1, 2), start_noise=0.1, train_puzzles=4)
        weights, out = FOLDER / f"out-{case}-0", FOLDER / f"evaluation-{case}-{rank}.json"
        log.phase("evaluation", evaluate_run)(weights, dataset_of(case), settings, out, None, backend)
        found[case], log.phases = log.phases, []
    backend.stop_at = 1
    one = trainer("mlp", log, FOLDER / f"faults-{rank}")
    one.run()
    found["faults"], log.phases = faults(one), []
    return found


def main() -> None:
    torch.set_num_threads(1)
    log = Log()
    print(json.dumps([phases(rank, json.loads(sys.argv[2]), log) for rank in range(2)]))


if __name__ == "__main__":
    main()
