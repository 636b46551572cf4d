"""What the CUDA backend sets before the first product; the calls that need a GPU are replaced."""

from types import SimpleNamespace

import pytest
import torch

from trm.backends.cuda.device import CudaBackend


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
    finally:
        settings.allow_bf16_reduced_precision_reduction = before
