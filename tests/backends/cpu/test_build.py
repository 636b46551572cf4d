"""Building the CPU kernel, and what happens where it cannot be built."""

import os
import shutil

import pytest

from tests.shell import python, run
from trm.backends.cpu import build, library
from trm.errors import UserError

STEP = (
    "import torch; from tests.backends.cpu.problem import Problem, relative\n"
    "p = Problem(torch.float32, cells=20); mine, exact = p.by_kernel(), p.by_autograd(torch.float64)\n"
    "print(max(relative(mine[n], exact[n]) for n in p.layout.shapes))"
)


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """An empty cache."""
    monkeypatch.setattr(build, "folders", lambda: [tmp_path])
    for cached in (build.library, library.functions):
        monkeypatch.setattr(cached.__module__ + "." + cached.__name__, cached.__wrapped__)
    return tmp_path


def test_a_missing_compiler_is_said_and_a_built_kernel_is_used_without_one(fresh, monkeypatch, caplog):
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    assert library.functions() is None
    assert "no C++ compiler was found: install one" in caplog.text
    built = fresh / f"{build._wanted()}-0123456789ab.so"
    built.touch()
    assert build.library() == built


@pytest.mark.parametrize(
    ("command", "problem"), [("false", "false failed"), ("/nowhere/c++", "cannot be started")]
)
def test_a_failed_build_is_said(fresh, monkeypatch, command, problem):
    monkeypatch.setenv("CXX", command)
    with pytest.raises(build.BuildError, match=problem):
        build.library()
    assert not list(fresh.iterdir())


def test_another_source_or_instruction_set_is_another_library(monkeypatch, tmp_path):
    names = {build._wanted()}
    monkeypatch.setenv("TRM_CPU_ISA", "baseline")
    names.add(build._wanted())
    (tmp_path / "kernel.cpp").write_text("other")
    monkeypatch.setattr(build, "SOURCE", tmp_path)
    names.add(build._wanted())
    assert len(names) == 3
    monkeypatch.setenv("TRM_CPU_ISA", "mmx")
    with pytest.raises(UserError, match="TRM_CPU_ISA=mmx: choose one of native"):
        build.isa()


def wrapped(folder, flags):
    """Variables that have a kernel of its own built in a folder, with flags after those of the build."""
    script = folder / "cxx"
    script.write_text(f'#!/bin/sh\nexec {build.compiler()[0]} "$@" {flags}\n')
    script.chmod(0o755)
    return {"CXX": str(script), "XDG_CACHE_HOME": str(folder)}


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("clang++"), reason="needs clang and libc++")
def test_it_compiles_with_the_library_of_macos():
    """libc++, whose headers include fewer others than GNU's."""
    check = ["clang++", "-stdlib=libc++", "-std=gnu++17", "-fsyntax-only", "-x", "c++"]
    if run(*check, "-include", "cstdint", os.devnull).returncode:
        pytest.skip("libc++ is not installed")
    run(*check, str(build.SOURCE / "kernel.cpp"), check=True)


@pytest.mark.full
@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512", "avx512_bf16"])
@pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler")
def test_every_instruction_set_computes_the_same(isa, tmp_path):
    """Its part of the source. Not optimised, which takes a sixth of the time."""
    feature = {"avx2": "avx2", "avx512": "avx512vl", "avx512_bf16": "avx512_bf16"}.get(isa)
    if feature and feature not in build.processor()[1]:
        pytest.skip(f"this processor has no {feature}")
    result = python("-c", STEP, env={"TRM_CPU_ISA": isa, **wrapped(tmp_path, "-O0")}, check=True)
    assert float(result.stdout) < 2e-5


@pytest.mark.full
@pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler")
def test_no_address_or_undefined_behaviour_error(tmp_path):
    """The kernel under gcc's and clang's sanitizers, on every kind of products and odd sizes."""
    preload = run(*build.compiler(), "-print-file-name=libasan.so").stdout.strip()
    if not os.path.isabs(preload):
        pytest.skip("no sanitizer library")
    environment = wrapped(tmp_path, "-g1 -O0 -fsanitize=address,undefined -fno-sanitize-recover") | {
        "LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "1", "PYTHONMALLOC": "malloc",
    }  # fmt: skip
    sizes = [
        {"cells": 36, "d_model": 24, "rows": 5},
        {"cells": 7, "d_model": 8, "rows": 1, "layers": 2, "h_cycles": 2},
        {"cells": 36, "d_model": 24, "rows": 5, "mixer": "attention", "heads": 2, "position": "rope"},
        {"cells": 8, "d_model": 40, "rows": 1, "mixer": "attention", "heads": 1, "layers": 2, "h_cycles": 2},
    ]
    code = f"""{STEP}
from trm.backends.cpu import library
for fields in {sizes}:
    Problem(torch.float32, **fields).by_kernel()
    for products in library.bfloat16_products():
        Problem(torch.bfloat16, **fields).by_kernel(products)
"""
    python("-c", code, env=environment, check=True)
