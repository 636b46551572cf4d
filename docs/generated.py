"""The generated parts of config/ and docs/: JSON schema, tables of keys, experiments, kinds of figures, gallery.

python docs/generated.py            # in the checkout: writes them (`make schema`)
python docs/generated.py --check    # prints which are out of date (`make lint`)
"""

import ast
import inspect
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from trm.analysis.kinds import KINDS
from trm.analysis.labels import METRICS
from trm.analysis.specs import Figure
from trm.io import paragraph, read_json
from trm.pipeline.estimates import Estimates
from trm.pipeline.project import Project, open_project
from trm.pipeline.settings import Settings
from trm.results.redraw import pictures
from trm.study.cost import Hardware
from trm.study.experiment import Experiment, Grid, Scale, StudyFile
from trm.study.schema import (
    CurriculumStage,
    DataConfig,
    DataStage,
    EvaluationConfig,
    ModelConfig,
    PlacementConfig,
    RuntimeConfig,
    TrainingConfig,
)
from trm.study.text import seconds_text

TABLES: list[tuple[str, type[BaseModel]]] = [
    ("The file", StudyFile),
    ("A scale", Scale),
    ("An experiment", Experiment),
    ("A grid", Grid),
    ("`model`", ModelConfig),
    ("`data`", DataConfig),
    ("A stage of `data.curriculum`", DataStage),
    ("`training`", TrainingConfig),
    ("A stage of `training.curriculum`", CurriculumStage),
    ("`placement`", PlacementConfig),
    ("`evaluation`", EvaluationConfig),
    ("`runtime` of a scale (not part of a run's identity)", RuntimeConfig),
    ("An entry of config/hardware.yaml", Hardware),
    ("`--config` of Snakemake", Settings),
]
SHOWN = {
    "laptop": {"study": "config/laptop.yaml"},
    "workstation": {"study": "config/workstation.yaml"},
    "gpu": {"scale": "gpu"},
    "tpu": {"scale": "tpu"},
}
"""The columns of docs/experiments.md: scale -> Snakemake's config."""
_WORDS = {
    "integer": "integer",
    "number": "number",
    "string": "text",
    "boolean": "true/false",
    "object": "mapping",
    "array": "list",
    "null": "null",
}


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Field -> its docstring, which pydantic could read too, but at every start of every command."""
    body = ast.parse(inspect.getsource(model)).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }  # fmt: skip


def schema_text() -> str:
    """JSON schema of a study, for editors that check while typing."""
    schema = StudyFile.model_json_schema()
    for section, part_of in (("model", ModelConfig), ("data", DataConfig), ("training", TrainingConfig)):
        schema.setdefault("$defs", {})[section] = part_of.model_json_schema(ref_template="#/$defs/{model}")
    parts = {part["title"]: part for outer in _objects(schema) for part in _objects(outer)}
    for model in (model for _, model in TABLES if model.__name__ in parts):
        for name, meaning in meanings(model).items():
            parts[model.__name__]["properties"][name]["description"] = meaning
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def _objects(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """A schema and those that it defines."""
    return [schema, *schema.get("$defs", {}).values()]


def keys_text() -> str:
    """Markdown tables of all keys: type, default, meaning."""
    parts = []
    for heading, model in TABLES:
        rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
        schemas = model.model_json_schema()["properties"]
        described = meanings(model)
        for name, field in model.model_fields.items():
            meaning = " ".join(described.get(name, "").split()).replace("|", "\\|")
            rows.append(f"| `{name}` | {_type(schemas[name])} | {_key_default(field)} | {meaning} |")
        parts.append(f"### {heading}\n\n" + "\n".join(rows))
    return "\n\n".join(parts)


def _type(schema: dict[str, Any]) -> str:
    """The type of a JSON schema, in words."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(item) for item in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    return _WORDS.get(schema.get("type", ""), "section")


def _key_default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    value = field.default
    if isinstance(value, BaseModel):
        return "its own defaults"
    return f"`{json.dumps(value, default=lambda model: model.model_dump(exclude_defaults=True))}`"


def experiments_text() -> str:
    """Markdown: one row an experiment, with its question and what it costs wherever it is run."""
    every = {scale: open_project(config | {"experiments": "study"}) for scale, config in SHOWN.items()}
    estimates = {scale: Estimates(project, measured=False, set_up=False) for scale, project in every.items()}
    rows = [f"| experiment | question | {' | '.join(SHOWN)} |", "|---" * (len(SHOWN) + 2) + "|"]
    for name in dict.fromkeys(name for project in every.values() for name in project.study.experiments):
        projects = [project for project in every.values() if name in project.study.experiments]
        question = projects[0].study.experiment(name).definition.question
        costs = [_cost(project, estimates[scale], name) for scale, project in every.items()]
        rows.append(f"| `{name}` | {question} | {' | '.join(costs)} |")
    return "\n".join(rows)


