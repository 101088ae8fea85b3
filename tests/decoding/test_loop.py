"""The loop over fake models: exactness, bookkeeping, ends, and that nothing is computed twice."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playground.decoding import clock, loop
from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.base import Draft, NoDrafter
from playground.decoding.drafters.lookup import NgramDrafter
from playground.decoding.lookahead import Confidence, Heuristic, Lookahead
from playground.decoding.loop import decode
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.decoding.verify import decide
from playground.lane import Request
from playground.trace import Round
from tests.decoding.fakes import GREEDY, FakeModel, NumberTokenizer, ScriptedDrafter, counting_law, random_law

V = 10


def rounds_of(target, drafter, prompt=(1,), *, lookahead=None, max_new_tokens=20, eos=(), request=None) -> list[Round]:
    request = request or Request("x")
    sampler = Sampler(request, torch.device("cpu"), prompt)
    if drafter == "assistant":
        drafter = AssistantDrafter(FakeModel(random_law(2, V), V), V, set(eos))
    detokenizer = Detokenizer(NumberTokenizer(), prompt)
    return list(
        decode(target, drafter, lookahead or Lookahead(4), sampler, detokenizer, prompt, max_new_tokens, set(eos))
    )


def ids_of(rounds: Sequence[Round]) -> list[int]:
    return [token.id for round_ in rounds for token in round_.tokens]


def always_right(ids: Sequence[int], k: int) -> list[int]:
    return [(ids[-1] + i) % V for i in range(1, k + 1)]


def always_wrong(ids: Sequence[int], k: int) -> list[int]:
    return [ids[-1]] * k


def test_standard_decoding_is_rounds_with_nothing_drafted():
    rounds = rounds_of(FakeModel(counting_law(V), V), NoDrafter(), max_new_tokens=5)
    assert ids_of(rounds) == [2, 3, 4, 5, 6]
    assert [round_.target.reason for round_ in rounds] == ["plain"] * 5
    assert all(round_.target.margin == pytest.approx(5) for round_ in rounds)


def test_a_drafter_that_always_agrees_gives_k_plus_one_tokens_a_pass():
    target = FakeModel(counting_law(V), V)
    rounds = rounds_of(target, ScriptedDrafter(always_right), max_new_tokens=20)
    assert ids_of(rounds) == [(2 + i) % V for i in range(20)]
    assert target.passes == 4
    assert {round_.target.reason for round_ in rounds} == {"bonus"}
    assert all(token.decision == "accepted" and token.p > 0.9 for round_ in rounds for token in round_.drafted)


def test_a_drafter_that_never_agrees_costs_passes_but_no_correctness():
    target = FakeModel(counting_law(V), V)
    rounds = rounds_of(target, ScriptedDrafter(always_wrong), max_new_tokens=6)
    assert ids_of(rounds) == [2, 3, 4, 5, 6, 7]
    assert target.passes == 6
    first = rounds[0]
    assert [token.decision for token in first.drafted] == ["rejected", "unverified", "unverified", "unverified"]
    assert first.target.reason == "correction"
    assert first.drafted[0].p < 0.1 and first.drafted[1].p is None and first.drafted[1].margin is None


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=12),
    k=st.integers(1, 16),
    drafter=st.sampled_from(["ngram", "assistant"]),
    penalties=st.sampled_from([{}, {"repetition_penalty": 1.3}, {"presence_penalty": 1.0, "frequency_penalty": 0.7}]),
    max_new_tokens=st.integers(1, 40),
    eos=st.sets(st.integers(0, V - 1), max_size=2),
)
def test_greedy_output_equals_plain_greedy_output(seed, prompt, k, drafter, penalties, max_new_tokens, eos):
    request = Request("x", **penalties)
    arguments = dict(prompt=prompt, max_new_tokens=max_new_tokens, eos=eos, request=request)
    plain = rounds_of(FakeModel(random_law(seed, V), V), NoDrafter(), **arguments)
    drafter = NgramDrafter() if drafter == "ngram" else drafter
    target = FakeModel(random_law(seed, V), V)
    assisted = rounds_of(target, drafter, lookahead=Heuristic(k), **arguments)
    assert ids_of(assisted) == ids_of(plain)
    # Never computed twice: each token of the text went through once, and each dropped draft token once.
    dropped = sum(token.decision != "accepted" for round_ in assisted for token in round_.drafted)
    kept = len(prompt) + len(ids_of(assisted))
    assert kept - 1 <= target.fed - dropped <= kept


def test_an_end_of_text_inside_a_draft_ends_the_output_there():
    rounds = rounds_of(FakeModel(counting_law(V), V), ScriptedDrafter(always_right), eos=[4])
    assert ids_of(rounds) == [2, 3, 4]
    assert rounds[-1].target is None
    assert [token.id for token in rounds[-1].drafted] == [2, 3, 4], "nothing is kept of a draft after an end of text"


def test_the_length_limit_never_cuts_a_draft_that_was_paid_for():
    for limit in range(1, 12):
        rounds = rounds_of(FakeModel(counting_law(V), V), ScriptedDrafter(always_right), max_new_tokens=limit)
        assert len(ids_of(rounds)) == limit
        assert all(token.decision == "accepted" for round_ in rounds for token in round_.drafted)


def test_the_drafter_hears_what_stands():
    drafter = ScriptedDrafter(always_wrong)
    rounds_of(FakeModel(counting_law(V), V), drafter, prompt=[0, 1], max_new_tokens=3)
    assert drafter.committed == [2, 3, 4]


def test_an_assistant_feeds_each_token_once_and_stops_at_its_context_limit():
    assistant = FakeModel(counting_law(V), V, context_limit=9)
    drafter = AssistantDrafter(assistant, V, ())
    rounds = rounds_of(FakeModel(counting_law(V), V), drafter, prompt=[0, 1, 2], max_new_tokens=12)
    assert ids_of(rounds) == [(3 + i) % V for i in range(12)]
    assert [len(round_.drafted) for round_ in rounds] == [4, 1, 0, 0, 0, 0, 0]
    assert assistant.fed <= 9


def test_an_assistant_stops_drafting_after_an_end_of_text_and_when_unsure():
    drafter = AssistantDrafter(FakeModel(counting_law(V), V), V, {4})
    assert drafter.propose([0, 1], 8, 0.0, GREEDY).ids == [2, 3, 4]
    flat = AssistantDrafter(FakeModel(lambda _: torch.zeros(V), V), V, ())
    assert len(flat.propose([0, 1], 8, 0.5, GREEDY).ids) == 1


@pytest.mark.parametrize(("assistant_vocab", "expected"), [(V - 3, V), (V + 6, V)])
def test_padded_vocabularies_of_other_sizes_are_brought_to_the_targets(assistant_vocab, expected):
    sampler = Sampler(Request("x", temperature=1.0), torch.device("cpu"))
    drafter = AssistantDrafter(FakeModel(random_law(3, assistant_vocab), assistant_vocab), V, ())
    draft = drafter.propose([0, 1], 5, 0.0, sampler)
    assert draft.probabilities.shape == (5, expected)
    assert max(draft.ids) < V
    torch.testing.assert_close(draft.probabilities.sum(-1), torch.ones(5))


def test_a_confident_policy_drafts_less_where_the_drafter_is_unsure():
    arguments = dict(max_new_tokens=30, request=Request("x"))
    sure = rounds_of(FakeModel(counting_law(V), V), "assistant", lookahead=Lookahead(8), **arguments)
    careful = rounds_of(FakeModel(counting_law(V), V), "assistant", lookahead=Confidence(8, 0.9), **arguments)
    assert sum(len(r.drafted) for r in careful) < sum(len(r.drafted) for r in sure)
    assert ids_of(careful) == ids_of(sure)


@pytest.mark.parametrize("drafter", ["none", "ngram", "assistant"])
def test_seeded_sampling_repeats(drafter):
    def once(seed: int) -> list[int]:
        request = Request("x", temperature=1.0, top_p=0.9, top_k=8, seed=seed)
        way = {"none": NoDrafter(), "ngram": NgramDrafter(), "assistant": "assistant"}[drafter]
        return ids_of(rounds_of(FakeModel(random_law(1, V), V), way, max_new_tokens=40, request=request))

    assert once(7) == once(7)
    assert once(7) != once(8)


def test_the_clock_runs_forward_and_a_round_holds_its_parts():
    rounds = rounds_of(FakeModel(counting_law(V), V), ScriptedDrafter(always_right))
    for before, after in itertools.pairwise(rounds):
        assert before.end_s + before.commit_s <= after.start_s
    for round_ in rounds:
        assert round_.end_s == pytest.approx(round_.start_s + round_.draft_s + round_.verify_s)
        assert round_.passes == 1


class Ticks:
    """Time that passes only when told to."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def taking(self, seconds: float, function):
        def slow(*args, **kwargs):
            self.now += seconds
            return function(*args, **kwargs)

        return slow


