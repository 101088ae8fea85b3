"""Each target proves on loading that its passes agree, whichever way they are fed."""

from __future__ import annotations

import pytest
import torch
import transformers

from playground.decoding import parity_check
from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.base import NoDrafter
from playground.decoding.drafters.build import build_drafter
from playground.decoding.drafters.lookup import NgramDrafter
from playground.decoding.parity_check import COARSE, FINE, Proof, prove, prove_assistant
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.factory import Runners
from playground.drafting_methods import TARGETS, help_for
from playground.errors import PlaygroundError
from playground.lane import Lane
from playground.models.load import LoadedModel
from playground.models.store import LoadedPair
from tests.architectures import ALIBI, HEADING, tiny, written
from tests.decoding.fakes import FakeModel, counting_law
from tests.decoding.real import FAMILIES, V, generated, ids_of, rounds_of


def tried(name: str, drafter: str) -> None:
    parity_check.check(LoadedModel(tiny(name), None, "big", ""), Runners(), drafter)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, FINE), (torch.bfloat16, COARSE)], ids=str)
def test_healthy_models_prove_chains_and_trees(family, dtype, limit):
    model = FAMILIES[family](0, 2).to(dtype)
    assert prove(lambda: EagerRunner(model), limit) == Proof()


@pytest.mark.parametrize(
    ("name", "length"), [("bamba", 12), ("nemotron_h", 12), ("kimi_linear", 1), ("bloom", 12), (ALIBI, 12)]
)
def test_standard_and_assisted_decoding_are_those_of_generate(name, length):
    """Bamba needs positions; layers of Nemotron-H hold nothing; Kimi reads a whole convolution after a short prompt."""
    model = tiny(name)
    prompt = (torch.arange(length) * 7 % V).tolist()
    for drafter in (NoDrafter(), NgramDrafter()):
        ids = ids_of(rounds_of(model, lambda target, drafter=drafter: drafter, prompt, max_new_tokens=12))
        assert ids == generated(model, prompt, 12)


@pytest.mark.parametrize("name", ["zaya", "kimi_linear", "bailing_hybrid", "lfm2", "qwen3_next"])
def test_recurrent_models_draft_for_themselves(name):
    """Several passes over one token come before a roll-back, also after a prompt that does not fill a convolution."""
    model = tiny(name)
    assert prove_assistant(lambda: EagerRunner(model), FINE) == ""
    for length in (1, 12):
        prompt = (torch.arange(length) * 7 % V).tolist()
        rounds = rounds_of(model, lambda target: AssistantDrafter(EagerRunner(model), 64, ()), prompt, 4, 12, ())
        assert {token.decision for round_ in rounds for token in round_.drafted} == {"accepted"}


def test_an_assistant_that_would_draft_wrongly_is_refused():
    target, assistant = (LoadedModel(tiny(name), None, name, "") for name in ("llama", "recurrent_gemma"))
    models, lane = LoadedPair(None, target, assistant), Lane("x", "llama", "assistant")
    for _ in range(2):
        with pytest.raises(PlaygroundError, match=r"recurrent_gemma .*: after drafts"):
            build_drafter(models, lane, EagerRunner(target.model))


@pytest.mark.parametrize("name", ["gpt_neo", ALIBI])
def test_wrong_trees_are_refused_and_chains_go_on(name):
    with pytest.raises(PlaygroundError, match=r"Draft trees .* big "):
        tried(name, "tree")
    tried(name, "ngram")


@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_without_positions_there_are_no_trees(name):
    assert not EagerRunner(tiny(name)).takes_trees


@pytest.mark.parametrize("name", ["jamba", "recurrent_gemma", "deepseek_v4"])
def test_drafts_that_would_be_verified_wrongly_are_refused_and_standard_decoding_goes_on(name):
    with pytest.raises(PlaygroundError, match=r"Drafts .* big .*none"):
        tried(name, "ngram")
    tried(name, "none")


@pytest.mark.parametrize(("name", "why"), [("zamba2", "gives other"), ("minimax", "inside transformers")])
def test_a_model_whose_own_steps_are_wrong_is_refused(name, why):
    with pytest.raises(PlaygroundError, match=f"big .*decoded here: .*{why}"):
        tried(name, "none")


def test_the_proof_is_made_once():
    loaded = LoadedModel(FAMILIES["llama"](0, 2), None, "big", "")
    parity_check.check(loaded, Runners(), "tree")
    loaded.model.forward = None
    parity_check.check(loaded, Runners(), "tree")


def test_a_short_context_is_enough():
    model = FakeModel(counting_law(10), 10, context_limit=7)
    assert prove(lambda: FakeModel(model.law, 10, 7), FINE) == Proof()


@pytest.mark.slow
def test_the_page_says_what_each_architecture_proved():
    """`python -m tests.architectures` writes it again."""
    shown = HEADING + help_for(TARGETS).partition(HEADING)[2]
    if f"transformers {transformers.__version__}," not in " ".join(shown.split()):
        pytest.skip("the page was written with another release of transformers")
    assert shown.split() == written().split()