def _cost(project: Project, estimates: Estimates, name: str) -> str:
    """Runs and job time of an experiment at one scale; empty where the study lacks it or needs a file for it."""
    if name not in project.study.experiments or project.study.experiment(name).skip:
        return ""
    costs = [estimates.of(run) for run in project.study.experiment(name).runs]
    return f"{len(costs)}: {seconds_text(sum(cost.seconds for cost in costs))}"


def gallery_text() -> str:
    """Markdown: each kind of figure with a kept picture, how to read it, and its lines in a study."""
    results = Path("docs/results")
    kept = {kind: name for name, kind in reversed(pictures(results).items())}
    drawn = {name: path.parent.name for path in results.glob("*/figures.json") for name in read_json(path)}
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for config in SHOWN.values():
        study = open_project(config | {"experiments": "study"}).study
        for name, experiment in study.experiments.items():
            for raw in experiment.definition.figures:
                found.setdefault(raw["kind"], []).append((name, raw))
    parts = []
    for kind, module in KINDS.items():
        reading = module.Spec.reading
        lines = [f"### {kind}", "", paragraph(f"{reading[0].upper()}{reading[1:]}."), ""]
        source = drawn.get(kept.get(kind, ""), "").removesuffix("_laptop")
        if source:
            lines += [f"![A figure of `{source}`](images/results/{kept[kind]}.png)", ""]
        elif kind == "scaling_laws":
            lines += ["![The main figure of the laptop study](images/scaling_laws.png)", ""]
        if kind in found:
            name, raw = min(found[kind], key=lambda item: (item[0] != source, len(item[1])))
            text = yaml.safe_dump(dict(raw), default_flow_style=True, sort_keys=False, width=60).strip()
            lines += [f"As in `{name}`:", "", "```yaml", text, "```"]
        parts.append("\n".join(lines).strip())
    return "\n\n".join(parts)


def kinds_text() -> str:
    """Markdown: the kinds of figures with their keys, and the metrics that `y` and `z` may name."""
    rows = ["| kind | keys (default) | shows |", "|---|---|---|"]
    for kind, module in KINDS.items():
        fields = [item for item in module.Spec.model_fields.items() if item[0] not in Figure.model_fields]
        keys = ", ".join(f"{key}{_default(field.default)}" for key, field in fields)
        shows = " ".join((module.__doc__ or "").split()).removeprefix(f"`{kind}`: ").rstrip(".")
        rows.append(f"| `{kind}` | {keys} | {shows} |")
    metrics = ", ".join(f"`{name}` ({label.name})" for name, label in METRICS.items())
    return "\n".join(rows) + "\n\n" + paragraph(f"Metrics: {metrics}.")


def _default(value: Any) -> str:
    """The default of a key in brackets, where there is one."""
    if value in (None, (), "", False) or value is PydanticUndefined:
        return ""
    return f" ({', '.join(map(str, value)) if isinstance(value, tuple) else value})"


def write_or_check(check: bool) -> int:
    """Write the generated parts, or print which files are out of date (`check`); 1 if one of these is."""
    parts = {
        "config/README.md": ("keys", keys_text()),
        "docs/experiments.md": ("experiments", experiments_text()),
        "docs/gallery.md": ("gallery", gallery_text()),
        "docs/analysis.md": ("kinds", kinds_text()),
    }
    wanted = {Path(path): _with_part(Path(path), *part) for path, part in parts.items()}
    wanted[Path("config/schema.json")] = schema_text()
    stale = [path for path in wanted if not path.exists() or path.read_text("utf-8") != wanted[path]]
    for path in stale:
        if check:
            why = "does not match the schema, the study or the kinds of figures: run `make schema`"
            print(f"{path} {why}", file=sys.stderr)
        else:
            path.write_text(wanted[path], encoding="utf-8")
    return int(check and bool(stale))


def _with_part(path: Path, name: str, part: str) -> str:
    """A page with the part between its two marks replaced."""
    begin, end = f"<!-- {name}: generated by `make schema` -->", f"<!-- end of {name} -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    return f"{before}{begin}\n\n{part}\n\n{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    sys.exit(write_or_check("--check" in sys.argv[1:]))
