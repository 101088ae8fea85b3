"""What the repository ships for the starter: small enough, and each of it drafts for the real model."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from playground import metrics
from playground.backends.local import LocalBackend
from playground.decoding.drafters.composite import AdaptiveDrafter
from playground.experiments.compare import run
from playground.experiments.events import Watch
from playground.lane import LOCAL, Request, assisted_lane, standard_lane
from playground.models.cpu.native.library import engine
from playground.models.fetch import shipped, starter
from playground.models.networks.made_for import draft_ids
from playground.models.store import ModelStore
from playground.presets import SHIPPED, load_pairs
from tests.selection import selected

STARTER = load_pairs()[0]["starter"]
OWN = (*STARTER.weights, STARTER.drafter)  # with weights of their own, and the default
DTYPE = "auto" if engine() else "float32"  # with which every pass computes the same bits, or nearly
TEXT = "Write a short letter to a friend about a holiday by the sea."


def test_every_drafter_has_a_card_and_small_files():
    folders = [path for path in SHIPPED.iterdir() if path.is_dir()]
    assert {path.name for path in folders} == {
        f"starter-{kind}" for kind in ("mtp", "heads", "eagle3", "dflash", "dspark", "assistant")
    }
    sizes = [file.stat().st_size for folder in folders for file in folder.iterdir()]
    assert max(sizes) < 10e6 and sum(sizes) < 30e6
    for folder in folders:
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert all(word in card for word in ("license: apache-2.0", "Learned from", "Held out", "Cost"))


@pytest.fixture(scope="module")
def store():
    return ModelStore()


@pytest.fixture(scope="module")
def traces(store):
    """Traces by drafter, of those in OWN or of the others, beside the same standard lane. To the adaptive drafter each
    round takes as long as another, so that it drafts on a busy machine too."""

    @functools.cache
    def of(own: bool):
        chosen = [drafter for drafter in STARTER.drafters if (drafter in OWN) == own]
        assisted = [assisted_lane(STARTER, drafter, policy="constant", lookahead=3) for drafter in chosen]
        lanes, request = [standard_lane(STARTER), *assisted], Request(TEXT, max_new_tokens=9)
        backends = {LOCAL: LocalBackend(store, STARTER, DTYPE, "cpu")}
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(AdaptiveDrafter.__init__.__kwdefaults__, "clock", itertools.count().__next__)
            comparison = run(lanes, request, backends, Watch())
        return {trace.lane.drafter: trace for trace in comparison.lanes}

    return of


@pytest.mark.parametrize("drafter", selected(STARTER.drafters, OWN))
def test_each_way_of_drafting_for_the_starter_writes_what_standard_decoding_writes(traces, drafter):
    traces = traces(drafter in OWN)
    assert traces[drafter].token_ids == traces["none"].token_ids
    # Adaptive drafts nothing where a busy machine makes wide passes dear.
    assert metrics.measure(traces[drafter]).accepted > 0 or drafter in ("ngram", "suffix", "adaptive")


@pytest.mark.parametrize("drafter", ["dflash", "assistant"])
def test_what_is_written_out_packs_into_what_ships(drafter):
    """Each matrix within half a step of its row and the rounding to bfloat16; of the starter exactly its own rows."""
    folder, target = SHIPPED / f"starter-{drafter}", starter.cached().folder
    whole = shipped.written_out(folder, lambda step: None)
    state = load_file(whole / "model.safetensors")
    again = shipped.unpacked(shipped.packed(state), target)
    assert again.keys() == state.keys()
    for name, tensor in state.items():
        if tensor.is_floating_point():
            step = tensor.float().abs().amax(dim=-1, keepdim=True) / shipped.MOST
            assert ((again[name].float() - tensor.float()).abs() <= 1.01 * step).all(), name
        else:
            assert torch.equal(again[name], tensor), name
    if drafter == "dflash":
        embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
        assert torch.equal(state["lm_head.weight"], embedding[draft_ids(state)].bfloat16())


def test_transformers_takes_the_assistant_too(store):
    target = store.get(STARTER, drafter="none", dtype="float32", device="cpu", progress=lambda step: None).target
    assistant = AutoModelForCausalLM.from_pretrained(
        shipped.written_out(SHIPPED / "starter-assistant", lambda step: None), dtype="float32"
    )
    inputs = target.tokenizer(TEXT, return_tensors="pt")
    plain, assisted = (
        target.model.generate(**inputs, max_new_tokens=8, do_sample=False, **options)
        for options in ({}, {"assistant_model": assistant})
    )
    assert torch.equal(plain, assisted)
