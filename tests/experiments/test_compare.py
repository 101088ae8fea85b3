"""A comparison from request to trace, on tiny models with transformers' own classes."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from playground import metrics
from playground.backends import local
from playground.backends.local import TURN, LocalBackend
from playground.decoding.runners import factory
from playground.decoding.runners.graphs import Graphs
from playground.errors import PlaygroundError
from playground.experiments.compare import repeat, run
from playground.experiments.events import Finished, LaneFinished, LaneStarted, Progress, RoundDone, Watch
from playground.experiments.work import Compare
from playground.export import load, to_json
from playground.lane import LOCAL, STANDARD, Lane, Request, assisted_lane, standard_lane
from playground.models.load import LoadedModel
from playground.models.store import LoadedPair
from playground.presets import Pair
from playground.views import engines, facts, headline, report
from playground.views.comparison import markdown
from tests.decoding.graphs import Recorder

WEIGHTS = {"assistant": "tinier"}
PAIR = Pair("tiny", "Tiny", "tiny", "assistant", lookahead=4, size_gb=0, weights=WEIGHTS, without=("suffix",))


class TinyStore:
    """ModelStore's `get` over models that are already there."""

    def __init__(self, target: LoadedModel, assistant: LoadedModel) -> None:
        self.target, self.assistant = target, assistant

    def get(self, pair, *, drafter, dtype, device, progress):
        progress(Progress("Loading tiny"))
        return LoadedPair(pair, self.target, self.assistant)


@pytest.fixture(scope="module")
def store(tiny_llama, tiny_tokenizer):
    torch.manual_seed(1)
    config = LlamaConfig(**{**tiny_llama.config.to_dict(), "num_hidden_layers": 1})
    assistant = LlamaForCausalLM(config).eval()
    return TinyStore(
        LoadedModel(tiny_llama, tiny_tokenizer, "tiny", "random"),
        LoadedModel(assistant, tiny_tokenizer, "tinier", "random"),
    )


def compare(store, lanes, request, watch=None, **options):
    backends = {LOCAL: LocalBackend(store, PAIR)}
    return run(lanes, request, backends, watch or Watch(), **options)


def against_standard(lane: Lane) -> list[Lane]:
    return [standard_lane(PAIR), lane]


def compared(store, drafter="ngram", lookahead=4, **request):
    events = []
    lane = assisted_lane(PAIR, drafter, lookahead)
    request = Request(**{"prompt": "The lighthouse counts the waves", "max_new_tokens": 24, **request})
    comparison = compare(store, against_standard(lane), request, Watch(events.append))
    return comparison, events


@pytest.mark.parametrize("drafter", ["none", "ngram", "assistant"])
def test_both_lanes_run_by_turns_and_agree(store, drafter):
    comparison, events = compared(store, drafter)
    told = [event for event in events if not isinstance(event, Progress)]
    assert [type(event) for event in told[:2]] == [LaneStarted] * 2 and isinstance(told[-1], Finished)
    clocks, ahead = [0.0, 0.0], 0  # rounds in a row that began while the other lane's clock was behind
    for event, following in itertools.pairwise(told[2:-1]):
        if isinstance(event, RoundDone):
            clocks[event.index] = event.round.end_s + event.round.commit_s
        if isinstance(following, RoundDone) and len({it.index for it in told[told.index(following) :][:-1]}) == 2:
            ahead = ahead + 1 if clocks[following.index] > min(clocks) else 0
            assert ahead < TURN and (ahead == 0 or following.index == event.index)
    assert sorted(event.index for event in told if isinstance(event, LaneFinished)) == [0, 1]
    assert {lane.schedule for lane in comparison.lanes} == {"by turns"}
    assert metrics.first_difference(*comparison.lanes) is None
    assert [lane.lane.drafter for lane in comparison.lanes] == ["none", drafter]
    for lane in comparison.lanes:
        decoded = store.target.tokenizer.decode(lane.token_ids, skip_special_tokens=True)
        assert lane.text == decoded.rstrip("\ufffd"), "all but half a character at the end"


