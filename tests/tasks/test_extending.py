"""The task in docs/extending.md works as it is printed there."""

import json

from tests.conftest import block
from tests.shell import python
from tests.training.conftest import MODEL, TRAINING
from trm.analysis.traces import shape

REGISTER = """if True:
    import os, sys
    os.chdir(sys.argv.pop(1))
    sys.path.insert(0, "code")
    import trm.study
    from pathlib import Path
    path = Path(trm.study.__path__[0], "schema.py")
    before, line, after = path.read_text().partition('TASKS = {')
    module = type(sys)("trm.study.schema")
    sys.modules[module.__name__] = trm.study.schema = module
    exec(before + line + '"reverse": "reverse", ' + after, vars(module))  # the line that the page adds
    from trm.cli import main
    sys.exit(any(main(words.split()) for words in sys.argv[1:]))
"""


DATA = {"task": "reverse", "source": "generate", "augmentations": 0}  # as many puzzles as the splits need
DATA |= {"train_puzzles": 150, "validation_puzzles": 20, "test_puzzles": 50}
RUN = {
    "model": MODEL | {"layers": 1, "h_cycles": 1, "halt_max_steps": 2, "multiple": 8},
    "data": DATA,
    "training": TRAINING | {"batch_size": 32, "steps": 200, "lr": 1e-2, "warmup_steps": 10},
}


def test_the_printed_task_is_built_drawn_trained_and_evaluated(tmp_path):
    folder = tmp_path / "code" / "reverse"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    for name in ("spec", "task"):
        (folder / f"{name}.py").write_text(block(f"trm/tasks/reverse/{name}.py"))
    (tmp_path / "run.json").write_text(json.dumps(RUN))

    commands = (
        "data source --config run.json --out pool",
        "data build --config run.json --source pool --out set",
        "data inspect set --samples 1",
        "train --config run.json --dataset set --out run --checkpoints saved --threads 1",
        "evaluate --run run --dataset set --out e.json",
    )
    done = python("-m", "tests.script", REGISTER, tmp_path, *commands, check=True)
    drawn = done.stdout.split("row ")[1].split()
    assert drawn[2] == drawn[1][::-1]
    found = json.loads((tmp_path / "e.json").read_text())
    test = next(row for row in found["results"] if row["split"] == "test")
    assert found["guess"]["uniform"] == 0.25
    spec: dict = {}
    exec(block("trm/tasks/reverse/spec.py"), spec)
    assert [spec["SPEC"].glyph(token) for token in range(5)] == ["", "1", "2", "3", "4"]  # in pictures
    assert shape({"answer": [1] * 8}) == (1, 8)
    assert test["accuracy"] > 0.6  # a guess gets 0.25; the token mixer learns which cell goes where
