"""A later turn of a conversation draws numbers of its own, also where a chat template shortens what came before."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.stats import binomtest
from transformers import AutoModelForCausalLM, AutoTokenizer

from playground.backends.local import LocalBackend
from playground.conversation import Message
from playground.decoding.drafters.base import NoDrafter
from playground.decoding.drafters.lookup import NgramDrafter
from playground.experiments.events import Watch
from playground.experiments.race import decode as run_lane
from playground.lane import Request, assisted_lane, standard_lane
from playground.models.store import ModelStore
from playground.presets import custom_pair
from tests.decoding.fakes import random_law
from tests.decoding.law import follows_the_law

WORDS = 3
WITHOUT_THINKING = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content.split('</think>')[-1] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.mark.parametrize("forgotten", [1, 3])
def test_both_turns_follow_the_law_however_much_a_template_leaves_out(forgotten):
    new_drafter = (lambda target: NgramDrafter(2, 1)) if forgotten == 3 else lambda target: NoDrafter()
    turns = dict(temperature=1.0, top_k=2, then=[dict(temperature=1.0, top_k=2)])
    law = random_law(1, WORDS, spread=0.3)
    assert follows_the_law(law, WORDS, new_drafter, [0, 1, 2], forgotten=forgotten, **turns)


@pytest.fixture
def backend(tiny_folder):
    """A pair whose target finds all words equally likely, and whose template leaves out thinking."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_folder), AutoTokenizer.from_pretrained(tiny_folder)
    torch.nn.init.zeros_(model.lm_head.weight)
    model.generation_config.eos_token_id = None
    tokenizer.chat_template = WITHOUT_THINKING
    model.save_pretrained(tiny_folder)
    tokenizer.save_pretrained(tiny_folder)
    pair = custom_pair(str(tiny_folder), str(tiny_folder), "assistant")
    return LocalBackend(ModelStore(), pair, "float32", "cpu"), standard_lane(pair), assisted_lane(pair, "ngram", 2)


def test_places_that_two_turns_share_repeat_by_chance_alone(backend):
    backend, standard, lookup = backend
    request = Request("The waves", temperature=1.0, seed=3, max_new_tokens=80)
    answers = []
    for _ in range(2):
        answers.append(run_lane(backend, standard, request, Watch()))
        said = Message("assistant", f"{answers[-1].text}</think>no")
        request, asked = replace(request, prompt="And?", history=(*request.turns, said)), request
    for lane, what in ((standard, "a request repeats"), (lookup, "lanes share numbers")):
        assert run_lane(backend, lane, asked, Watch()).token_ids == answers[-1].token_ids, what
    first, second = (dict(enumerate(it.token_ids, len(it.prompt_ids))) for it in answers)
    places = first.keys() & second.keys()
    alike = sum(first[at] == second[at] for at in places)
    assert len(places) > 40
    assert binomtest(alike, len(places), 1 / 280).pvalue > 0.001


def test_a_turn_has_a_seed_of_its_own_though_a_template_may_leave_out_everything():
    first = Request("And?", seed=2**40)
    second = first.next_turn(Message("assistant", "yes"), "And?")
    third = second.next_turn(Message("assistant", "yes"), "And?")
    window = replace(third, history=third.history[2:])
    assert first.turn_seed == first.seed and window.turn_seed == second.turn_seed
    assert len({first.turn_seed, second.turn_seed, third.turn_seed, replace(second, seed=1).turn_seed}) == 4
    assert all(0 <= it.turn_seed < 2**31 for it in (second, third))
