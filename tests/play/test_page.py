"""The page with the models: equal to `trm solve`, at home in any browser window, alone without a network."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests import browser
from trm.analysis.report import build, page
from trm.analysis.specs import ReportSpec
from trm.backends.cpu.device import CpuBackend
from trm.cli import main
from trm.evaluation.evaluate import inference_network
from trm.evaluation.solve import geometry_of, in_float32, solve, view_settings
from trm.play.page import EXAMPLES
from trm.play.source import LIMIT, sources
from trm.study.schema import DataConfig, EvaluationConfig
from trm.tasks.sudoku.geometry import Geometry, from_text, to_text
from trm.tasks.sudoku.pool import generated_pool
from trm.tasks.sudoku.pool import solve as solutions
from trm.training.outputs import load_weights, save_weights

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The page of the shipped models."""
    path = tmp_path_factory.mktemp("page") / "play.html"
    assert main(["play", "--models", str(MODELS), "--out", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    if browser.PATH is None:
        pytest.skip("no Chromium here")
    window = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield window
    window.close()


def test_the_page_is_one_small_file(file):
    text = file.read_text()
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)|@import|url\(""", text)
    found = sources(MODELS)
    assert {item["cells"] for item in found} == {36, 81}
    assert sum(len(item["data"]) for item in found) < LIMIT


def test_the_examples_have_one_solution():
    for text in EXAMPLES:
        geometry = Geometry(2 if len(text) == 36 else 3, 3)
        assert solutions(geometry, from_text(text)[None])[1].tolist() == [1]


def test_models_that_cannot_run_in_a_page_are_refused_in_one_sentence(tmp_path, capsys):
    def refused(words):
        assert main(["play", "--models", str(tmp_path), "--out", str(tmp_path / "p.html")]) == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "p.html").exists()

    trained = load_weights(MODELS / "sudoku6")
    model = trained.config.model.model_copy(update={"mixer": "attention"})
    other = trained.config.model_copy(update={"model": model})
    save_weights(tmp_path / "other/weights.safetensors", trained.tensors, other, trained.meta)
    refused("has no Sudoku model with the MLP mixer")
    for number in range(15):
        shutil.copytree(MODELS / "sudoku6", tmp_path / str(number))
    refused("more than 1,000,000: remove or shrink one")


def test_the_folder_of_one_model_is_enough():
    assert [model["name"] for model in sources(MODELS / "sudoku6")] == ["sudoku6"]


def test_the_report_carries_the_page_if_there_are_models(monkeypatch, tmp_path):
    report = build(ReportSpec(study="s", scale="laptop", experiments=({"name": "e", "table": "none.csv"},)))
    assert "function trmEngine" in page(report)
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "trmEngine" not in page(report)


def puzzles(name, count):
    """Unseen puzzles of a model's size, values [B, S]."""
    side, clues = (6, (9, 12)) if name == "sudoku6" else (9, (30, 40) if name == "sudoku9" else (23, 26))
    config = DataConfig(
        source="generate", box_rows=side // 3, clues_min=clues[0], clues_max=clues[1], pool=count, seed=7,
        train_puzzles=count // 2, augmentations=0, validation_puzzles=2, test_puzzles=count // 4,
    )  # fmt: skip
    return generated_pool(config).questions - 1


def reference(name, questions, steps, restarts):
    """What `trm solve` finds for each puzzle by itself."""
    trained = in_float32(load_weights(MODELS / name))
    net, _ = inference_network(trained, EvaluationConfig(), CpuBackend())
    found = [solve(net, geometry_of(trained), row[None], steps, restarts) for row in questions]
    fields = ("right", "starts", "steps", "answers", "halt_logits")
    return [[getattr(one, field)[0].tolist() for field in fields] for one in found]


SEARCH = """(() => {
  const { models } = JSON.parse(document.querySelector(".data").textContent), { frames } = trmEngine({});
  const source = models.find((item) => item.name === NAME), restarts = RESTARTS, steps = STEPS;
  return QUESTIONS.map((question) => {
    const found = [...frames({ source, question, steps, restarts })], last = found[found.length - 1];
    const ends = found.filter((frame) => frame.step === steps);
    const best = last.right ? last : ends.reduce((a, b) => (b.halt > a.halt ? b : a));
    return [best.right, best.start, best.step, best.answer, best.halt];
  });
})()"""


@pytest.mark.full
@pytest.mark.parametrize(("name", "count"), [("sudoku6", 40), ("sudoku9", 20), ("sudoku9_hard", 8)])
def test_the_page_finds_what_solve_finds(name, count, file, window, capsys):
    """Verdicts are equal; of solved puzzles restart, step and answer too, halt logits to rounding. Two views."""
    if not (MODELS / name).exists():
        pytest.skip("no such model")
    questions = puzzles(name, count)
    values = {"NAME": name, "RESTARTS": 2, "STEPS": 12, "QUESTIONS": questions.tolist()}
    script = re.sub("|".join(values), lambda word: json.dumps(values[word[0]]), SEARCH)
    window.open(file)
    found, wanted = window.run(script), reference(name, questions, 12, 2)
    assert [row[0] for row in found] == [row[0] for row in wanted]
    solved = [i for i, row in enumerate(found) if row[0]]  # where rounding is not amplified from step to step
    assert [found[i][:4] for i in solved] == [wanted[i][:4] for i in solved]
    np.testing.assert_allclose([found[i][4] for i in solved], [wanted[i][4] for i in solved], atol=0.02)
    view_steps, _ = view_settings(load_weights(MODELS / name).config.model.h_cycles)
    assert any(found[i][2] > view_steps for i in solved)
    options = ["--model", str(MODELS / name), "--steps", "12", "--restarts", "2", "--threads", "1"]
    for question, row in zip(questions[:4], found, strict=False):
        assert main(["solve", to_text(question), *options]) == (0 if row[0] else 1)
        printed = capsys.readouterr().out.splitlines()
        assert not row[0] or to_text(np.array(row[3], np.uint8)) in printed


@pytest.mark.full
@pytest.mark.parametrize(("width", "dark"), [(420, False), (1000, True)])
def test_a_visitor_types_a_puzzle_and_watches(width, dark, file, window):
    window.open(file, width, dark)
    get = "document.querySelector('.trm-play {}')".format
    assert window.run("document.documentElement.scrollWidth") == width
    window.run(
        f"const one = {get('[name=example]')}; one.selectedIndex = 0; one.dispatchEvent(new Event('change'))"
    )
    assert window.run(f"{get('.size')}.textContent") == "39,650"
    window.run(f"{get('[name=clear]')}.click(); {get('.cell')}.focus()")
    window.press("5", "ArrowRight", "5")  # by keyboard alone
    assert window.run(f"{get('.verdict')}.textContent") == (
        "The clues contradict one another: 5 is repeated in row 1."
    )
    assert window.run(f"{get('[name=run]')}.disabled")
    window.press("Backspace")
    assert window.run(f"{get('[name=text]')}.value") == "5" + "." * 35
    window.run(
        f"{get('[name=text]')}.value = '4.......5.61..4..5.1....1.653...36.4'; "
        f"{get('[name=text]')}.dispatchEvent(new Event('change')); {get('[name=run]')}.focus()"
    )
    window.press("Enter")
    window.wait(f"{get('.verdict')}.textContent")
    assert "the answer keeps every rule and clue" in window.run(f"{get('.verdict')}.textContent")
    assert window.run(f"{get('.board')}.classList.contains('solved')")
    window.run(f"{get('[name=step]')}.focus()")
    window.press("ArrowLeft")
    assert "Supervision step" in window.run(f"{get('.step')}.textContent")
    assert window.run("document.documentElement.scrollWidth") == width
    assert not window.errors
    assert all(address.startswith(("file:", "blob:", "data:")) for address in window.requests)


@pytest.mark.full
def test_every_control_has_a_name(file, window):
    window.open(file)
    nodes = window("Accessibility.getFullAXTree")["nodes"]
    controls = {"button", "combobox", "slider", "textbox", "gridcell", "grid", "image"}
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in controls
    ]
    assert {role for role, _ in named} >= controls - {"image"}
    assert [role for role, name in named if not name] == []
