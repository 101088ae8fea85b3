"""What is chosen for a GPU, on a stand-in for `torch.cuda` with two cards."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from playground.models import device
from playground.models.device import choose_kernels, ran_out_of_memory, resolve_dtype


@pytest.fixture
def two_cards(monkeypatch):
    """A T4, then an H100. `torch.cuda` answers for the current one, the first."""
    current = 0

    @contextmanager
    def switched(to: torch.device):
        nonlocal current
        before, current = current, to.index or 0
        yield
        current = before

    monkeypatch.setattr(torch.cuda, "device", switched)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation or current > 0)


@pytest.mark.parametrize(("index", "dtype"), [(0, torch.float16), (1, torch.bfloat16)])
@pytest.mark.parametrize("name", ["auto", "int8", "int4"])
def test_each_card_gets_a_format_that_it_computes_in(two_cards, index, dtype, name):
    assert resolve_dtype(name, torch.device("cuda", index)) == dtype


def test_cudnns_attention_is_off_on_cuda_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", asked.append)
    choose_kernels(torch.device("cpu"))
    assert not asked
    choose_kernels(torch.device("cuda", 1))
    assert asked == [False]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
def test_memory_that_ran_out_is_known_by_each_of_its_names(error):
    assert ran_out_of_memory(error)


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: an illegal memory access"), ValueError("out of memory")])
def test_other_errors_are_not_taken_for_it(error):
    assert not ran_out_of_memory(error)


def test_a_device_of_the_machine_is_resolved_by_its_number(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device.resolve_device("cuda:1") == torch.device("cuda", 1)
