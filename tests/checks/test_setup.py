"""What set-up does is what the first jobs would have waited for."""

from trm.checks import setup
from trm.tasks.sudoku import generate_kernels


def test_the_generator_is_compiled(capsys):
    setup.compile_generator()
    assert generate_kernels.generate_batch.signatures
    assert not capsys.readouterr().out


def test_the_kernel_is_compiled_beside_it_and_a_missing_compiler_is_no_error(monkeypatch):
    done = []
    monkeypatch.setattr(setup.build, "library", lambda: done.append("kernel") or 1 / 0)
    monkeypatch.setattr(setup, "compile_generator", lambda: done.append("generator"))
    setup.main()
    assert sorted(done) == ["generator", "kernel"]
