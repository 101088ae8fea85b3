"""Faults made in the shipped drafters: no wrong cause is named, few are called healthy or weak, and no drafter without
a fault is accused. `python -m benchmarks doctor` prints the table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.doctor import answers, changed, examined, rates, table
from benchmarks.faults import FAULTS, HEALTHY, Case
from playground.models.attention import decoder_of
from playground.models.load import LoadedModel
from playground.models.networks import weights
from playground.models.networks.weights import check_vocabulary, check_weights
from playground.models.store import ModelStore
from playground.presets import custom_pair
from playground.results import Diagnosis, Finding
from playground.views.doctor import headline

pytestmark = pytest.mark.starter
PROMPTS = ("Why is the sky blue?", "Write a letter to a friend about the sea.")
BY_WEIGHTS = 20  # faults that weights alone show
DAILY = ("heads: heads reversed", "assistant: first and last layer swapped")


@pytest.fixture(scope="module")
def store() -> ModelStore:
    return ModelStore()


@pytest.fixture(scope="module")
def target(store: ModelStore) -> LoadedModel:
    pair = custom_pair("starter", None)
    return store.get(pair, drafter="none", dtype="auto", device="cpu", progress=lambda step: None).target


Diagnose = Callable[[Case], Diagnosis]


@pytest.fixture(scope="module")
def by_few(store: ModelStore) -> Diagnose:
    answered = answers(store, PROMPTS)
    return lambda case: examined(case, store, answered)


@pytest.fixture(scope="module")
def by_all(store: ModelStore) -> Diagnose:
    answered = answers(store)
    return lambda case: examined(case, store, answered)


@functools.cache
def head(model: Any) -> torch.Tensor:
    return model.get_output_embeddings().weight.detach()


def of_weights(case: Case, target: LoadedModel) -> list[Finding]:
    model: Any = target.model
    state = {name.removeprefix("model."): tensor for name, tensor in changed(case)[0].items()}
    found = [*check_weights(state, head(model), decoder_of(model).get_submodule("norm"))]
    if case.kind == "assistant":
        own, theirs = state["embed_tokens.weight"], model.get_input_embeddings().weight
        found += check_vocabulary(own, theirs, len(target.tokenizer))
    return found


def test_weights_alone_show_many_faults_and_accuse_no_sound_drafter(
    target: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sums", "longest_row"):  # most tensors of a case are those of the others
        monkeypatch.setattr(weights, name, functools.cache(getattr(weights, name)))
    with torch.inference_mode():
        found = {case: of_weights(case, target) for case in (*FAULTS, *HEALTHY)}
    broken = {case: [it.said for it in some if it.mark == "broken"] for case, some in found.items()}
    assert not [case for case in HEALTHY if found[case]]
    named = [case for case in FAULTS if broken[case]]
    wrong = [str(case) for case in named if not all(any(word in it for word in case.cause) for it in broken[case])]
    assert not wrong and len(named) >= BY_WEIGHTS


@pytest.mark.parametrize("case", [it for it in (*FAULTS, *HEALTHY) if str(it) in DAILY], ids=str)
def test_a_fault_is_named_by_the_repair_that_helps(by_few: Diagnose, case: Case) -> None:
    assert case.outcome(by_few(case)) == "right"


@pytest.mark.slow
def test_no_wrong_cause_is_named_and_few_faults_are_called_healthy(by_all: Diagnose) -> None:
    found = [(case, by_all(case)) for case in (*FAULTS, *HEALTHY)]
    print(table(found).text(), rates(found), sep="\n")
    assert len(FAULTS) >= 30
    assert not [(str(case), headline(result)) for case, result in found if case.outcome(result) == "wrong"]
    calmed = [str(case) for case, result in found if case.outcome(result) == "calmed"]
    assert len(calmed) <= 0.2 * len(FAULTS), calmed


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mtp", "eagle3", "dflash"])
def test_the_verdict_on_inputs_of_another_space_does_not_change_with_the_prompts(
    by_few: Diagnose, by_all: Diagnose, kind: str
) -> None:
    case = next(it for it in FAULTS if it.kind == kind and "another space" in it.name)
    assert {by_few(case).verdict, by_all(case).verdict} == {"collapsed"}
