"""A best one is named only where it is clear, and every verdict ends in a command."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from playground.experiments.suite import summarise
from playground.lane import Lane, Request, label
from playground.results import STANDARD, Row, SuiteResult, rank, ratio
from playground.trace import Environment
from playground.views import charts_suite, ranking, suite

WHERE = Environment({"torch": "2"}, None, "cpu", "a CPU", "float32", 1, (), "")
LOOKUP = Lane("Prompt lookup", "t", "ngram", lookahead=4, policy="constant")
MIXED = Lane("Prompt lookup + tree", "t", "composite", "w", lookahead=10, policy="constant", nodes=24)
KEYS = {"standard": STANDARD, "ngram": "ngram 4", "mixed": "composite 10, 24 nodes"}


def result(times: dict[str, tuple[float, ...]], lanes=(LOOKUP, MIXED)) -> SuiteResult:
    """Each lane's seconds on each prompt."""
    rows = [
        Row(i, "qa", KEYS[name], 10, 5, s, 0.0, 4, 8, times["standard"][i] / s, True)
        for name, seconds in times.items()
        for i, s in enumerate(seconds)
    ]
    prompts = ("p",) * len(times["standard"])
    return SuiteResult(WHERE, Request("p"), 1, lanes, tuple(rows), tuple(summarise(rows)), prompts=prompts)


def test_a_lead_beyond_the_range_is_best_and_each_engine_gets_the_fastest_that_it_can_decode():
    found = result({"standard": (10.0, 10.1) * 5, "ngram": (8.0, 8.1) * 5, "mixed": (4.0, 4.1) * 5})
    assert ranking.verdict(found).startswith("Best: Prompt lookup + tree (10 ahead), 2.48× (2.")
    rows = ranking.table(found).rows
    assert (*rows[0][:2], rows[0][3]) == ("Prompt lookup + tree (10 ahead)", "best", "only here")
    assert rows[1][:2] == ("Prompt lookup (4 ahead)", ranking.FASTER) and "vLLM" in rows[1][3]
    assert rows[2][:4] == ("Standard", "", "", "every engine")
    vllm = ranking.deploy(found)[0]
    assert "ngram" in vllm.text and vllm.instead == "Prompt lookup (4 ahead)"
    assert "The nearest is Prompt lookup (4 ahead). Measured as exported: 1.2" in vllm.note


def test_a_lead_within_the_range_is_a_tie():
    found = result({"standard": (10.0, 10.1) * 5, "ngram": (5.0, 4.0) * 5, "mixed": (4.0, 4.9) * 5})
    assert ranking.verdict(found).startswith("No clear winner: Prompt lookup")
    assert ranking.verdict(found).endswith("cannot be told apart.")
    assert [row[1] for row in ranking.table(found).rows] == [ranking.TIED, ranking.TIED, ""]


def test_no_drafter_that_beats_no_drafting_is_best_and_the_command_is_that_without_one():
    found = result({"standard": (10.0, 9.0) * 5, "ngram": (9.0, 10.5) * 5, "mixed": (20.0, 21.0) * 5})
    assert ranking.verdict(found).startswith("No drafter clearly beat standard decoding (the fastest: Prompt lookup")
    assert ranking.table(found).rows[-1][:2] == ("Prompt lookup + tree (10 ahead)", ranking.SLOWER)
    vllm = ranking.deploy(found)[0]
    assert vllm.text == "vllm serve t" and vllm.note == "No drafter was seen to be faster here."


def test_a_lookup_that_was_not_measured_is_no_command():
    found = result({"standard": (10.0, 10.1) * 5, "mixed": (4.0, 4.1) * 5}, lanes=(MIXED,))
    vllm = ranking.deploy(found)[0]
    assert vllm.text == "vllm serve t" and "Nothing else that it can decode was seen to be faster here." in vllm.note


def test_a_policy_that_an_engine_lacks_is_exported_without_a_number():
    auto = replace(LOOKUP, lookahead=8, policy="auto")
    rows = [
        Row(i, "qa", name, 10, 5, s, 0.0, 4, 8, 10 / s, True)
        for name, s in ((STANDARD, 10.0), (label(auto), 5.0))
        for i in range(10)
    ]
    found = SuiteResult(WHERE, Request("p"), 1, (auto,), tuple(rows), tuple(summarise(rows)), prompts=("p",) * 10)
    vllm = ranking.deploy(found)[0]
    assert '"num_speculative_tokens": 2' in vllm.text and "×" not in vllm.note, "two tokens a check"
    assert "suite --target t --drafters ngram --lookahead 2 --policy constant" in vllm.note


def seconds(speed: float, noise: float = 0.01) -> tuple[float, ...]:
    """Seconds of ten prompts."""
    return tuple(10 / speed * (1 + noise * (-1) ** i) for i in range(10))


