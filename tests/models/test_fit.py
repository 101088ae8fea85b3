from __future__ import annotations

import dataclasses

import pytest
import torch

from playground.errors import PlaygroundError
from playground.models import fit
from playground.models.fetch import hub
from playground.presets import Pair, load_pairs

CPU = torch.device("cpu")
PAIR = Pair("p", "P", "owner/big", "assistant", size_gb=10, weights={"assistant": "owner/small"})
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
    found = fit.fits(PAIR, CPU)
    assert found.runs and (found.needed, found.free, found.download) == (13e9, 24e9, 10e9)
    assert found.label == "needs a download (10 GB)"
    assert found.sentence == "It needs about 13 GB of memory, and 24 GB is free; up to 10 GB has to be fetched first."


def test_a_pair_in_float32_needs_twice_as_much():
    pair = dataclasses.replace(PAIR, dtype="float32")
    found = fit.fits(pair, CPU)
    assert (found.state, found.needed, found.free) == ("too large", 26e9, 24e9)


def test_so_does_one_whose_cpu_has_no_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    assert fit.fits(PAIR, CPU).state == "too large"


@pytest.mark.parametrize(("dtype", "needed"), [("int8", 7.5), ("int4", 5.1)])
def test_a_quantised_pair_needs_less(dtype, needed):
    pair = dataclasses.replace(PAIR, dtype=dtype)
    assert fit.fits(pair, CPU).needed == pytest.approx(needed * 1e9, rel=0.01)


def test_a_gated_pair_needs_a_token(monkeypatch):
    pair = dataclasses.replace(PAIR, gated=True)
    found = fit.fits(pair, CPU)
    assert not found.runs and found.label == "gated" and "HF_TOKEN" in found.sentence
    monkeypatch.setattr(hub, "has_token", lambda: True)
    assert fit.fits(pair, CPU).runs


def test_without_the_hub_only_what_is_here_runs(monkeypatch):
    monkeypatch.setattr(hub, "reachable", lambda: False)
    found = fit.fits(PAIR, CPU)
    assert found.state == "unreachable" and not found.runs
    assert fit.fits(STARTER, CPU).state == "download"
    monkeypatch.setattr(fit, "_here", lambda name: True)
    assert fit.fits(PAIR, CPU).label == "ready"


def test_memory_of_other_models_counts_as_free():
    pair = dataclasses.replace(PAIR, dtype="float32")
    assert not fit.fits(pair, CPU).runs and fit.fits(pair, CPU, held=3e9).runs


def test_models_that_the_user_typed_are_as_large_as_the_hub_says(monkeypatch):
    monkeypatch.setattr(hub, "size", lambda name: {"owner/big": 30e9, "owner/small": 1e9}[name])
    pair = dataclasses.replace(PAIR, size_gb=0)
    assert fit.fits(pair, CPU).needed == pytest.approx(1.3 * 31e9)
    with pytest.raises(PlaygroundError, match="too large"):
        fit.check_before_fetching(pair, CPU)
    monkeypatch.setattr(hub, "size", lambda name: 0)
    assert (fit.fits(pair, CPU).state, fit.fits(pair, CPU).download) == ("download", 0)
    fit.check_before_fetching(pair, CPU)


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


@pytest.mark.parametrize(
    ("chosen", "blocks", "found", "opens"),
    [
        ("auto", True, True, "bfloat16"),
        ("auto", True, False, "auto"),
        ("auto", False, True, "auto"),
        ("int4", True, True, "int4"),
    ],
)
def test_the_page_opens_in_bfloat16_where_auto_is_four_bits_in_the_engine(monkeypatch, chosen, blocks, found, opens):
    monkeypatch.setattr(fit, "keeps_blocks", lambda dtype, device: blocks)
    monkeypatch.setattr(fit, "engine", lambda: found)
    pairs = load_pairs()[0]
    assert fit.on_page(dataclasses.replace(pairs["starter"], dtype=chosen)).dtype == opens
    assert fit.on_page(pairs["qwen3-8b"]) is pairs["qwen3-8b"]


def test_no_pairs_at_all():
    with pytest.raises(PlaygroundError, match="presets/pairs"):
        fit.default_pair({})
