"""A recommendation as sentences, tables and settings of engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from playground import metrics
from playground.format import NO_DIFFERENCE, count, ratio
from playground.lane import LOCAL, Lane, label
from playground.results import STANDARD, Ranked, Recommendation, Summary, names_of
from playground.views import charts_suite, compared, ranking, report, suite
from playground.views import table as spreadsheet
from playground.views.engines import Settings
from playground.views.ranking import TIED
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
        settings(result),
    )


compared.comparable.register(Recommendation, lambda result: result.confirmed)


@spreadsheet.lines.register
def _(result: Recommendation) -> list[dict[str, Any]]:
    stages = {"screened": result.screened, "refined": result.refined, "confirmed": result.confirmed}
    return [{"stage": name} | line for name, found in stages.items() for line in suite.lines(found)]


def headline(result: Recommendation) -> str:
    """Say what to use, with its speed-up on these prompts."""
    found = ratio(result.summary.overall, result.summary.interval)
    name = names_of([result.tested])[label(result.tested)]
    if result.lane:
        return f"For these prompts on this machine: {name}, {found}."
    best = f"The best that was tried, {name}, gave {found}"
    seen = result.summary.interval and metrics.differs(result.summary.interval)
    return f"For these prompts on this machine: no drafter. {best}{'' if seen else f': {NO_DIFFERENCE}'}."


def reasons(result: Recommendation) -> list[str]:
    """Say how the recommendation was chosen."""
    screened, refined, confirmed = result.screened, result.refined, result.confirmed
    names = names_of(refined.lanes)
    ties = ", ".join("no drafter" if key == STANDARD else names.get(key, key) for key in result.ties)
    said = [
        f"Screened: {count(len(screened.lanes), 'drafter')} over {count(len(screened.prompts), 'prompt')}. "
        f"Refined: {count(len(refined.lanes), 'setting')} of the fastest.",
        f"Statistically tied with the fastest: {ties}. Chosen is the smallest tied lookahead with a significant "
        f"speed-up, by intervals that hold for all {len(refined.lanes)} together.",
        f"The speed-up is from {confirmed.runs} further runs of each prompt, which were not used to choose.",
    ]
    return [*said, *left_out(screened.failures + confirmed.failures)]


def table(result: Recommendation) -> Table:
    """Return a row for each refined setting, then for each drafter that was only screened."""
    kept = {lane.drafter for lane in result.refined.lanes}
    refined = [("refined", result.refined, label(lane)) for lane in result.refined.lanes]
    screened = [
        ("screened", result.screened, label(lane)) for lane in result.screened.lanes if lane.drafter not in kept
    ]
    engine = ranking.runs_in((*result.screened.lanes, *result.refined.lanes))
    names = names_of(result.screened.lanes) | names_of(result.refined.lanes)
    gave = {stage: {it.lane: it for it in ranking.ranking(found)} for stage, found, _ in [*refined, *screened]}
    rows = []
    for stage, of, name in [*refined, *screened]:
        found, at = of.of(name), gave[stage][name]
        chosen = result.lane is not None and stage == "refined" and name == label(result.lane)
        mark = "chosen" if chosen else TIED if stage == "refined" and name in result.ties else ""
        figures = ranking.figures(found, "tokens/s", "tokens per check")
        rows.append((names[name], stage, mark, ratio(at.speedup, at.interval), engine[name], *figures))
    columns = ("drafter", "stage", "verdict", "speed-up", "runs in", "tokens/s", "tokens per check")
    return Table("What was tried", columns, tuple(rows), numbers=4, words=("runs in",))


def stages(result: Recommendation) -> list[Table]:
    """Return each stage by category, and the confirming runs by prompt."""
    of = {"Screening": result.screened, "Refining": result.refined, "Confirming": result.confirmed}
    tables = [replace(suite.by_category(found), caption=f"{name}, by category") for name, found in of.items()]
    return [*tables, replace(suite.by_prompt(result.confirmed), caption="Confirming, by prompt")]


def settings(result: Recommendation) -> list[Settings]:
    """Return the recommended setting for each engine or, for one that cannot decode it, the fastest tried setting that
    gained and that it can decode, or standard decoding. The list is empty where servers decoded."""
    if result.tested.backend != LOCAL:
        return []
    found: dict[Lane, tuple[Ranked, Summary]] = {}
    for stages in ([result.confirmed], [result.refined, result.screened]) if result.lane else ():
        lanes = {label(lane): lane for stage in stages for lane in stage.lanes}
        tried = [(it, stage.of(it.lane)) for stage in stages for it in ranking.ranking(stage) if it.lane in lanes]
        for it in sorted(tried, key=lambda it: -it[0].speedup):
            found.setdefault(lanes[it[0].lane], it)
    verdict = ranking.judged(ranking.ranking(result.confirmed))
    return ranking.commands(found, result.tested.target, verdict, result.method)
