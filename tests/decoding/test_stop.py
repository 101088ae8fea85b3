"""Stop strings: every lane ends at the same token, wherever a draft or a token has the string's end."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from playground import export, metrics
from playground.backends.local import LocalBackend
from playground.conversation import Message
from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.base import NoDrafter
from playground.decoding.drafters.composite import CompositeDrafter
from playground.decoding.drafters.lookup import NgramDrafter
from playground.decoding.drafters.tree import SampledTreeDrafter, TreeDrafter
from playground.decoding.lookahead import Lookahead
from playground.decoding.loop import decode
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer, StopStrings, shown_until
from playground.decoding.verify import decide
from playground.experiments.events import Watch
from playground.experiments.race import decode as run_lane
from playground.lane import Request, assisted_lane, standard_lane
from playground.metrics import answered
from playground.models.store import ModelStore
from playground.presets import custom_pair
from playground.trace import Comparison
from tests.decoding.fakes import FakeModel, NumberTokenizer, ScriptedDrafter, counting_law, random_law
from tests.decoding.real import ids_of
from tests.decoding.test_tree import LawBranches

CPU = torch.device("cpu")
TOKENS, V = 16, 30
LAW = random_law(5, V)


def alone():
    return NoDrafter()


def chain():
    return AssistantDrafter(FakeModel(LAW, V), V, ())


def tree():
    return TreeDrafter(LawBranches(LAW, V), 12, ())


def lookup_and_tree():
    return CompositeDrafter(NgramDrafter(3, 1), tree())


def sampled_tree():
    return SampledTreeDrafter(LawBranches(LAW, V), 12, (), 4, vocab_size=V)


def until(ids: list[int], stops: tuple[str, ...]) -> list[int]:
    """The tokens up to the first after which their text holds a stop string."""
    ends = (n for n in range(1, len(ids) + 1) if any(stop in NumberTokenizer().decode(ids[:n]) for stop in stops))
    return ids[: next(ends, len(ids))]


@pytest.mark.parametrize(
    ("way", "temperature", "verification"),
    [
        (alone, 0, "token"),
        (chain, 0, "token"),
        (tree, 0, "token"),
        (lookup_and_tree, 0, "token"),
        (chain, 1, "token"),
        (chain, 1, "block"),
        (tree, 1, "token"),
        (sampled_tree, 1, "recursive"),
        (sampled_tree, 1, "traversal"),
    ],
)
def test_every_lane_ends_where_its_text_first_holds_a_stop_string(way, temperature, verification):
    """Strings that end with a token, inside one and after several, at each place of the drafts."""
    inside = 0
    prompt = [0, 1]

    def lane(*stops):
        target, sampler = FakeModel(LAW, V), Sampler(Request("x", temperature=temperature, seed=3), CPU)
        found, text = StopStrings(stops, NumberTokenizer(), prompt), Detokenizer(NumberTokenizer(), prompt)
        rule = partial(decide, verification=verification)
        rounds = decode(
            target, way(), Lookahead(4), sampler, text, prompt, TOKENS, (), rule, stops=found
        )  # fmt: skip
        return [*rounds], found, target

    rounds, _, _ = lane("not there")
    whole = ids_of(rounds)
    text = NumberTokenizer().decode(whole)
    for start, length in itertools.product(range(0, len(text) - 6, 3), (1, 6)):  # in steps that no token is long
        stops = text[start : start + length], text[start + 1 : start + 1 + length]
        rounds, found, target = lane(*stops)
        written = ids_of(rounds)
        assert written == until(whole, stops)
        kept = [*prompt, *written]
        assert target.text == (kept if rounds[-1].target is None else kept[:-1]), "nothing after it is in the cache"
        shown = "".join(token.text for round_ in shown_until(rounds, found.end) for token in round_.tokens)
        assert shown == text[: min(text.find(stop) for stop in stops)]
        last = rounds[-1]
        assert all(it.p is it.draw is None for it in last.drafted if it.decision == "unverified")
        assert last.other_rule is None or last.other_rule <= len(last.tokens)
        inside += last.target is None and any(it.decision == "unverified" for it in last.drafted)
    assert inside > 3 or way == alone


def test_what_is_accepted_after_a_stop_string_is_cut_off():
    target, sampler = FakeModel(counting_law(10), 10), Sampler(Request("x"), CPU)
    drafter = ScriptedDrafter(lambda ids, k: [(ids[-1] + i) % 10 for i in range(1, k + 1)])
    stops = StopStrings(("4 5",), NumberTokenizer(), [1])
    text = Detokenizer(NumberTokenizer(), [1])
    rounds = list(decode(target, drafter, Lookahead(6), sampler, text, [1], 20, (), stops=stops))
    assert [[(token.id, token.decision) for token in round_.drafted] for round_ in rounds] == [
        [(2, "accepted"), (3, "accepted"), (4, "accepted"), (5, "accepted"), (6, "unverified"), (7, "unverified")]
    ]
    assert rounds[0].target is None and (target.text, drafter.committed) == ([1, 2, 3, 4, 5], [5])
    (shown,) = shown_until(rounds, stops.end)
    assert [token.text for token in shown.drafted] == ["2 ", "3 ", "", "", "6 ", "7 "]
    at = [(it.drafted, it.reached, it.accepted) for it in metrics.acceptance_by_position(rounds)]
    assert at == [(1, 1, 1)] * 4 + [(1, 0, 0)] * 2


@given(
    text=st.text("ab<", max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    data=st.data(),
)
def test_what_is_found_depends_on_the_text_alone(text, stops, data):
    """Tokens of any length, with a special token, "<", that is no text."""

    pieces, ids, rest = ["<"], [], text
    while rest:
        n = 1 if rest[0] == "<" else data.draw(st.integers(1, len(rest.partition("<")[0])))
        pieces.append(rest[:n])
        ids.append(0 if rest[0] == "<" else len(pieces) - 1)
        rest = rest[n:]

    tokenizer = NumberTokenizer()
    tokenizer.all_special_ids = (0,)
    tokenizer.decode = lambda ids, **_: "".join(pieces[id_] for id_ in ids)
    found = StopStrings(stops, tokenizer, [])
    kept = found.cut(ids)
    visible = text.replace("<", "")
    ends = [(at + len(stop), at) for stop in stops if (at := visible.find(stop)) >= 0]
    assert found.end == (min(ends)[1] if ends else None)
    shown = [pieces[id_] for id_ in kept if id_]
    if ends:
        assert len("".join(shown[:-1])) < min(ends)[0] <= len("".join(shown)) and kept[-1]
    else:
        assert kept == ids


GREETED = Request("A drafter", max_new_tokens=24)  # whose answer has "6", "X", " c" and "er", "h", ".", "$", "x"


@pytest.mark.parametrize("drafter", ["none", "ngram", "assistant"])
def test_it_ends_as_transformers_does_and_the_conversation_goes_on_without_it(tiny_folder, drafter):
    pair = custom_pair(str(tiny_folder), str(tiny_folder), "assistant")
    backend = LocalBackend(ModelStore(), pair, "float32", "cpu")
    lane = standard_lane(pair) if drafter == "none" else assisted_lane(pair, drafter, 5)
    whole = run_lane(backend, lane, GREETED, Watch())
    model, tokenizer = backend.models(lane).target.model, AutoTokenizer.from_pretrained(tiny_folder)
    prompt = torch.tensor([whole.prompt_ids])
    for stop in ("X ", "6X", "rh.$", "x"):
        request = replace(GREETED, stop_strings=stop)
        trace = run_lane(backend, lane, request, Watch())
        options = dict(max_new_tokens=24, do_sample=False, stop_strings=[stop], tokenizer=tokenizer)
        expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
        assert list(trace.token_ids) == expected[0, prompt.shape[1] :].tolist()
        assert (trace.finish, trace.text) == ("stop string", whole.text[: whole.text.find(stop)])
        later = replace(request, prompt="And then?", history=(*request.turns, answered(trace)))
        assert later.turns[1] == Message("assistant", trace.text)
        again, fresh = (run_lane(backend, lane, replace(later, prefix_cache=on), Watch()) for on in (True, False))
        assert again.reused.tokens > 0 and again.token_ids == fresh.token_ids
        base = replace(trace, lane=replace(lane, name="Base"))
        comparison = Comparison((base, trace), "Base")
        assert export.from_json(export.to_json(comparison)) == comparison


def test_it_may_end_a_draft_that_a_grammar_forces(tiny_folder):
    pair = custom_pair(str(tiny_folder), str(tiny_folder), "assistant")
    backend = LocalBackend(ModelStore(), pair, "float32", "cpu")
    request = replace(GREETED, regex="the waves(, the waves)+", stop_strings="s, t")
    for lane in (standard_lane(pair), assisted_lane(pair, "grammar", 8)):
        trace = run_lane(backend, lane, request, Watch())
        assert (trace.text, trace.finish) == ("the wave", "stop string")
    assert trace.rounds[-1].target is None, "it ended inside the draft"
