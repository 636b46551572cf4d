"""`--log FILE`: the console's text in a file that outlives what Snakemake and a signal do."""

import io
import sys

import pytest

from trm.cli import main
from trm.cli.log import logged


def test_the_log_of_a_second_attempt_holds_the_first(tmp_path, capsys):
    path = tmp_path / "logs/run.log"
    for word in ("one", "two"):
        path.unlink(missing_ok=True)  # as Snakemake does before each attempt
        with logged(path):
            print(word)
    lines = path.read_text().splitlines()
    assert [line for line in lines if not line.startswith("--- ")] == ["one", "two"]
    assert len(lines) == 4
    assert capsys.readouterr().out == "one\ntwo\n"


def test_a_console_that_is_gone_stops_nothing(tmp_path, monkeypatch):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    with logged(tmp_path / "run.log"):
        print("one", flush=True)
        print("two", flush=True)
    assert (tmp_path / "run.log").read_text().endswith("one\ntwo\n")


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_an_error_sentence_is_in_the_log(tmp_path, capsys, command):
    log = tmp_path / "run.log"
    words = {
        "train": ["--config", "{", "--dataset", "x", "--out", "x", "--checkpoints", "x"],
        "evaluate": ["--run", "x", "--dataset", "x", "--evaluation", "{", "--out", "x"],
    }
    assert main([command, *words[command], "--log", str(log)]) == 2
    assert f"trm {command}: --" in log.read_text()
    assert f"trm {command}: --" in capsys.readouterr().err
