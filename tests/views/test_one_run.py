"""One comparison, whose runs differ on purpose, in every form: each figure is that of the run that is shown."""

from __future__ import annotations

import cProfile
import html
import json
import pstats
import re
from dataclasses import asdict, replace
from itertools import chain

import pytest
from PIL import ImageDraw

from playground import export, metrics, theory
from playground.presets import load_pairs
from playground.trace import Comparison, Trace
from playground.ui.compare import shown as last_runs
from playground.ui.compare.shown import Shown
from playground.views import charts, drafters, headline, replay_file, report, run_details, scripts, stage, why
from playground.views import replay_file as animation
from playground.views import table as spreadsheet
from playground.views import why as cost
from playground.views.comparison import markdown
from tests.examples import drafted_round, plain_round, trace

MARKERS = ((90, "<think>"), (91, "</think>"))
IDS = (90, *range(1, 12), 91, *range(12, 31))


def standard(pass_s: float, prefill_s: float = 1.0) -> Trace:
    rounds = [plain_round(IDS[0], verify_s=prefill_s)]
    for id_ in IDS[1:]:
        rounds.append(plain_round(id_, start_s=rounds[-1].end_s, verify_s=pass_s))
    return replace(trace(rounds), markers=MARKERS)


def drafting(name: str, pass_s: float, kept: int, prefill_s: float = 1.0) -> Trace:
    """Every other round keeps `kept` tokens of four; the others draft nothing."""
    rounds, at = [plain_round(IDS[0], verify_s=prefill_s)], 1
    while at < len(IDS):
        now = rounds[-1].end_s + 0.004  # between two rounds
        if len(rounds) % 2 and at + kept < len(IDS):
            ids = [*IDS[at : at + kept], *[99] * (4 - kept)]
            rounds.append(
                drafted_round(ids, accepted=kept, own=IDS[at + kept], start_s=now, draft_s=0.02, verify_s=pass_s)
            )
            at += kept + 1
        else:
            rounds.append(plain_round(IDS[at], start_s=now, verify_s=pass_s))
            at += 1
    return replace(trace(rounds, "ngram", name), markers=MARKERS)


def passes() -> Comparison:
    """Three passes, of which the last left a lane out. The median run of each lane is of another one."""
    first = standard(0.13), drafting("Fast", 0.10, 3), drafting("Slow", 0.16, 2)
    second = standard(0.10, 0.9), drafting("Fast", 0.12, 3, 1.1), drafting("Slow", 0.15, 2)
    return Comparison(first, repeats=(second, (standard(0.12), drafting("Fast", 0.13, 3))))


COMPARISON = passes()
MEASURED = {name: metrics.measured(COMPARISON, name) for name in ("Fast", "Slow")}
FAST = MEASURED["Fast"]
LANES = {"Standard": FAST.base, "Fast": FAST.ours, "Slow": MEASURED["Slow"].ours}
SPEED = {name: f"{metrics.measure(run).tokens_per_s:.1f} tok/s" for name, run in LANES.items()}
TOTAL = {name: f"{metrics.measure(run).total_s:.2f} s" for name, run in LANES.items()}
EQUATION = FAST.equation
SPEEDUP = headline.speedup(FAST)  # with its interval


def test_the_runs_differ_and_each_lane_is_shown_in_its_median_pass():
    first, second, third = (COMPARISON.lanes, *COMPARISON.repeats)
    by_speedup = sorted((first, second, third), key=lambda runs: metrics.whole_run_ratio(*runs[:2]))
    assert (FAST.base, FAST.ours) == by_speedup[1][:2] and by_speedup[1] == (first, second, third)[FAST.shown]
    assert LANES["Slow"] is second[2], "of two the later"
    low, high = FAST.interval
    assert low < FAST.speedup < high and f"({low:.2f} to {high:.2f})" in SPEEDUP
    assert FAST.speedup == pytest.approx(EQUATION.tokens_per_pass / EQUATION.cost * EQUATION.prefill)
    assert len({f"{each:.2f}" for each in (FAST.speedup, EQUATION.tokens_per_pass, EQUATION.cost)}) == 3