def test_the_events_and_the_trace_say_the_same(store):
    comparison, events = compared(store, "assistant")
    for index, lane in enumerate(comparison.lanes):
        assert lane.rounds == tuple(e.round for e in events if isinstance(e, RoundDone) and e.index == index)
    assert events[-1].comparison is comparison


def test_the_trace_survives_its_file(store):
    import json

    comparison, _ = compared(store, "assistant", temperature=0.8, top_p=0.9, top_k=5)
    assert load(json.dumps(to_json(comparison))) == comparison


def test_a_seeded_sampled_run_repeats(store):
    sampled = dict(drafter="assistant", temperature=1.0, seed=11)
    once, again = compared(store, **sampled)[0], compared(store, **sampled)[0]
    assert [lane.token_ids for lane in once.lanes] == [lane.token_ids for lane in again.lanes]


@pytest.mark.parametrize("prompt", ["a", "\x00\x1b", "<script>alert(1)</script>", "{{ x }} ${y}", "مرحبا", "🙂"])
def test_odd_prompts_run(store, prompt):
    comparison, _ = compared(store, prompt=prompt, chat_template=False, max_new_tokens=6)
    assert len(comparison.lanes[0].tokens) == 6


def test_a_prompt_of_one_token_runs(store):
    comparison, _ = compared(store, "assistant", prompt="a", chat_template=False, max_new_tokens=6)
    assert len(comparison.lanes[0].prompt_ids) == 1
    assert metrics.first_difference(*comparison.lanes) is None


@pytest.mark.parametrize("drafter", ["ngram", "assistant"])
def test_the_context_limit_ends_the_text(store, drafter):
    prompt = "a" * 250
    comparison, _ = compared(store, drafter, prompt=prompt, chat_template=False)
    for lane in comparison.lanes:
        assert len(lane.prompt_ids) + len(lane.tokens) == 256
        assert lane.finish == "context"


def test_a_prompt_that_fills_the_context_is_refused_before_anything_runs(store):
    with pytest.raises(PlaygroundError, match=r"1,000,000 tokens.*holds 256"):
        compared(store, prompt="\x00" * 1_000_000, chat_template=False)


def test_a_tokenizer_of_another_model_is_named(store, tiny_tokenizer):
    small = LlamaForCausalLM(LlamaConfig(**{**store.target.model.config.to_dict(), "vocab_size": 20}))
    other = TinyStore(LoadedModel(small, tiny_tokenizer, "tiny", "random"), store.assistant)
    with pytest.raises(PlaygroundError, match=r"tokenizer of tiny .* 20\."):
        compared(other)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_target_that_gives_no_numbers_is_named(store, tiny_tokenizer, temperature):
    broken = copy.deepcopy(store.target.model)
    broken.get_output_embeddings().weight.data.fill_(torch.nan)
    other = TinyStore(LoadedModel(broken, tiny_tokenizer, "tiny", "random"), store.assistant)
    with pytest.raises(PlaygroundError, match="LlamaForCausalLM"):
        compared(other, temperature=temperature)


def test_stop_ends_within_one_round_and_keeps_what_was_decoded(store):
    events = []

    def emit(event):
        events.append(event)
        if isinstance(event, RoundDone) and event.index == 1:
            watch.stop()

    watch = Watch(emit)
    lane = assisted_lane(PAIR, "ngram", 4)
    request = Request("The lighthouse", max_new_tokens=24)
    comparison = compare(store, against_standard(lane), request, watch)
    assert [lane.finish for lane in comparison.lanes] == ["stopped", "stopped"]
    standard, assisted = (len(lane.rounds) for lane in comparison.lanes)
    assert standard <= TURN and assisted == 1
    found = metrics.measured(comparison, lane.name)
    assert found.speedup == metrics.whole_run_ratio(*comparison.lanes) and found.interval is None


def stopped_at(store, kind):
    """A comparison that is stopped at its first event of this kind, and the events."""
    events = []

    def emit(event):
        events.append(event)
        if isinstance(event, kind):
            watch.stop()

    watch = Watch(emit)
    lanes = against_standard(assisted_lane(PAIR, "ngram", 4))
    return compare(store, lanes, Request("x"), watch), events


