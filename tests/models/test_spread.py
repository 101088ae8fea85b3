"""Models on several devices: when they are spread, and that they decode alike. Of two GPUs only the memory is made up;
accelerate moves a real tiny model's layers between memory and disk instead."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from playground.decoding.drafters.lookup import NgramDrafter
from playground.decoding.parity_check import FINE, Proof, prove
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.static_cache import why_eager
from playground.errors import PlaygroundError
from playground.models import device, fit, fused, load, store
from playground.models.fetch.files import inspect
from playground.models.store import ModelStore
from playground.presets import Pair, custom_pair
from tests.decoding.real import ids_of, rounds_of

CUDA = torch.device("cuda")
PAIR = Pair("p", "P", "owner/big", "assistant", size_gb=30, dtype="bfloat16", weights={"assistant": "owner/small"})


@pytest.fixture
def gpus(monkeypatch):
    """Returns a function that makes up GPUs, of which each has so much free memory."""

    def there_are(*free: float) -> None:
        def free_bytes(device):
            return free[device.index or 0]

        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
        for module in (device, fit, load):
            monkeypatch.setattr(module, "free_bytes", free_bytes)

    return there_are


def test_a_model_is_spread_only_where_one_gpu_is_too_small_and_all_are_not(gpus):
    gpus(24e9, 24e9)
    assert device.room(CUDA) == pytest.approx({0: 16.8e9, 1: 21.6e9})
    assert [device.needs_several(size, CUDA) for size in (20e9, 30e9, 40e9)] == [False, True, False]
    assert not device.needs_several(30e9, torch.device("cuda", 1)), "the user named one"
    gpus(24e9)
    assert not device.needs_several(30e9, CUDA)


def test_a_pair_that_has_to_be_spread_runs_and_says_what_that_costs(gpus, monkeypatch):
    monkeypatch.setattr(fit, "_here", lambda name: True)
    gpus(24e9, 24e9)
    found = fit.fits(PAIR, CUDA)
    assert found.runs and not found.alone
    assert "39 GB" in found.sentence and "several GPUs" in found.sentence
    gpus(24e9)
    assert fit.fits(PAIR, CUDA).state == "too large"
    gpus(80e9, 80e9)
    assert fit.fits(PAIR, CUDA).alone


def test_a_model_that_has_to_be_spread_is_loaded_so_and_decodes_as_in_one_place(tiny_folder, tiny_llama, monkeypatch):
    monkeypatch.setattr(load, "needs_several", lambda weights, device: True)
    first = sum(p.numel() * 4 for name, p in tiny_llama.named_parameters() if "layers.1" not in name)
    monkeypatch.setattr(load, "room", lambda device: {"cpu": first + 5_000})
    monkeypatch.setattr(fused, "DEVICES", ("cpu",))
    model = load.read(inspect(tiny_folder, "tiny", "folder"), load.Format(torch.float32, torch.device("cpu")))
    assert device.is_spread(model) and not device.is_spread(tiny_llama)
    assert "several GPUs" in why_eager(model)
    assert prove(lambda: EagerRunner(model), FINE) == Proof()
    text = [5, 6, 7, 5, 6, 7, 5, 6]
    drafted, plain = (ids_of(rounds_of(each, lambda target: NgramDrafter(), text)) for each in (model, tiny_llama))
    assert drafted == plain


def test_a_drafter_that_reads_the_states_of_a_spread_target_is_refused(tiny_folder, monkeypatch):
    monkeypatch.setattr(store, "is_spread", lambda model: True)
    own = custom_pair(str(tiny_folder), None)
    pair = dataclasses.replace(own, drafter="early-exit", weights={"early-exit": 1}, drafters=())
    with pytest.raises(PlaygroundError, match="hidden states"):
        ModelStore().get(pair, drafter="early-exit", dtype="float32", device="cpu", progress=lambda step: None)
