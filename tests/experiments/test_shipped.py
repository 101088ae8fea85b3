"""What the repository ships for the starter: small enough, and each of it drafts for the real model."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from playground import metrics
from playground.backends.local import LocalBackend
from playground.experiments.compare import run
from playground.experiments.watch import Watch
from playground.lane import LOCAL, Request, assisted_lane, standard_lane
from playground.models.store import ModelStore
from playground.presets import SHIPPED, load_pairs

STARTER = load_pairs()[0]["starter"]
TEXT = "Write a short letter to a friend about a holiday by the sea."


def test_every_drafter_has_a_card_and_small_files():
    folders = [path for path in SHIPPED.iterdir() if path.is_dir()]
    assert {path.name for path in folders} == {
        f"starter-{kind}" for kind in ("mtp", "heads", "eagle3", "dflash", "dspark", "assistant")
    }
    sizes = [file.stat().st_size for folder in folders for file in folder.iterdir()]
    assert max(sizes) < 10e6 and sum(sizes) < 125e6
    for folder in folders:
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert all(word in card for word in ("license: apache-2.0", "Learned from", "Held out", "Cost"))


@pytest.fixture(scope="module")
def store():
    return ModelStore()


@pytest.fixture(scope="module")
def traces(store):
    """By drafter, each beside the same standard lane."""
    assisted = [assisted_lane(STARTER, drafter, policy="constant", lookahead=3) for drafter in STARTER.drafters]
    lanes, request = [standard_lane(STARTER), *assisted], Request(TEXT, max_new_tokens=14)
    backends = {LOCAL: LocalBackend(store, STARTER, "float32", "cpu")}
    comparison = run(lanes, request, backends, Watch())
    return {trace.lane.drafter: trace for trace in comparison.lanes}


@pytest.mark.parametrize("drafter", STARTER.drafters)
def test_each_way_of_drafting_for_the_starter_writes_what_standard_decoding_writes(traces, drafter):
    assert traces[drafter].token_ids == traces["none"].token_ids
    assert metrics.measure(traces[drafter]).accepted > 0 or drafter in ("ngram", "suffix")


def test_transformers_takes_the_assistant_too(store):
    target = store.get(STARTER, drafter="none", dtype="float32", device="cpu", progress=lambda step: None).target
    assistant = AutoModelForCausalLM.from_pretrained(SHIPPED / "starter-assistant", dtype="float32")
    inputs = target.tokenizer(TEXT, return_tensors="pt")
    plain, assisted = (
        target.model.generate(**inputs, max_new_tokens=12, do_sample=False, **options)
        for options in ({}, {"assistant_model": assistant})
    )
    assert torch.equal(plain, assisted)
