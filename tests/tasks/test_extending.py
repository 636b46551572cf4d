"""The task in docs/extending.md works as it is printed there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REGISTER = """if True:
    import sys
    import trm.study
    from pathlib import Path
    path = Path(trm.study.__path__[0], "schema.py")
    before, line, after = path.read_text().partition('TASKS = {')
    module = type(sys)("trm.study.schema")
    sys.modules[module.__name__] = trm.study.schema = module
    exec(before + line + '"reverse": "reverse", ' + after, vars(module))  # the line that the page adds
    from trm.cli import main
    sys.exit(main(sys.argv[1:]))
"""


def test_the_printed_task_is_built_drawn_trained_and_evaluated(tmp_path):
    folder = tmp_path / "code" / "reverse"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    for name in ("spec", "task"):
        (block,) = re.findall(rf'```python title="trm/tasks/reverse/{name}\.py"\n(.*?)```', page, re.DOTALL)
        (folder / f"{name}.py").write_text(block)

    def trm(*arguments):
        env = os.environ | {"PYTHONPATH": f"{folder.parent}{os.pathsep}{ROOT}"}
        done = subprocess.run(
            [sys.executable, "-c", REGISTER, *map(str, arguments)], env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    data = {"task": "reverse", "source": "generate", "pool": 300, "augmentations": 0}
    data |= {"train_puzzles": 150, "validation_puzzles": 20, "test_puzzles": 50}
    model = {"d_model": 16, "heads": 2, "layers": 1, "h_cycles": 1, "l_cycles": 1, "halt_max_steps": 2}
    model |= {"puzzle_tokens": 1, "multiple": 8}
    training = {
        "batch_size": 32,
        "steps": 200,
        "lr": 1e-2,
        "warmup_steps": 10,
        "weight_decay": 0.1,
        "ema": 0.9,
    }
    (tmp_path / "run.json").write_text(
        json.dumps({"model": model, "data": data, "training": training | {"precision": "float32"}})
    )
    common = ["--config", tmp_path / "run.json"]
    trm("data", "source", *common, "--out", tmp_path / "pool")
    trm("data", "build", *common, "--source", tmp_path / "pool", "--out", tmp_path / "set")
    drawn = trm("data", "inspect", tmp_path / "set", "--samples", "1").split("row ")[1].split()
    assert drawn[2] == drawn[1][::-1]
    places = ["--dataset", tmp_path / "set", "--out", tmp_path / "run", "--checkpoints", tmp_path / "saved"]
    trm("train", *common, *places, "--threads", "1")
    trm("evaluate", "--run", tmp_path / "run", "--dataset", tmp_path / "set", "--out", tmp_path / "e.json")
    found = json.loads((tmp_path / "e.json").read_text())
    test = next(row for row in found["results"] if row["split"] == "test")
    assert found["guess"]["uniform"] == 0.25
    assert test["accuracy"] > 0.6  # a guess gets 0.25; the token mixer learns which cell goes where
