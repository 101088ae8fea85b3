from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from playground.trace import Comparison
from playground.views import charts, report
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
    assert charts.acceptance(comparison.lanes[0]).layout.annotations[0].text.startswith("Nothing ")


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


def named(figure) -> list[str]:
    """What stands at the right edge, from the bottom up."""
    tall = figure.layout.yaxis.range[1]
    place = {
        note.text: 204 * note.y / tall + note.yshift for note in figure.layout.annotations if note.xanchor == "left"
    }
    return sorted(place, key=place.__getitem__)


def test_lines_are_named_at_their_ends_and_the_first_to_finish_is_on_top(comparison):
    third = replace(comparison.lanes[1], lane=replace(comparison.lanes[1].lane, name="Quick"))
    third = replace(third, rounds=tuple(replace(it, end_s=it.end_s / 2) for it in third.rounds))
    figure = charts.race(Comparison((*comparison.lanes, third)))
    assert not figure.layout.showlegend
    assert named(figure)[-2:] == ["Assisted", "Quick"]


@pytest.mark.parametrize("ends", [[100.0] * 6, [0.0] * 6, [0.0, 1, 2, 50, 99, 100]])
def test_names_of_lines_neither_touch_nor_leave_the_plot(ends):
    figure = charts.blank("t", "s", "x", "y")
    charts.label_lines(figure, [(f"lane {i}", end, charts.INK) for i, end in enumerate(ends)], charts.count_axis([100]))
    high = charts.count_axis([100])["range"][1]
    places = sorted(204 * note.y / high + note.yshift for note in figure.layout.annotations)
    assert all(upper - lower >= 17.9 for lower, upper in itertools.pairwise(places))
    assert places[0] >= 0 and places[-1] <= 204 + 14


def test_a_race_of_more_lanes_than_colours_is_left_to_the_table(comparison):
    base, other = comparison.lanes
    lanes = [replace(other, lane=replace(other.lane, name=f"Lane {i}")) for i in range(len(charts.OTHERS) + 1)]
    titles = [it.layout.title.text for it in report.of(Comparison((base, *lanes))).charts]
    assert not any("race" in title for title in titles)
    assert any("race" in it.layout.title.text for it in report.of(Comparison((base, *lanes[:-1]))).charts)
