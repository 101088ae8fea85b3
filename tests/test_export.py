"""The exported file: what is written is read again, and what is not a trace is refused with a sentence."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playground import metrics
from playground.errors import PlaygroundError
from playground.export import from_json, load, to_json
from playground.lane import Lane, Request
from playground.trace import Comparison, DraftToken, Environment, Experts, Memory, PassTime, Round, TargetToken
from tests.examples import ENVIRONMENT, drafted_round, plain_round, trace, tree_round

COMPARISON = Comparison(
    (
        trace([plain_round(id_, start_s=id_) for id_ in (1, 2, 3)]),
        trace([drafted_round([1, 9], accepted=1, own=2), plain_round(3, start_s=1)], drafter="ngram"),
    )
)


def exported() -> dict:
    return json.loads(json.dumps(to_json(COMPARISON)))


def test_a_trace_survives_its_export():
    assert load(json.dumps(to_json(COMPARISON))) == COMPARISON


def test_trees_survive():
    tree = Comparison((trace([plain_round(1)]), trace([tree_round()], drafter="tree")))
    assert load(json.dumps(to_json(tree))) == tree


def test_a_drafter_that_is_not_installed_here_is_named():
    foreign = exported()
    foreign["lanes"][1]["lane"]["drafter"] = "repeat"
    with pytest.raises(PlaygroundError, match="'repeat'"):
        from_json(foreign)


def test_what_was_renamed_opens_by_the_name_that_it_had():
    old = exported()
    lane, round_ = old["lanes"][1]["lane"], old["lanes"][1]["rounds"][0]
    lane |= {"forced": [0.5], "name": "Assisted (synthetic)"}
    round_ |= {"kept_otherwise": 2}
    del lane["forced_rates"], round_["other_rule"]
    opened = from_json(old).others[0]
    assert opened.lane.forced_rates == (0.5,) and opened.rounds[0].other_rule == 2


def test_what_a_server_does_not_report_survives_as_unknown():
    own = TargetToken(None, "a", False, None, None, "correction")
    rejected = DraftToken(None, "", False, None, None, None, "rejected")
    unknown = Round(None, (rejected,), own, 0.0, None, None, 0.5)
    environment = Environment({"vllm": "0.32"}, None, None, None, None, None, (), "2026-01-01T00:00:00+00:00")
    lanes = [trace([unknown]), trace([unknown], drafter="ngram")]
    told = Comparison(tuple(dataclasses.replace(t, environment=environment, prompt_ids=None) for t in lanes))
    assert load(json.dumps(to_json(told))) == told
    assert metrics.measure(told.standard).verify_s is None


def test_what_a_lane_held_in_memory_survives():
    def held(memory):
        return Comparison(tuple(dataclasses.replace(lane, memory=memory) for lane in COMPARISON.lanes))

    for memory in (Memory(4, 3, 2, 1), Memory(4, 3, 2, 1, Experts(8, 2, 3))):
        assert load(json.dumps(to_json(held(memory)))) == held(memory)
    for memory in (Memory(-4, 3, 2, 1), *(Memory(4, 3, 2, 1, Experts(*e)) for e in [(0, 0, 1), (2, 3, 1), (2, 1, 9)])):
        with pytest.raises(PlaygroundError, match="memory"):
            load(json.dumps(to_json(held(memory))))


def test_what_passes_take_survives_and_a_pass_takes_time():
    def timed(seconds):
        environment = dataclasses.replace(ENVIRONMENT, pass_times=(PassTime(1, seconds), PassTime(4, 0.3)))
        return Comparison(tuple(dataclasses.replace(lane, environment=environment) for lane in COMPARISON.lanes))

    assert load(json.dumps(to_json(timed(0.2)))) == timed(0.2)
    with pytest.raises(PlaygroundError, match="pass_times"):
        load(json.dumps(to_json(timed(0.0))))


def test_the_export_has_what_its_readers_rely_on():
    data = exported()
    assert data["schema_version"] == 3
    assert data["baseline"] == "Standard"
    for lane in data["lanes"]:
        assert lane.keys() >= {"lane", "request", "environment", "token_ids", "text", "rounds", "metrics"}
        assert lane["token_ids"] == [1, 2, 3]
        assert lane["text"] == "1 2 3 "
        names = {"ttft_s", "total_s", "tokens_per_s", "acceptance_rate", "mean_accepted_length", "target_passes"}
        assert lane["metrics"].keys() >= names
    (difference,) = data["differences"]
    found = metrics.measured(COMPARISON, difference["lane"])
    assert (difference["speedup"], difference["outcome"]) == (found.speedup, found.outcome)
    assert difference["whole_run_ratio"] == metrics.whole_run_ratio(*COMPARISON.lanes)
    assert difference["identical"] and difference["first_difference"] is difference["interval"] is None


def test_every_exported_figure_can_be_computed_again_from_the_exported_rounds():
    data = exported()
    again = from_json(data)
    for lane, trace_ in zip(data["lanes"], again.lanes, strict=True):
        assert lane["metrics"] == vars(metrics.measure(trace_))


def damaged(*path_and_value) -> str:
    *path, key, value = path_and_value
    data = copy.deepcopy(exported())
    at = data
    for step in path:
        at = at[step]
    if value is KeyError:
        del at[key]
    else:
        at[key] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        ("[1, 2]", "not a trace"),
        ('{"hello": 1}', "not a trace"),
        (damaged("schema_version", 99), "schema version 99"),
        (damaged("schema_version", 2), "schema version 2"),
        (damaged("lanes", []), "two lanes"),
        (damaged("baseline", "x" * 10**6), "No lane is named"),
        (damaged("lanes", 0, "rounds", 1, 7), r"lanes\[0\].rounds\[1\]"),
        (damaged("lanes", 1, "rounds", 0, "drafted", 0, "decision", "perhaps"), "decision"),
        (damaged("lanes", 1, "rounds", 0, "target", "reason", ["plain"]), "reason"),
        (damaged("lanes", 1, "request", "prompt", KeyError), r"lanes\[1\].request.prompt"),
        (damaged("lanes", 1, "request", "temperature", "hot"), "temperature"),
        (damaged("lanes", 0, "rounds", 0, "end_s", None), "end_s"),
        (damaged("lanes", 0, "rounds", 0, "target", "id", 1.5), "id"),
        (damaged("lanes", 0, "rounds", 0, "target", "text", "\ud800"), "valid Unicode"),
        (damaged("lanes", 0, "rounds", 0, "draft_s", 10**400), "draft_s should be less than 1000000000000000;"),
        (damaged("lanes", 0, "rounds", 0, "target", "id", 10**400), "target.id should be less than"),
        (
            damaged("lanes", 1, "environment", "pass_times", [{"tokens": 10**400, "seconds": 1.0}]),
            "tokens should be less",
        ),
        (damaged("lanes", 1, "rounds", 0, "drafted", 0, "q", 1e300), "q should be less than"),
        (damaged("lanes", 1, "rounds", 0, "target", "margin", 10**400), "margin should be a finite number"),
        (damaged("lanes", 0, "rounds", 0, "end_s", float("nan")), "end_s"),
        (damaged("lanes", 0, "rounds", 2, "end_s", -5), "end_s should be greater than or equal to 0"),
        (damaged("lanes", 0, "rounds", 2, "end_s", 0), "run backwards"),
        (damaged("lanes", 1, "rounds", []), "no rounds"),
        (damaged("lanes", 1, "rounds", 0, "drafted", 0, "parent", 1), "come before"),
    ],
)
def test_what_is_not_a_trace_is_refused_with_what_is_wrong(text, named):
    with pytest.raises(PlaygroundError, match=named) as refused:
        load(text)
    assert len(str(refused.value)) < 300, "a file's long text is not repeated"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None)
@given(
    path=st.sampled_from(
        [("lanes", 0), ("lanes", 0, "rounds"), ("lanes", 1, "request", "prompt"), ("lanes", 1, "rounds", 0, "drafted")]
    ),
    value=JSON,
)
def test_no_damage_gets_past_the_reader_as_another_error(path, value):
    with contextlib.suppress(PlaygroundError):
        load(damaged(*path, value))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (dict(prompt=""), "is empty"),
        (dict(prompt=" \n\t"), "is empty"),
        (dict(prompt="a\ud800"), "surrogate"),
        (dict(prompt="a", system="\udfff"), "system prompt .* surrogate"),
        (dict(prompt="a", max_new_tokens=0), "Max new"),
        (dict(prompt="a", temperature=-1), "Temperature"),
        (dict(prompt="a", temperature=1e-300), "Temperature"),
        (dict(prompt="a", temperature=float("nan")), "Temperature"),
        (dict(prompt="a", top_p=0), "Top-p"),
        (dict(prompt="a", top_k=-1), "Top-k"),
        (dict(prompt="a", seed=-1), "Seed"),
        (dict(prompt="a", repetition_penalty=0), "Repetition penalty"),
    ],
)
def test_a_request_that_cannot_be_run_says_why(settings, named):
    with pytest.raises(PlaygroundError, match=named):
        Request(**settings)


def test_a_lookahead_out_of_range_says_so():
    with pytest.raises(PlaygroundError, match=r"Lookahead .* 0\b"):
        Lane("x", "t", lookahead=0)


def test_what_is_too_large_to_be_shown_is_refused():
    data = to_json(COMPARISON)
    with pytest.raises(PlaygroundError, match="1,000 lanes"):
        from_json(data | {"lanes": [{}] * 1000})
    with pytest.raises(PlaygroundError, match="which 3"):
        from_json(data, 3)


def test_a_mark_before_the_first_bracket_is_passed_over():
    text = json.dumps(to_json(COMPARISON))
    assert load("\ufeff" + text) == load(("\ufeff" + text).encode()) == COMPARISON


@pytest.mark.parametrize("lane", [0, 1])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"target": None, "drafted": []}, "no tokens"),
        ({"verify_s": 0.0}, "no time"),
        ({"start_s": 1.0, "end_s": 1.0}, "no time"),
    ],
)
def test_rounds_without_tokens_or_time_are_refused(lane, change, sentence):
    data = exported()
    for round_ in data["lanes"][lane]["rounds"]:
        round_.update(change)
    with pytest.raises(PlaygroundError, match=sentence):
        from_json(data)