def test_stop_in_the_first_round_keeps_what_was_decoded(store):
    comparison, events = stopped_at(store, RoundDone)
    assert events[-1] == Finished(comparison)
    assert [len(lane.rounds) for lane in comparison.lanes] == [1, 0]
    assert [lane.finish for lane in comparison.lanes] == ["stopped", "stopped"]
    assert sum(isinstance(event, LaneStarted) for event in events) == 2
    assert [event.trace.finish for event in events if isinstance(event, LaneFinished)] == ["stopped", "stopped"]
    assert load(json.dumps(to_json(comparison))) == comparison


def test_stop_before_the_first_lane_gives_no_comparison(store):
    comparison, events = stopped_at(store, Progress)
    assert comparison is None
    assert all(isinstance(event, Progress) for event in events)


def test_stop_while_a_model_is_fetched_ends_that_at_the_next_word_of_progress(store):
    watch, told = Watch(), []

    class SlowStore:
        def get(self, pair, *, progress, **options):
            for step in ("Fetching: 1 %", "Fetching: 2 %", "Fetching: 3 %"):
                progress(Progress(step))
                told.append(step)
                watch.stop()

    lane, request = assisted_lane(PAIR, "ngram", 4), Request("x")
    assert compare(SlowStore(), against_standard(lane), request, watch) is None
    assert told == ["Fetching: 1 %"]


