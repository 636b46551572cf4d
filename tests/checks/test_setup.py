"""What set-up does is what the first jobs would have waited for."""

from trm.checks import setup
from trm.tasks.sudoku import generate_kernels


def test_the_generator_is_compiled(capsys):
    setup.compile_generator()
    assert generate_kernels.generate_batch.signatures
    assert not capsys.readouterr().out


def test_set_up_measures_when_both_are_compiled(monkeypatch):
    done = []
    monkeypatch.setattr(setup.library, "functions", lambda: done.append("kernel"))
    monkeypatch.setattr(setup, "compile_generator", lambda: done.append("generator"))
    monkeypatch.setattr(setup.speed, "main", lambda: done.append("speed"))
    setup.main()
    assert sorted(done[:2]) == ["generator", "kernel"]
    assert done[2:] == ["speed"]