@pytest.mark.parametrize(
    ("times", "outcome", "said", "command"),
    [
        (
            {"standard": (10.0,), "ngram": (6.45,)},
            "too few",
            "The fastest drafter was",
            "Too few prompts and runs to tell",
        ),
        (
            {"standard": (10.0,), "ngram": (12.0,)},
            "too few",
            "The fastest drafter was",
            "Too few prompts and runs to tell",
        ),
        ({"standard": seconds(1), "ngram": seconds(0.5)}, "none faster", "No drafter clearly", "No drafter was seen"),
        (
            {"standard": seconds(1), "ngram": seconds(1, -0.2)},
            "none faster",
            "No drafter clearly",
            "No drafter was seen",
        ),
        ({"standard": seconds(1), "ngram": seconds(2)}, "best", "Best: Prompt lookup", "Measured as exported: 2.0"),
        (
            {"standard": seconds(1), "ngram": seconds(2), "mixed": seconds(2, -0.2)},
            "tie",
            "No clear winner",
            "Measured as",
        ),
    ],
)
def test_sentence_word_and_command_of_every_outcome_agree(times, outcome, said, command):
    lanes = [lane for name, lane in (("ngram", LOOKUP), ("mixed", MIXED)) if name in times]
    found = result(times, lanes)
    assert ranking.judged(ranking.ranking(found)).outcome == outcome
    assert ranking.verdict(found).startswith(said)
    vllm = ranking.deploy(found)[0]
    assert command in vllm.note and ("ngram" in vllm.text) == (outcome in ("best", "tie"))
    assert any(ranking.verdicts(found)[KEYS[name]] in (ranking.BEST, ranking.TIED) for name in times) == (
        outcome in ("best", "tie") or "0.50×" in ranking.verdict(found)
    ), "standard decoding is best where every drafter loses"


def test_without_ranges_nobody_is_called_best():
    found = result({"standard": (10.0,), "ngram": (8.0,), "mixed": (4.0,)})
    assert ranking.verdict(found) == f"The fastest drafter was Prompt lookup + tree (10 ahead), 2.50×: {ranking.FEW}."
    assert not any(row[1] for row in ranking.table(found).rows)


def equal(lanes: int, seed: int, prompts: int = 10) -> list[Row]:
    """Rows of so many drafting lanes that are as fast as the standard one: a prompt's runs differ by a tenth."""
    rng = np.random.default_rng(seed)
    times = {name: rng.lognormal(0, 0.1, prompts) for name in (STANDARD, *(f"ngram {k}" for k in range(1, 1 + lanes)))}
    return [
        Row(i, "qa", name, 10, 5, float(s), 0.0, 4, 8, float(times[STANDARD][i] / s), True)
        for name, of_lane in times.items()
        for i, s in enumerate(of_lane)
    ]


def test_of_many_drafters_that_gain_nothing_one_is_seldom_seen_to():
    """The more drafters, the more chances that one of them looks faster: the intervals hold for all together."""
    seen = [rank(equal(8, seed)) for seed in range(400)]
    assert sum(any(it.gains or it.loses for it in found) for found in seen) <= 0.05 * 400
    assert sum(sum(it.ties for it in found) == 1 for found in seen) <= 0.05 * 400, "and hardly ever is one the best"


def test_verdict_sentence_colour_and_command_agree():
    """In a draw in which an interval of one lane alone would exclude 1, and with a drafter that is really faster."""
    lanes = tuple(replace(LOOKUP, lookahead=k) for k in range(1, 9))
    alone = lambda rows: any(ratio(rows, label(lane)).interval[0] > 1 for lane in lanes)  # noqa: E731
    lucky = next(rows for rows in map(partial(equal, 8), range(400)) if alone(rows) and not rank(rows)[0].gains)
    fast = [replace(row, seconds=row.seconds / (2 if row.lane == "ngram 4" else 1)) for row in lucky]
    for rows, gaining in ((lucky, set()), (fast, {"ngram 4"})):
        of = SuiteResult(WHERE, Request("p"), 1, lanes, tuple(rows), tuple(summarise(rows)), prompts=("p",) * 10)
        good = {ranking.BEST, ranking.TIED, ranking.FASTER}
        assert {name for name, said in ranking.verdicts(of).items() if said in good and name != STANDARD} == gaining
        assert ranking.verdict(of).startswith("Best: " if gaining else "No drafter ")
        assert ("ngram" in ranking.deploy(of)[0].text) == bool(gaining)
        large = [it for it in charts_suite.speedups(of).data if it.marker.size == 11]
        assert sum(it.marker.color != charts_suite.charts.STANDARD for it in large) == len(gaining)
        shown = {it.lane: it.interval for it in rank(rows) if it.lane != STANDARD}
        assert all(of.of(name).interval == interval for name, interval in shown.items()), "what is shown decides"


def test_servers_lanes_run_where_they_are():
    server = replace(LOOKUP, name="vLLM, ngram", backend="vLLM at http://127.0.0.1:8000")
    rows = [Row(0, "qa", name, 10, 5, s, 0.0, 4, 8, 1.0, True) for name, s in ((STANDARD, 2.0), ("vLLM, ngram", 1.0))]
    found = SuiteResult(WHERE, Request("p"), 1, (server,), tuple(rows), tuple(summarise(rows)), prompts=("p",))
    assert ranking.deploy(found) == [] and ranking.table(found).rows[0][3] == "vLLM"


def test_a_spreadsheet_has_the_names_and_where_they_run():
    found = suite.lines(result({"standard": (10.0,), "ngram": (8.0,), "mixed": (4.0,)}))
    assert [(line["lane"], line["runs_in"][:4]) for line in found] == [
        ("Standard", "ever"), ("Prompt lookup (4 ahead)", "vLLM"), ("Prompt lookup + tree (10 ahead)", "only"),
    ]  # fmt: skip
