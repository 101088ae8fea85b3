"""A recommendation as sentences and tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from playground import metrics
from playground.drafting_methods import METHODS
from playground.format import NO_DIFFERENCE, count, number, ratio
from playground.lane import LOCAL, Lane, label
from playground.results import STANDARD, Recommendation
from playground.views import charts_suite, compared, engines, report, spreadsheet, suite
from playground.views.engines import Settings
from playground.views.report import Report
from playground.views.suite import left_out
from playground.views.table import Table


@report.of.register
def _(result: Recommendation) -> Report:
    return Report(
        f"Recommendation for {result.tested.target}",
        suite.setting(result.confirmed),
        [headline(result), *reasons(result)],
        [charts_suite.refined(result), charts_suite.speedups(result.confirmed, "Confirming")],
        [table(result)],
        stages(result),
        settings(result) if result.lane and result.lane.backend == LOCAL else (),
    )


compared.comparable.register(Recommendation, lambda result: result.confirmed)


@spreadsheet.lines.register
def _(result: Recommendation) -> list[dict[str, Any]]:
    stages = {"screened": result.screened, "refined": result.refined, "confirmed": result.confirmed}
    return [{"stage": name} | line for name, found in stages.items() for line in suite.lines(found)]


def headline(result: Recommendation) -> str:
    """What to use, with what it gives on these prompts."""
    found = ratio(result.summary.overall, result.summary.interval)
    if result.lane:
        return f"For these prompts on this machine: {_named(result.lane)}, {found}."
    best = f"The best that was tried, {_named(result.tested)}, gave {found}"
    seen = result.summary.interval and metrics.differs(result.summary.interval)
    return f"For these prompts on this machine: no drafter. {best}{'' if seen else f': {NO_DIFFERENCE}'}."


def reasons(result: Recommendation) -> list[str]:
    """How it was chosen."""
    screened, refined, confirmed = result.screened, result.refined, result.confirmed
    ties = ", ".join("no drafter" if name == STANDARD else name for name in result.ties)
    said = [
        f"Screened: {count(len(screened.lanes), 'drafter')} over {count(len(screened.prompts), 'prompt')}. "
        f"Refined: {count(len(refined.lanes), 'setting')} of the fastest.",
        f"Statistically tied with the fastest: {ties}. Chosen is the smallest tied lookahead with a significant "
        f"speed-up, by intervals that hold for all {len(refined.lanes)} together; the table has those of each alone.",
        f"The speed-up is from {confirmed.runs} further runs of each prompt, which were not used to choose.",
    ]
    return [*said, *left_out(screened.failures + confirmed.failures)]


def table(result: Recommendation) -> Table:
    """A row for each setting that was refined, then for each drafter that was only screened."""
    refined = [("refined", name, result.refined.of(name)) for name in map(label, result.refined.lanes)]
    kept = {lane.drafter for lane in result.refined.lanes}
    screened = [
        ("screened", label(lane), result.screened.of(label(lane)))
        for lane in result.screened.lanes
        if lane.drafter not in kept
    ]
    rows = []
    for stage, name, found in [*refined, *screened]:
        chosen = result.lane is not None and stage == "refined" and name == label(result.lane)
        mark = "chosen" if chosen else "within noise" if stage == "refined" and name in result.ties else ""
        figures = (
            number(found.tokens_per_s, 1), number(found.mean_accepted_length), ratio(found.overall, found.interval)
        )  # fmt: skip
        rows.append((name, stage, mark, *figures))
    columns = ("setting", "stage", "verdict", "tokens/s", "mean accepted length", "speed-up")
    return Table("What was tried", columns, tuple(rows), numbers=3)


def stages(result: Recommendation) -> list[Table]:
    """Each stage by category, and the confirming runs by prompt."""
    of = {"Screening": result.screened, "Refining": result.refined, "Confirming": result.confirmed}
    tables = [replace(suite.by_category(found), caption=f"{name}, by category") for name, found in of.items()]
    return [*tables, replace(suite.by_prompt(result.confirmed), caption="Confirming, by prompt")]


def settings(result: Recommendation) -> list[Settings]:
    """What was chosen, for each engine; for one that cannot decode that way, the fastest setting that was tried, that
    gained, and that it can decode. Of a recommendation with a lane of this process."""
    assert result.lane
    tried = [(lane, stage.of(label(lane))) for stage in (result.refined, result.screened) for lane in stage.lanes]
    paid = sorted((it for it in tried if it[1].gains), key=lambda it: it[1].overall, reverse=True)
    instead = [(label(lane), found, engines.settings(lane, result.method)) for lane, found in paid]
    chosen = engines.settings(result.lane, result.method)
    for i, here in enumerate(chosen):
        if here.text:
            continue
        note = f"{here.note} Nothing else that it can decode was seen to be faster than standard decoding."
        chosen[i] = replace(here, note=note)
        for name, found, there in instead:
            if there[i].text:
                note = f"{here.note} Instead, {name}, here {ratio(found.overall, found.interval)}. {there[i].note}"
                chosen[i] = replace(there[i], note=note.strip())
                break
    return chosen


def _named(lane: Lane) -> str:
    if lane.backend != LOCAL:
        return f"{lane.drafter} in {lane.program}, lookahead {lane.lookahead}"
    policy = "" if lane.policy == "constant" else f", policy {lane.policy}"
    threshold = f" {lane.confidence_threshold:g}" if lane.policy == "confidence" else ""
    nodes = f", tree of {lane.nodes}" if METHODS[lane.drafter].tree else ""
    return f"drafter {lane.drafter}, lookahead {lane.lookahead}{nodes}{policy}{threshold}"