def test_the_clock_stops_while_a_round_is_annotated_and_policies_see_the_roll_back(monkeypatch):
    ticks, target, seen = Ticks(), FakeModel(counting_law(V), V), []
    drafter, lookahead = ScriptedDrafter(always_wrong), Lookahead(2)
    monkeypatch.setattr(clock, "time", ticks)
    monkeypatch.setattr(loop, "annotate", ticks.taking(100.0, loop.annotate))
    monkeypatch.setattr(drafter, "propose", ticks.taking(1.0, drafter.propose))
    monkeypatch.setattr(target, "forward", ticks.taking(2.0, target.forward))
    monkeypatch.setattr(target, "commit", ticks.taking(4.0, target.commit))
    monkeypatch.setattr(drafter, "commit", ticks.taking(8.0, drafter.commit))
    monkeypatch.setattr(
        lookahead, "update", lambda draft, path, *times: seen.append((len(draft.ids), len(path), *times))
    )
    rounds = rounds_of(target, drafter, lookahead=lookahead, max_new_tokens=3)
    times = [(r.start_s, r.draft_s, r.verify_s, r.end_s, r.commit_s, r.annotate_s) for r in rounds[:2]]
    assert times == [(0, 1, 2, 3, 12, 100), (15, 1, 2, 18, 12, 100)]
    assert seen == [(2, 0, 1.0, 14.0), (1, 0, 1.0, 14.0), (0, 0, 1.0, 14.0)]


def test_a_greedy_decision_reads_the_device_once(monkeypatch):
    transfers = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: transfers.append(self.shape) or tolist(self))
    monkeypatch.setattr(torch.Tensor, "__int__", lambda self: pytest.fail("one token at a time"))
    scores = torch.eye(V)[[2, 3, 5]]
    verdict = decide(Draft([2, 3], [1.0, 1.0]), scores, Sampler(Request("x"), torch.device("cpu")), length=1)
    assert (verdict.path, verdict.token, transfers) == ([0, 1], 5, [(4,)])  # and whether the scores are numbers
