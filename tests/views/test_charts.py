from __future__ import annotations

from dataclasses import replace

import pytest

from playground.trace import Comparison
from playground.views import charts
from tests.examples import drafted_round, plain_round, trace


@pytest.fixture
def comparison() -> Comparison:
    standard = trace([plain_round(i, start_s=0.1 * i) for i in range(6)])
    assisted = trace(
        [
            drafted_round([1, 2], accepted=2, own=3, start_s=0.0),
            drafted_round([4, 5], accepted=0, own=6, start_s=0.2),
            drafted_round([7], accepted=1, own=8, start_s=0.4),
        ],
        drafter="ngram",
    )
    return Comparison((standard, assisted))


def test_the_race_climbs_by_what_each_round_brought(comparison):
    standard, assisted = charts.race(comparison).data
    assert list(standard.y) == [0, 1, 2, 3, 4, 5, 6]
    assert list(assisted.y) == [0, 3, 4, 6]
    assert assisted.x == pytest.approx((0.0, 0.2, 0.4, 0.6))
    assert standard.line.color == charts.STANDARD


def test_a_lane_s_name_is_no_markup(comparison):
    lanes = [replace(it, lane=replace(it.lane, name=f"<a href='{i}'>y</a>")) for i, it in enumerate(comparison.lanes)]
    named = Comparison(tuple(lanes), lanes[0].lane.name)
    assert all("<" not in line.name for line in charts.race(named).data)


def test_every_lane_has_a_colour_and_the_baseline_is_grey_wherever_it_stands(comparison):
    third = replace(comparison.lanes[1], lane=replace(comparison.lanes[1].lane, name="Another"))
    figure = charts.race(Comparison((third, *comparison.lanes)))
    assert [line.name for line in figure.data] == ["Standard", "Another", "Assisted"]
    assert len({line.line.color for line in figure.data}) == 3 and figure.data[0].line.color == charts.STANDARD


def test_acceptance_is_given_once_reached_and_of_all_drafts(comparison):
    reached, all_drafts = charts.acceptance(comparison.lanes[1]).data
    assert reached.y == pytest.approx((100 * 2 / 3, 100))
    assert all_drafts.y == pytest.approx((100 * 2 / 3, 50))
    assert [list(n) for n in reached.customdata] == [[2, 3], [1, 1]]
    below = reached.error_y.arrayminus
    assert 100 - below[1] == pytest.approx(20.7, abs=0.1), "one of one is somewhere from a fifth to all"
    assert reached.error_y.array[1] == pytest.approx(0)


def test_a_lane_that_drafted_nothing_says_so(comparison):
    assert charts.acceptance(comparison.lanes[0]).layout.annotations[0].text == "Nothing was drafted."


def test_every_figure_has_a_title_units_and_a_background_for_its_image(comparison):
    for figure in (
        charts.race(comparison),
        charts.acceptance(comparison.lanes[1]),
    ):
        assert figure.layout.title.text and figure.layout.xaxis.title.text and figure.layout.yaxis.title.text
        assert figure.layout.paper_bgcolor == "white"
        assert figure.layout.meta, "what it shows, in words"
        assert all(data.hovertemplate for data in figure.data)


def test_a_figure_says_in_words_what_it_draws(comparison):
    said = charts.race(comparison).layout.meta
    assert said == "Tokens over time. Standard: 6 tokens in 0.60 s. Assisted: 6 tokens in 0.60 s."
    said = charts.acceptance(comparison.lanes[1]).layout.meta
    assert said.endswith("Position 1: 2 of 3 if reached, of 3 drafted. Position 2: 1 of 1 if reached, of 2 drafted.")
