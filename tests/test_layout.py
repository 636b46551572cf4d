"""The source tree: nothing imports upward, no circles between files, no folder without a place; lines of documents."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
ORDER = (
    "errors", "io", "provenance", "compiled", "storage", "study", "data", "tasks", "model", "backends", "training",
    "evaluation", "play", "analysis", "checks", "pipeline", "results", "slurm", "launch", "cli",
)  # fmt: skip
"""Packages of trm from low to high. docs/architecture.md says what each is for, CONTRIBUTING.md lists them too."""


def modules() -> dict[str, Path]:
    """Dotted name -> file of every module of trm."""
    found = {}
    for path in (ROOT / "trm").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def parsed(path: Path) -> list[ast.AST]:
    """Every node of a file."""
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of trm that a file imports, inside functions and for types alone too."""
    found = set()
    for node in parsed(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom) and node.module in known and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
    return found


def test_nothing_imports_upward():
    known = modules()
    upward = []
    for name, path in known.items():
        if name.count(".") == 0 or name == "trm.__main__":
            continue
        own = ORDER.index(name.split(".")[1])
        for other in sorted(imports(path, known)):
            if other.count(".") and ORDER.index(other.split(".")[1]) > own:
                upward.append(f"{name} -> {other}")
    assert not upward, "\n".join(upward)


def test_the_documents_give_the_same_order():
    rows = re.findall(r"^\| (`trm/[^|]*) \|", (ROOT / "docs/architecture.md").read_text(), re.M)
    assert re.findall(r"`trm/(\w+)(?:\.py)?`", " ".join(rows)) == [*reversed(ORDER)]
    (block,) = re.findall(r"^    (cli  [^`]*?)\n\n", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert block.split() == [*reversed(ORDER)]


def test_only_the_tasks_compare_names_of_tasks():
    """What a task decides is in its spec or class: a new one touches its folder and a line in `TASKS`."""
    compared = []
    for name, path in modules().items():
        for node in parsed(path):
            if isinstance(node, ast.Compare) and not name.startswith("trm.tasks"):
                sides = [node.left, *node.comparators]
                task = any(getattr(side, "id", getattr(side, "attr", "")) == "task" for side in sides)
                if task and any(isinstance(getattr(side, "value", None), str) for side in sides):
                    compared.append(f"{path}:{node.lineno}")
    assert not compared, compared


def test_no_circles():
    known = modules()
    graph = {name: imports(path, known) - {name} for name, path in known.items()}
    TopologicalSorter(graph).prepare()  # its CycleError names the circle


def test_lines_of_documents_have_at_most_120_characters():
    """Tables, definitions of links, and lines that a link or a comment makes long, are exempt."""
    folders = (".", "docs", "config", "models/*", "envs/*", "snakemake-executor-plugin-tpu/**")
    pages = {page for folder in folders for page in ROOT.glob(f"{folder}/*.md") if ".venv" not in str(page)}
    assert len(pages) > 20
    long = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in sorted(pages)
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if len(re.sub(r"\]\([^)]*\)|<!--.*?-->", "]", line)) > 120
        and not line.lstrip().startswith(("|", "[="))
    ]
    assert long == []
