"""Forced acceptance: the verdicts are drawn, the output is standard decoding's all the same, and the lane says so."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest

from playground import export, metrics
from playground.backends.local import LocalBackend
from playground.errors import PlaygroundError
from playground.experiments.events import Watch
from playground.experiments.race import decode
from playground.lane import Lane, Request, assisted_lane, label, standard_lane, synthetic
from playground.models.store import ModelStore
from playground.presets import custom_pair
from playground.trace import Comparison
from playground.views import engines, headline, run_details
from playground.views.comparison import repeat
from tests.selection import selected
from tests.tiny import small_llama

REQUEST = Request("The waves count winters", max_new_tokens=32)


@pytest.fixture(scope="module")
def pair(tmp_path_factory, tiny_tokenizer):
    tmp_path = tmp_path_factory.mktemp("pair")
    for name, spread in (("target", 0.3), ("drafter", 0.25)):
        small_llama(tiny_tokenizer, initializer_range=spread).save_pretrained(tmp_path / name)
        tiny_tokenizer.save_pretrained(tmp_path / name)
    return custom_pair(str(tmp_path / "target"), str(tmp_path / "drafter"), "assistant")


def run(pair, lanes, request=REQUEST):
    backend = LocalBackend(ModelStore(), pair, "float32", "cpu")
    for lane in lanes:
        backend.load(lane, lambda step: None)
    return [decode(backend, lane, request, Watch()) for lane in lanes]


@pytest.mark.parametrize(
    ("drafter", "temperature"),
    selected(product(("assistant", "ngram"), (0.0, 1.0)), [("assistant", 1.0), ("ngram", 0.0)]),
)
def test_the_output_is_standard_decodings_and_the_rates_are_those_asked_for(pair, drafter, temperature):
    lane = assisted_lane(pair, drafter, 4)
    request = replace(REQUEST, temperature=temperature, max_new_tokens=40)
    standard, none, every, half = run(
        pair, [standard_lane(pair), *(synthetic(lane, [r]) for r in (0, 1, 0.5))], request
    )
    assert standard.token_ids == none.token_ids == every.token_ids == half.token_ids
    assert metrics.measure(none).accepted == 0
    full = every.rounds[:-1]  # the last one ends with the text
    assert all(len(round_.accepted) == len(round_.drafted) for round_ in full)
    reached = sum(position.reached for position in metrics.acceptance_by_position(half.rounds))
    assert metrics.measure(half).accepted / reached == pytest.approx(0.5, abs=0.2)


def test_rates_by_position_end_drafts_where_they_are_zero(pair):
    (trace,) = run(pair, [synthetic(assisted_lane(pair, "assistant", 4), [1, 1, 0])])
    assert {len(round_.accepted) for round_ in trace.rounds[1:-1]} == {2}


def test_it_is_marked_everywhere(pair):
    standard, trace = run(pair, [standard_lane(pair), synthetic(assisted_lane(pair, "assistant", 4), [0.5])])
    assert "synthetic" in trace.lane.name and "synthetic" in label(trace.lane)
    comparison = Comparison((standard, trace))
    assert headline.doubts(metrics.measured(comparison, trace.lane.name))[0].startswith("Synthetic acceptance")
    data = json.loads(json.dumps(export.to_json(comparison)))
    assert data["lanes"][1]["lane"]["forced_rates"] == [0.5] and data["lanes"][1]["calibration"] == []
    assert export.from_json(data) == comparison
    assert run_details.tables([trace]) == []
    assert all(token.q is None for round_ in trace.rounds for token in round_.accepted)
    with pytest.raises(PlaygroundError, match="named synthetic"):
        Lane("Assisted", "t", "ngram", forced_rates=(0.5,))


def test_a_synthetic_lane_is_never_the_best_nor_deployed_and_its_command_says_so(pair):
    lane = assisted_lane(pair, "assistant", 4)
    standard, real, drawn = run(pair, [standard_lane(pair), lane, synthetic(lane, [1.0])])
    faster = replace(
        drawn,
        rounds=tuple(replace(r, start_s=r.start_s / 1e3, end_s=r.end_s / 1e3) for r in drawn.rounds),
    )
    comparison = Comparison((standard, real, faster), repeats=((standard, real, faster),))
    assert [it.ours.lane for it in metrics.ranked(comparison)] == [lane, drawn.lane]
    assert metrics.leader(comparison) in (None, real.lane.name)
    assert engines.of_comparison(comparison, drawn.lane) == []
    command = repeat(comparison, [])
    assert "--force-acceptance=1.0" in command and "--all-drafters" not in command
