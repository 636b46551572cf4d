"""What the CUDA backend sets before the first product; the calls that need a GPU are replaced."""

import re
from types import SimpleNamespace

import pytest
import torch

from trm.backends.cuda.device import CudaBackend
from trm.backends.cuda.gpus import why_no_gpu


@pytest.fixture
def one_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "set_device": lambda device: None,
        "get_device_capability": lambda device: (9, 0),
        "get_device_properties": lambda device: SimpleNamespace(uuid="none"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)


def test_products_split_over_rows_are_added_in_float32(one_gpu):
    settings = torch.backends.cuda.matmul
    before = settings.allow_bf16_reduced_precision_reduction
    try:
        CudaBackend()
        assert settings.allow_bf16_reduced_precision_reduction is False
        assert settings.allow_fp16_reduced_precision_reduction is False
    finally:
        settings.allow_bf16_reduced_precision_reduction = before
        settings.allow_fp16_reduced_precision_reduction = True


def test_a_worker_that_sees_only_its_own_gpu_takes_it(one_gpu, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert CudaBackend().device.index == 0


def test_two_backends_of_one_process_share_its_gpu(one_gpu, caplog):
    assert CudaBackend().device == CudaBackend().device
    assert not caplog.records


@pytest.mark.parametrize(
    ("cuda", "driver", "words"),
    [
        (None, "", "torch 2.13 is a CPU build"),
        ("13.0", "", "no NVIDIA driver"),
        ("13.0", "535.104.05", "the driver 535 is too old for CUDA 13.0, .* needs 580 or newer"),
        ("12.6", "535.104.05", "no device is visible: request a GPU"),
    ],
)
def test_why_there_is_no_gpu(tmp_path, monkeypatch, cuda, driver, words):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    version = tmp_path / "version"
    if driver:
        version.write_text(
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Sat Aug 19 01:15:15 UTC 2023\n"
        )
    assert re.search(words, why_no_gpu("2.13", cuda, tmp_path, version))