def test_out_of_memory_is_a_sentence_and_the_next_run_works(store, monkeypatch):
    def no_memory(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(LlamaForCausalLM, "forward", no_memory)
        with pytest.raises(PlaygroundError, match="ran out"):
            compared(store)
    assert compared(store)[0] is not None


def test_an_unknown_drafter_or_one_that_the_pair_lacks_is_refused():
    with pytest.raises(PlaygroundError, match="'hydra'"):
        assisted_lane(PAIR, "hydra", 4)
    alone = Pair("alone", "Alone", "tiny", "ngram", lookahead=4, size_gb=0)
    with pytest.raises(PlaygroundError, match="drafter assistant"):
        assisted_lane(alone, "assistant", 4)


def test_each_lane_tells_what_it_holds_in_memory(store):
    standard, assisted = (lane.memory for lane in compared(store, "assistant")[0].lanes)
    assert standard.target_weights == assisted.target_weights > 0
    assert (standard.drafter_weights, standard.drafter_cache) == (0, 0)
    assert 0 < assisted.drafter_weights < assisted.target_weights, "the assistant has fewer layers"
    assert 0 < assisted.drafter_cache < assisted.target_cache
    assert assisted.total == assisted.target_weights + assisted.target_cache + (
        assisted.drafter_weights + assisted.drafter_cache
    )


def test_where_memory_is_short_drafts_shrink_and_the_report_says_so(store):
    lane = assisted_lane(PAIR, "ngram", 4, keep_free_gb=1e9)
    request = Request("The lighthouse counts the waves", max_new_tokens=12)
    comparison = compare(store, against_standard(lane), request)
    standard, assisted = comparison.lanes
    assert assisted.token_ids == standard.token_ids
    assert not any(round_.drafted for round_ in assisted.rounds)
    assert "12 of 12 rounds" in facts.shortage(assisted) and "1e+09 GB" in facts.shortage(assisted)


def test_an_assistant_whose_context_the_prompt_exceeds_is_named_and_not_deployed(store):
    small = LlamaForCausalLM(LlamaConfig(**{**store.assistant.model.config.to_dict(), "max_position_embeddings": 12}))
    short = TinyStore(store.target, LoadedModel(small.eval(), store.assistant.tokenizer, "small", "random"))
    lanes = [assisted_lane(PAIR, "assistant", 3), assisted_lane(PAIR, "ngram", 2)]
    comparison = compare(short, [standard_lane(PAIR), *lanes], Request("The lighthouse counts", max_new_tokens=6))
    standard, assisted, lookup = comparison.lanes
    assert assisted.token_ids == standard.token_ids
    assert all(round_.past_context == 12 and not round_.drafted for round_ in assisted.rounds)
    sentence = facts.out_of_context(assisted)
    assert "12 tokens" in sentence and "6 of 6 rounds" in sentence
    found = metrics.measured(comparison, assisted.lane.name)
    assert facts.notes(standard, assisted)[0].startswith(sentence) and not facts.out_of_context(lookup)
    assert "too long" in headline.meaning(found)
    assert sentence in markdown(comparison, [PAIR]) and sentence in " ".join(report.of(comparison).findings)
    assert engines.of_comparison(comparison, assisted.lane) == []
    assert not any(it.instead == assisted.lane.name for it in engines.of_comparison(comparison, lookup.lane))
    assert load(json.dumps(to_json(comparison))) == comparison


def test_any_number_of_lanes_run_and_the_baseline_is_named_wherever_it_stands(store):
    lanes = [assisted_lane(PAIR, "assistant", 3), assisted_lane(PAIR, "ngram", 2), standard_lane(PAIR)]
    comparison = compare(store, lanes, Request("The lighthouse", max_new_tokens=12))
    assert [trace.lane.drafter for trace in comparison.lanes] == ["assistant", "ngram", "none"]
    assert comparison.standard.lane.drafter == "none"
    differences = to_json(comparison)["differences"]
    assert [it["lane"] for it in differences] == [lane.name for lane in lanes[:2]]
    assert all(it["baseline"] == "Standard" and it["identical"] for it in differences)
    assert load(json.dumps(to_json(comparison))) == comparison
    named = compare(store, lanes, Request("The lighthouse", max_new_tokens=12), baseline=lanes[0].name)
    assert named.standard.lane == lanes[0]


def test_two_lanes_of_one_name_and_a_baseline_that_is_not_there_are_refused(store):
    lanes = against_standard(standard_lane(PAIR))
    with pytest.raises(PlaygroundError, match="'Standard'"):
        compare(store, lanes, Request("x", max_new_tokens=2))
    with pytest.raises(PlaygroundError, match="'nobody'"):
        compare(
            store, against_standard(assisted_lane(PAIR, "ngram")), Request("x", max_new_tokens=2), baseline="nobody"
        )


def test_every_lane_is_warmed_up_with_the_whole_prompt_before_the_first_is_timed(store):
    prefills, started = [], []

    def note(module, args, kwargs):
        if kwargs["input_ids"].shape[1] > 100:
            prefills.append(len(started))

    def emit(event):
        started.extend([event] if isinstance(event, LaneStarted) else [])

    hook = store.target.model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        lanes = against_standard(assisted_lane(PAIR, "ngram", 4))
        compare(store, lanes, Request("a" * 150, chat_template=False, max_new_tokens=4), Watch(emit))
    finally:
        hook.remove()
    assert prefills[:4] == [0, 0, 2, 2] and set(prefills[4:]) <= {2}, "what follows shows the noise"


def test_a_repeat_runs_every_lane_again_and_tells_the_spread(store):
    comparison = compare(store, against_standard(assisted_lane(PAIR, "ngram", 4)), Request("waves", max_new_tokens=8))
    backends = {LOCAL: LocalBackend(store, PAIR)}
    events = []
    comparison = replace(comparison, repeats=())
    again = repeat(comparison, backends, 3, Watch(events.append))
    assert again.lanes == comparison.lanes and [len(traces) for traces in again.repeats] == [2, 2, 2]
    measured, once = (metrics.measured(it, it.others[0].lane.name) for it in (again, comparison))
    assert (measured.runs, once.runs) == (4, 1)
    assert measured.interval and not once.interval, "an answer of 8 tokens is too short to compare moments"
    assert load(json.dumps(to_json(again))) == again
    reports = [event for event in events if isinstance(event, Progress) and event.label.startswith("Repeat")]
    firsts = [next(it.label for it in reports if it.label.startswith(f"Repeat {i}")) for i in (1, 2, 3)]
    assert firsts == [
        "Repeat 1 of 3: Prompt lookup", "Repeat 2 of 3: Standard", "Repeat 3 of 3: Prompt lookup",
    ]  # fmt: skip
    assert [it.fraction for it in reports] == sorted(it.fraction for it in reports)


def test_a_repeat_that_is_stopped_keeps_what_was_finished(store):
    comparison = compare(store, against_standard(assisted_lane(PAIR, "ngram", 4)), Request("waves", max_new_tokens=8))

    def emit(event):
        if isinstance(event, Progress) and event.label.startswith("Repeat 2"):
            watch.stop()

    watch = Watch(emit)
    comparison = replace(comparison, repeats=())
    assert len(repeat(comparison, {LOCAL: LocalBackend(store, PAIR)}, 3, watch).repeats) == 1


@pytest.mark.parametrize(("noisy", "choices"), [(False, 2), (True, 3)])
def test_threads_are_chosen_again_before_a_repeat_whose_last_was_unsteady_never_between_lanes(
    store, monkeypatch, noisy, choices
):
    happened: list[str] = []
    monkeypatch.setattr(local, "choose_threads", lambda run_pass, native: happened.append("choose"))
    monkeypatch.setattr(metrics, "unsteady", lambda runs: noisy)
    request = Request("The waves.", max_new_tokens=4)
    backend = {LOCAL: LocalBackend(store, PAIR)}
    lanes = against_standard(assisted_lane(PAIR, "ngram", 4))
    first = run(lanes, request, backend, Watch())
    assert happened == ["choose"]
    repeat(first, backend, 2, Watch())
    assert happened == ["choose"] * choices


@pytest.mark.parametrize(
    ("changes", "expected"), [(False, ["rounds", "choose"]), (True, ["rounds", "choose", "rounds"])]
)
def test_threads_are_chosen_after_the_first_rounds_which_come_again_if_the_number_changed(
    store, monkeypatch, changes, expected
):
    happened: list[str] = []
    started = LocalBackend.run

    def recorded(self, lane, request):
        happened.append("rounds")
        return started(self, lane, request)

    def choose(run_pass, native):
        happened.append("choose")
        return changes

    monkeypatch.setattr(LocalBackend, "run", recorded)
    monkeypatch.setattr(local, "choose_threads", choose)
    lane, request = standard_lane(PAIR), Request("The waves.", max_new_tokens=4)
    LocalBackend(store, PAIR).warm_up(lane, request, lambda: False)
    assert happened == expected


def test_a_stop_while_a_lane_is_compiled_ends_its_captures(store, monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(factory, "graphs_for", lambda device: Graphs("recorded", recorder))
    store = TinyStore(replace(store.target, static={}), store.assistant)
    backend, request = LocalBackend(store, replace(PAIR, compiled="on")), Request("The waves.", max_new_tokens=4)
    backend.warm_up(standard_lane(PAIR), request, lambda: recorder.captures >= 2)
    assert recorder.captures == 2


@pytest.mark.parametrize("others", [1, 2, 3, 5])
@pytest.mark.parametrize("by_turns", [True, False])
def test_short_runs_go_again_with_the_baseline_in_every_pass_and_the_estimate_counts_them(store, others, by_turns):
    names = ("ngram", "assistant", "none", "ngram", "assistant")[:others]
    lanes = [standard_lane(PAIR), *(replace(assisted_lane(PAIR, name), name=f"{i}") for i, name in enumerate(names))]
    request = Request("The waves", max_new_tokens=2)
    comparison = run(lanes, request, {LOCAL: LocalBackend(store, PAIR, by_turns=by_turns)}, Watch())
    decoded = [trace for traces in (comparison.lanes, *comparison.repeats) for trace in traces]
    assert {trace.schedule for trace in decoded} == {"by turns" if by_turns else "alone"}
    assert comparison.repeats or by_turns
    assert len(decoded) * 2 <= Compare(lanes, request).tokens
    assert all(traces[0].lane.name == STANDARD for traces in comparison.repeats)