def check_stage(value: dict, name: str) -> None:
    found, verdict = MEASURED[name], value["verdict"]
    assert verdict["figure"] == headline.figure(found) and verdict["runs"] == headline.runs(found)
    assert verdict["terms"] == asdict(found.equation)
    for lane, run in zip(value["lanes"], (found.base, found.ours), strict=True):
        shown, of = {it["label"]: f"{it['value']} {it['unit']}" for it in lane["figures"]}, metrics.measure(run)
        assert (shown["Speed"], shown["Total"]) == (f"{of.tokens_per_s:.1f} tok/s", f"{of.total_s:.2f} s")


@pytest.mark.parametrize("name", ["Fast", "Slow"])
def test_page_picture_and_html(name):
    """The picture is drawn from the page's value."""
    value = stage.replaying(COMPARISON, name).value()
    check_stage(value, name)
    assert headline.speedup(MEASURED[name]) in value["deploy"]["note"]
    page = replay_file.build(COMPARISON, name)
    packed = json.loads(re.search(r'id="value"[^>]*>(.*?)</script>', page, re.DOTALL)[1])
    check_stage(json.loads(packed["rest"]), name)
    table = run_details.of_comparison(COMPARISON, [name]).html()
    assert table in page and table in run_details.html(COMPARISON, name)


def test_tables_in_markdown_and_terminal():
    for text in (markdown(COMPARISON, []), report.markdown(report.of(COMPARISON))):
        rows = {cells[1]: cells[2:5] for line in text.splitlines() if (cells := [*map(str.strip, line.split("|"))])[4:]}
        assert rows["Speed"] == [*SPEED.values()] and rows["Total"] == [*TOTAL.values()]
        assert rows["Speed-up over Standard"] == ["1×", *(headline.speedup(it) for it in MEASURED.values())]
    text = report.text(report.of(COMPARISON))
    assert re.search(r"^Speed +" + " +".join(SPEED.values()) + "$", text, re.MULTILINE)
    assert f"Fast: {headline.figure(FAST)} ({headline.runs(FAST)})." in text
    assert SPEEDUP in headline.title(COMPARISON, "Fast") and f"Measured as exported: {SPEEDUP}." in text
    assert last_runs._label(Shown(COMPARISON, "Fast"), None).endswith(f" · {SPEEDUP}")


def test_the_saved_file_has_the_speed_up_of_page_and_terminal():
    saved = {it["lane"]: it for it in export.to_json(COMPARISON)["differences"]}
    for name, found in MEASURED.items():
        assert (saved[name]["speedup"], saved[name]["interval"]) == (found.speedup, found.interval)
        assert (saved[name]["outcome"], saved[name]["shown"]) == (found.outcome, found.shown)
        assert saved[name]["whole_run_ratio"] == found.whole_run_ratio != found.speedup


def test_spreadsheet_drafters_cost_and_race():
    lines = {line["lane"]: line for line in spreadsheet.lines(COMPARISON)}
    for name, found in MEASURED.items():
        assert (lines[name]["speedup"], lines[name]["speedup_low"], lines[name]["speedup_high"]) == (
            found.speedup, *found.interval,
        )  # fmt: skip
    assert {name: f"{line['tokens_per_s']:.1f} tok/s" for name, line in lines.items()} == SPEED
    assert {name: f"{line['total_s']:.2f} s" for name, line in lines.items()} == TOTAL
    row = drafters.of(COMPARISON)[0]
    assert (row.speedup, row.tokens_per_pass, row.cost) == (
        SPEEDUP, f"{EQUATION.tokens_per_pass:.2f}", f"{EQUATION.cost:.2f}",
    )  # fmt: skip
    assert [f"{row[1]} tok/s" for row in cost.cost_table(metrics.shown(COMPARISON).lanes, 1.0).rows] == [
        *SPEED.values()
    ]
    race = next(chart for chart in report.of(COMPARISON).charts if "over time" in chart.layout.meta)
    assert all(f"{name}: 32 tokens in {total}." in race.layout.meta for name, total in TOTAL.items())
    assert charts.race(metrics.shown(COMPARISON)).layout.meta == race.layout.meta


