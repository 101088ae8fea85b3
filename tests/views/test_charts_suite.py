from __future__ import annotations

from dataclasses import replace
from math import isnan

from playground.experiments.kinds import sweep
from playground.experiments.suite import summarise
from playground.lane import Lane, Request
from playground.results import STANDARD, Predicted, Recommendation, Row, SuiteResult
from playground.trace import Environment
from playground.views import charts, charts_suite, compared

WHERE = Environment({"torch": "2"}, None, "cpu", "a CPU", "float32", 1, (), "")


def suite(seconds, categories=("<b>qa", "rag"), times=4):
    """Prompts of each category through the standard lane in 10 s and others in these seconds, by lookahead."""
    rows = [
        Row(i, category, STANDARD if not k else f"ngram {k}", 10, 10, s, 0.0, 4, 8, 10 / s, True)
        for i, category in enumerate(categories * times)
        for k, s in {0: 10.0, **seconds}.items()
    ]
    lanes = tuple(Lane("x", "t", "ngram", lookahead=k, policy="constant") for k in seconds)
    prompts = ("p",) * len(categories * times)
    return SuiteResult(WHERE, Request("p"), 1, lanes, tuple(rows), tuple(summarise(rows)), prompts=prompts)


def swept(seconds):
    result = suite(seconds)
    return sweep.sweep_result("lookahead", [0, *seconds], result.lanes, result)


def test_a_sweep_shows_speed_over_length_the_best_and_what_is_predicted():
    result = swept({2: 8.0, 4: 5.0})
    of = {0: Predicted(1.0, 1.0), 4: Predicted(2.5, 1.9)}
    result = replace(result, points=tuple(replace(it, predicted=of.get(it.value)) for it in result.points))
    figure = charts_suite.sweep(result)
    measured, predicted, length = figure.data
    assert (list(measured.x), [round(y, 2) for y in measured.y]) == ([0, 2, 4], [1, 1.25, 2])
    assert list(measured.marker.symbol) == ["circle", "circle", "star"]
    assert list(predicted.x) == [0, 4] and list(length.y) == [1, 1, 1]
    assert (measured.yaxis, length.yaxis) == ("y", "y2")
    assert figure.layout.meta.endswith("Best, a star: 4.")


def test_categories_are_small_multiples_and_their_names_stay_text():
    figure = charts_suite.by_category(swept({2: 8.0}))
    assert [note.text for note in figure.layout.annotations] == ["&lt;b&gt;qa", "rag"]
    assert [trace.yaxis for trace in figure.data] == ["y", "y2"]


def test_a_suite_shows_each_lane_as_a_dot_the_fastest_on_top_with_its_categories():
    figure = charts_suite.speedups(suite({4: 5.0, 2: 8.0}))
    of_categories, slower, _, faster = figure.data
    assert (list(slower.y), list(faster.y)) == (
        ["Prompt lookup<br>2 ahead, 8 prompts"],
        ["Prompt lookup<br>4 ahead, 8 prompts"],
    ), "Plotly draws the last one on top"
    assert [at[0] for at in of_categories.customdata] == ["&lt;b&gt;qa", "rag"] and len(of_categories.x) == 2
    assert figure.layout.xaxis.type == "log"
    assert isnan(faster.error_x.array[0]) == isnan(slower.error_x.array[0])


def test_settings_that_all_lanes_share_are_said_once():
    result = suite({2: 8.0})
    figure = charts_suite.speedups(result)
    assert list(figure.data[-1].y) == ["Prompt lookup"]
    assert "2 ahead, 8 prompts, 95 % intervals" in figure.layout.title.text
    other = replace(result.lanes[0], drafter="mtp")
    rows = (*result.rows, *(replace(it, lane="mtp 2") for it in result.rows if it.lane != STANDARD))
    both = replace(result, lanes=(*result.lanes, other), rows=rows, summaries=tuple(summarise(rows)))
    shared, unlike = charts_suite.speedups(both), charts_suite.speedups(suite({2: 8.0, 4: 5.0}))
    assert {name for it in shared.data for name in it.y} == {"Prompt lookup", "MTP layer"}
    assert shared.layout.height < unlike.layout.height, "rows of one line"


def test_lanes_that_gained_are_blue_however_many_and_no_other_is():
    figure = charts_suite.speedups(suite({**{k: 10.0 - k for k in range(1, 7)}, 7: 40.0}))
    colors = [dots.marker.color for dots in figure.data[1::2]]
    assert colors == [charts.STANDARD, *[charts_suite.ASSISTED] * 6]
    assert list(figure.data[-1].y) == ["Prompt lookup<br>6 ahead, 8 prompts"]


def test_a_drafter_has_one_colour_in_both_charts_of_a_recommendation():
    def lanes(result: SuiteResult, names: dict[str, str]) -> SuiteResult:
        return replace(result, lanes=tuple(replace(it, name=names[it.lookahead]) for it in result.lanes))

    refined = lanes(suite({2: 9.0, 4: 8.0}), {2: "Prompt lookup", 4: "MTP layer"})
    confirmed = lanes(suite({4: 5.0}), {4: "MTP layer"})
    (best,) = confirmed.lanes
    result = Recommendation(best, best, None, (), refined, refined, confirmed)
    colors = {it.name: it.line.color for it in charts_suite.refined(result).data if it.line.color}
    (dot,) = {it.marker.color for it in charts_suite.speedups(confirmed).data if it.marker.size == 11}
    assert colors["MTP layer"] == dot != colors["Prompt lookup"]


def test_two_suites_are_compared_where_both_have_a_lane():
    a = suite({2: 8.0, 4: 5.0})
    b = suite({4: 4.0})
    b = replace(b, environment=replace(WHERE, dtype="bfloat16"), request=replace(b.request, temperature=1.0))
    differences, table = compared.side_by_side(a, b)
    assert differences == ["Temperature: 0.0 and 1.0.", "Dtype: float32 and bfloat16."]
    assert [row[:2] for row in table.rows] == [("Prompt lookup (4 ahead)", c) for c in ("<b>qa", "rag", "all")]
    assert table.rows[-1][2:] == ("2.00× (2.00 to 2.00)", "2.50× (2.50 to 2.50)", "1.25")
    assert compared.side_by_side(a, a)[1].rows[-1][-1].startswith("1.00, no ")


def test_every_setting_and_the_software_are_compared_but_nothing_that_was_measured():
    a = suite({2: 8.0})
    here = replace(WHERE, runner="compiled", versions={**WHERE.versions, "torch": "9"}, created="later", bandwidth=1e9)
    b = replace(a, environment=here, runs=3, request=replace(a.request, system="Be brief. " * 20))
    differences, _ = compared.side_by_side(a, b)
    assert [sentence.partition(":")[0] for sentence in differences] == ["Runs", "System", "Runner", "Torch"]
    assert "none and Be brief." in differences[1] and len(differences[1]) < 120
