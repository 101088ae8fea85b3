from __future__ import annotations

import dataclasses

import pytest
import torch

from playground.errors import PlaygroundError
from playground.models import fit
from playground.models.fetch import hub
from playground.presets import Pair, load_pairs

CPU = torch.device("cpu")
PAIR = Pair("p", "P", "owner/big", ("assistant",), "assistant", 5, size_gb=10, weights={"assistant": "owner/small"})
STARTER = dataclasses.replace(
    PAIR, name="starter", target="starter", weights={}, drafters=("ngram",), drafter="ngram", size_gb=0.3
)


@pytest.fixture(autouse=True)
def machine(monkeypatch) -> None:
    """24 GB free, a CPU that computes in bfloat16, a hub that answers, nothing fetched yet, no token."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"bf16": True}, raising=False)
    monkeypatch.setattr(fit, "free_bytes", lambda device: 24e9)
    monkeypatch.setattr(fit, "_here", lambda name: False)
    monkeypatch.setattr(hub, "reachable", lambda: True)
    monkeypatch.setattr(hub, "has_token", lambda: False)


def test_a_pair_that_fits():
    assert fit.fits(PAIR, CPU) == (True, "needs 13.0 GB, 24.0 GB free, up to 10.0 GB to fetch")


def test_a_pair_in_float32_needs_twice_as_much():
    pair = dataclasses.replace(PAIR, dtype="float32")
    assert fit.fits(pair, CPU) == (False, "needs 26.0 GB, 24.0 GB free")


def test_so_does_one_whose_cpu_has_no_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    assert fit.fits(PAIR, CPU) == (False, "needs 26.0 GB, 24.0 GB free")


@pytest.mark.parametrize(("dtype", "needed"), [("int8", "7.5"), ("int4", "5.1")])
def test_a_quantised_pair_needs_less(dtype, needed):
    pair = dataclasses.replace(PAIR, dtype=dtype)
    assert fit.fits(pair, CPU) == (True, f"needs {needed} GB, 24.0 GB free, up to 10.0 GB to fetch")


def test_a_gated_pair_needs_a_token(monkeypatch):
    pair = dataclasses.replace(PAIR, gated=True)
    able, why = fit.fits(pair, CPU)
    assert not able and "token" in why
    monkeypatch.setattr(hub, "has_token", lambda: True)
    assert fit.fits(pair, CPU)[0]


def test_without_the_hub_only_what_is_here_runs(monkeypatch):
    monkeypatch.setattr(hub, "reachable", lambda: False)
    able, why = fit.fits(PAIR, CPU)
    assert not able and "hub cannot be reached" in why
    assert fit.fits(STARTER, CPU) == (True, "needs 0.4 GB, 24.0 GB free, 0.1 GB to fetch")
    monkeypatch.setattr(fit, "_here", lambda name: True)
    assert fit.fits(PAIR, CPU) == (True, "needs 13.0 GB, 24.0 GB free")


@pytest.mark.parametrize(
    ("device", "free", "expected"),
    [
        ("cpu", 500e9, "starter"),
        ("mps", 500e9, "starter"),
        ("cuda", 80e9, "qwen3-8b"),
        ("cuda", 24e9, "qwen3-8b"),
        ("cuda", 22e9, "gemma-4-e4b"),
        ("cuda", 13e9, "qwen3-4b-dflash"),
        ("cuda", 8e9, "starter"),
        ("cuda", 1e6, "starter"),
    ],
)
def test_the_pair_to_start_with(monkeypatch, device, free, expected):
    monkeypatch.setattr(fit, "resolve_device", lambda name: torch.device(device))
    monkeypatch.setattr(fit, "resolve_dtype", lambda name, device: torch.bfloat16)
    monkeypatch.setattr(fit, "free_bytes", lambda device: free)
    assert fit.default_pair(load_pairs()[0]).name == expected


def test_a_small_drafter_goes_before_a_larger_pair_with_an_assistant(monkeypatch):
    monkeypatch.setattr(fit, "resolve_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(fit, "resolve_dtype", lambda name, device: torch.bfloat16)
    pairs = load_pairs()[0]
    assisted, headed = pairs["qwen2.5-7b"], pairs["qwen3-4b-dflash"]
    assert assisted.size_gb > headed.size_gb
    assert fit.default_pair({"a": assisted, "b": headed}) is headed
    assert fit.default_pair({"a": assisted}) is assisted


def test_a_preset_that_has_a_small_drafter_starts_with_one():
    for pair in load_pairs()[0].values():
        if {pair.drafts_by(drafter) for drafter in pair.drafters} - {None, *fit.MODELS}:
            assert pair.drafts_by(pair.drafter) not in fit.MODELS, pair.name


def test_a_gpu_without_the_hub_starts_with_the_starter(monkeypatch):
    monkeypatch.setattr(fit, "resolve_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(fit, "resolve_dtype", lambda name, device: torch.bfloat16)
    monkeypatch.setattr(hub, "reachable", lambda: False)
    assert fit.default_pair(load_pairs()[0]).name == "starter"


def test_no_pairs_at_all():
    with pytest.raises(PlaygroundError, match="presets/pairs"):
        fit.default_pair({})
