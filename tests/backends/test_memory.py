"""When a device runs out of memory, the run's caches are gone before anybody is told, and a smaller run works."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from weakref import ref

import pytest
import torch

from playground.backends import local
from playground.backends.local import LocalBackend
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.factory import Runners
from playground.decoding.runners.static import StaticRunner
from playground.errors import PlaygroundError
from playground.experiments.events import Watch
from playground.experiments.race import decode
from playground.lane import Lane, Request, synthetic
from playground.models.load import LoadedDrafter, LoadedModel
from playground.models.networks.early_exit import first_layers
from playground.models.networks.mtp import MtpLayer
from playground.models.store import LoadedPair
from playground.presets import custom_pair

SMALL, LARGE = Request("The waves count", max_new_tokens=4), Request("The waves count", max_new_tokens=900)


@pytest.fixture
def made(monkeypatch):
    """Weak references to all runners that are made."""
    runners = []

    def make(self, *args, **kwargs):
        runner = new(self, *args, **kwargs)
        runners.append(ref(runner))
        return runner

    new = Runners.__call__
    monkeypatch.setattr(Runners, "__call__", make)
    return runners


def backend_of(drafter: str, compiled: str, model, tokenizer) -> LocalBackend:
    target = LoadedModel(model, tokenizer, "tiny", "made here")
    drafting = LoadedDrafter(MtpLayer(model, torch.arange(300)).eval(), "layer", "made here")
    if drafter == "assistant":
        drafting = LoadedModel(model, tokenizer, "tiny", "made here")
    elif drafter == "early-exit":
        drafting = first_layers(target, 1)
    pair = replace(custom_pair("tiny", "layer", "mtp"), compiled=compiled)
    models = LoadedPair(pair, target, drafting)
    return LocalBackend(SimpleNamespace(get=lambda *args, **kwargs: models), models.pair, "float32", "cpu")


@pytest.mark.parametrize("compiled", ["off", "on"])
@pytest.mark.parametrize(
    "drafter",
    [
        *("none", "assistant", "mtp", "forced"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("ngram", "early-exit", "tree", "composite", "adaptive")
        ),
    ],
)
def test_caches_are_freed_before_the_error_is_told(tiny_llama, tiny_tokenizer, made, monkeypatch, drafter, compiled):
    backend = backend_of(drafter, compiled, tiny_llama, tiny_tokenizer)
    lane = Lane("this one", "tiny", "ngram" if drafter == "forced" else drafter, lookahead=3)
    lane = synthetic(lane, [0.5]) if drafter == "forced" else lane
    before = decode(backend, lane, SMALL, Watch())
    backend._answers[LARGE] = tuple(before.token_ids) * 225  # a forced lane would decode it first
    with monkeypatch.context() as patch:
        for runner in (EagerRunner, StaticRunner):
            patch.setattr(runner, "forward", failing(runner.forward, len(before.prompt_ids) + 2))
        with pytest.raises(PlaygroundError, match=r"ran out of memory.*Ask for fewer tokens") as told:
            decode(backend, lane, LARGE, Watch())
        assert told.tb and made and not any(runner() for runner in made), "although the error still has its frames"
        assert not any(model.static for model in vars(backend.models(lane)).values() if hasattr(model, "static"))
    after = decode(backend, lane, SMALL, Watch())
    assert after.token_ids == before.token_ids
    if compiled == "on":
        length = backend.models(lane).target.static["target"].cache.cursor.length
        assert length == 256, "no longer what the larger request asked for"


def failing(forward, length: int):
    def fail(self, *args, **kwargs):
        if self.length >= length:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, *args, **kwargs)

    return fail


def test_memory_that_runs_out_while_a_lane_is_built_is_told_alike(tiny_llama, tiny_tokenizer, made, monkeypatch):
    def build(models, lane, target, runners):
        target.forward([1, 2, 3], keep=1)
        raise torch.OutOfMemoryError("CUDA out of memory")

    backend, lane = backend_of("mtp", "on", tiny_llama, tiny_tokenizer), Lane("this one", "tiny", "mtp")
    with monkeypatch.context() as patch:
        patch.setattr(local, "build_drafter", build)
        with pytest.raises(PlaygroundError, match="ran out"):
            decode(backend, lane, LARGE, Watch())
        assert made and not any(runner() for runner in made)
    assert decode(backend, lane, SMALL, Watch()).rounds