def test_the_breakdown_begins_and_ends_with_the_headline_in_chart_and_prose():
    found, text = theory.attribute(FAST), why.paragraph(FAST)
    bars = why.waterfall(FAST).data[0]
    assert (bars.text[0], bars.text[-1]) == (f"{EQUATION.tokens_per_pass:.2f}", f"{FAST.speedup:.2f}×")
    assert text.split(" tokens")[0].endswith(f" {EQUATION.tokens_per_pass:.2f}")
    said = re.search(r"cost ([\d.]+) standard .*checking (\S+) .*guessing (\S+), .* loop (\S+)\. ", text)
    parts = (EQUATION.cost, EQUATION.verify, EQUATION.draft, EQUATION.other)
    assert said.groups() == tuple(f"{part:.2f}" for part in parts) and min(parts) >= 0
    assert dict(zip(bars.x, bars.y, strict=True))["rest"] < 0, "what costs time costs speed"
    assert re.search(rf"× {EQUATION.prefill:.2f} is .* {FAST.speedup:.2f}x", text)
    assert headline.runs(FAST) in text and [label for label, _ in found.steps] == list(bars.x[:-1])


def test_the_moving_picture(monkeypatch):
    said = []
    monkeypatch.setattr(ImageDraw.ImageDraw, "text", lambda pen, at, text, *rest, **more: said.append(text))
    animation._still(FAST, "")
    assert said[:2] == [SPEEDUP.translate(animation.PLAIN), headline.meaning(FAST)]
    assert f"{EQUATION.tokens_per_pass:.2f} tokens" in said[2] and f" {EQUATION.cost:.2f} standard" in said[2]


def test_segments_make_the_whole():
    """Of the runs that are shown, the prefill left out: all segments together are tokens per pass over cost."""
    parts = {name: metrics.by_segment(run) for name, run in LANES.items()}
    speed = {name: sum(it.timed for it in each) / sum(it.seconds for it in each) for name, each in parts.items()}
    found = metrics.segment_speedups(COMPARISON, "Fast")
    assert [*found] == ["thinking", "answer"]
    assert (
        min(it for it, _ in found.values()) <= speed["Fast"] / speed["Standard"] <= max(it for it, _ in found.values())
    )
    rows = run_details.of_comparison(COMPARISON).rows
    shown = {row[1]: html.unescape(row[-1]) for row in rows if row[0] == "Fast"}
    assert all(shown[name].startswith(f"{over:.2f}× (") for name, (over, _) in found.items())


def test_the_recorded_run_is_measured_once_and_shown_everywhere_in_few_calls():
    data, pairs = (scripts.ASSETS / "recorded.json").read_bytes(), load_pairs()[0].values()

    def show() -> Comparison:
        comparison = export.load(data)
        shown = stage.replaying(comparison)
        stage.packed(shown.value())
        run_details.html(comparison, shown.chosen)
        markdown(comparison, pairs)
        replay_file.build(comparison, shown.chosen)
        json.dumps(export.to_json(comparison))
        return comparison

    show()  # imports, templates and presets are read once
    profile = cProfile.Profile()
    comparison = profile.runcall(show)
    stats = pstats.Stats(profile)
    calls = {name: each.ncalls for name, each in stats.get_stats_profile().func_profiles.items()}
    runs = str(len([*comparison.lanes, *chain(*comparison.repeats)]))
    assert (calls["measure_rounds"], calls["calibration"]) == (runs, runs)
    assert stats.total_calls < 60_000
