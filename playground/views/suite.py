"""A suite's result as sentences, tables and lines for a spreadsheet, which page, terminal and report share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from playground import metrics
from playground.format import (
    NO_DIFFERENCE,
    UNKNOWN,
    beginning,
    count,
    number,
    ratio,
    span,
)
from playground.lane import label, together, verified_by
from playground.metrics.pooled import LEAST_PROMPTS
from playground.results import ALL, STANDARD, Failure, Row, SuiteResult, Summary, names_of
from playground.views import charts_suite, compared, facts, ranking, report, run_details, table
from playground.views.report import Report
from playground.views.table import Table

SAMPLED = "Sampled outputs may differ: all lanes follow the target's distribution."
LISTS = (
    "runs_s",
    "runs_tokens",
    "positions",
    "segments",
    "interval",
    "both_rules",
)  # fields of a row that are no cells


@report.of.register
def _(result: SuiteResult) -> Report:
    tables = [ranking.table(result)] if ranking.drafts(result) else []
    tables += [by_category(result), *filter(None, [run_details.of_suite(result)])]
    tables.append(by_prompt(result))
    return Report(
        title(result),
        setting(result),
        findings(result),
        [charts_suite.speedups(result)],
        tables[:1],
        tables[1:],
        ranking.deploy(result),
    )


@compared.settings.register
def _(result: SuiteResult) -> dict[str, Any]:
    return compared.settings_of(result.request, result.environment, prompts=result.prompts, runs=result.runs)


@compared.figures.register
def _(a: SuiteResult, b: SuiteResult) -> Table:
    """Return the pooled speed-up of each lane and category."""
    first, second = (
        {(names_of(of.lanes).get(it.lane, it.lane), it.category): (it.overall, it.interval) for it in of.summaries
         if it.lane != STANDARD}
        for of in (a, b)
    )  # fmt: skip
    return compared.speedup_table(("lane", "category"), first, second)


@table.lines.register
def lines(result: SuiteResult) -> list[dict[str, Any]]:
    """Return a line for each prompt and lane."""
    names, engine = names_of(result.lanes), ranking.runs_in(result.lanes)
    return [
        {**_line(row), "lane": names.get(row.lane, row.lane), "runs_in": engine.get(row.lane, UNKNOWN)}
        for row in result.rows
    ]


def _line(row: Row) -> dict[str, Any]:
    low, high = row.interval or (None, None)
    values = {field.name: getattr(row, field.name) for field in fields(Row) if field.name not in LISTS}
    return values | {"low": low, "high": high}


def title(result: SuiteResult) -> str:
    """Return the lanes and the model that ran."""
    return f"{together(result.lanes)} on {result.lanes[0].target}"


def setting(result: SuiteResult, swept: str = "") -> str:
    """Return machine, versions, settings, and what the columns of `by_category` mean. `swept`: the setting that
    varies."""
    where, request = result.environment, result.request
    versions = ", ".join(
        f"{name} {where.versions[name]}"
        for name in ("torch", "transformers", "llama.cpp", "vllm")
        if name in where.versions
    )
    known = ", ".join(str(fact) for fact in (where.device_name, where.device, where.dtype) if fact)
    counted = "all" if result.counted == "all" else f"the {result.counted}"
    runs = f"{counted} of {result.runs} runs; " if result.runs > 1 else ""
    threads = f", {where.threads} threads" if where.threads else ""
    temperature = "as swept" if swept == "temperature" else f"{request.temperature:g}"
    left_out = facts.not_obeyed(where, request)
    return (
        f"{known}{threads}, {versions}; {request.max_new_tokens} new tokens, "
        f"temperature {temperature}; {runs}median: over prompts (quartiles); macro: geometric mean over "
        f"prompts; pooled: all tokens over all time{_intervals(result)}{f'. {left_out}' if left_out else ''}"
    )


def _intervals(result: SuiteResult) -> str:
    """Say what the intervals of `by_category` are over."""
    over = {summary.over for summary in result.summaries if summary.over}
    if not over:
        return ""
    several = any(row.turn > 1 or row.conversation is not None for row in result.rows)
    units = "conversations" if several else "prompts"
    where = f"{units} where a row has {LEAST_PROMPTS} or more, else over runs" if len(over) > 1 else over.pop()
    where = units if where == "prompts" else where
    together = " that hold for all lanes of a category together" if len(result.lanes) > 1 else ""
    return f" (95 % intervals over {where}{together})"


def by_category(result: SuiteResult) -> Table:
    """Return a row for each lane and category."""
    return Table(
        "By category",
        ("lane", "category", "prompts", *ranking.FIGURES, "median", "macro", "pooled", "identical"),
        tuple(_summary(it, names_of(result.lanes)) for it in result.summaries),
        numbers=12,
    )


def by_prompt(result: SuiteResult) -> Table:
    """Return a row for each lane and prompt; a prompt that failed has its error instead of figures."""
    columns = ("prompt", "category", "lane", *ranking.FIGURES, "speed-up", "identical")
    names = names_of(result.lanes)
    rows = [(row.question, _row(row, result.prompts, names)) for row in result.rows]
    for failure in result.failures:
        lane = names.get(failure.lane, failure.lane)
        cells = (_prompt(failure.question, 1, result.prompts), failure.category, lane, failure.reason)
        rows.append((failure.question, (*cells, *[""] * (len(columns) - len(cells)))))
    return Table("By prompt", columns, tuple(row for _, row in sorted(rows, key=lambda row: row[0])), numbers=9)


def findings(result: SuiteResult) -> list[str]:
    """Say which drafter to use, or the speed of lanes that draft nothing, then what `outputs` says."""
    names, lanes = names_of(result.lanes), [it for it in ranking.ranking(result) if it.lane != STANDARD]
    if ranking.drafts(result) or not lanes:
        return [ranking.verdict(result), *outputs(result)]
    speeds = [f"{names[it.lane]}: {ratio(it.speedup, it.interval)} of standard decoding's speed." for it in lanes]
    return [*speeds, *outputs(result)]


def outputs(result: SuiteResult) -> list[str]:
    """Say whether the lanes wrote the same, whose drafter could not draft, what the other exact rule would have
    accepted, and what failed."""
    overall = [summary for summary in result.summaries if summary.category == ALL and summary.lane != STANDARD]
    names, used = names_of(result.lanes), {label(lane): verified_by(lane) for lane in result.lanes}
    said = [same(overall) if result.request.greedy else SAMPLED]
    for lane in dict.fromkeys(row.lane for row in result.rows):
        rows = [row for row in result.rows if row.lane == lane]
        if past := [row.past_context for row in rows if row.past_context is not None]:
            said.append(
                f"{names.get(lane, lane)}: the drafter's context holds {count(past[0], 'token')}. In {len(past):,} of "
                f"{count(len(rows), 'text')} it ended before the text, and nothing more was drafted."
            )
    for summary in overall:
        if other := facts.of_both_rules(used.get(summary.lane, "token"), summary.both_rules):
            said.append(f"{names.get(summary.lane, summary.lane)}: {other}")
    return [*said, *left_out(result.failures)]


def same(overall: Sequence[Summary]) -> str:
    """Say how many outputs are identical to standard decoding's."""
    identical, outputs = (sum(getattr(it, name) for it in overall) for name in ("identical", "prompts"))
    if identical == outputs:
        return "All outputs are identical to standard decoding's."
    return f"{identical} of {outputs} outputs are identical to standard decoding's."


def left_out(failures: Sequence[Failure]) -> list[str]:
    """Return a sentence on the prompts that could not be run, with the reason of the first; none where all were."""
    if not failures:
        return []
    prompts = count(len({failure.question for failure in failures}), "prompt")
    return [f"{prompts} could not be run; the figures leave them out. {failures[0].reason}"]


def _summary(summary: Summary, names: Mapping[str, str]) -> tuple[str, ...]:
    plain = summary.lane == STANDARD
    pooled = ratio(summary.overall, summary.interval)
    if summary.interval and not metrics.differs(summary.interval):
        pooled += f", {NO_DIFFERENCE}"
    quartiles = f" ({span(summary.low, summary.high)})" if summary.prompts > 1 else ""
    median = f"{summary.speedup:.2f}{quartiles}"
    return (
        names.get(summary.lane, summary.lane),
        summary.category,
        str(summary.prompts),
        *ranking.figures(summary),
        "" if plain else median,
        "" if plain else number(summary.macro, 2),
        "" if plain else pooled,
        "" if plain else ranking.identical(summary),
    )


def _row(row: Row, prompts: tuple[str, ...], names: Mapping[str, str]) -> tuple[str, ...]:
    plain, (ttft, *later) = row.lane == STANDARD, ranking.figures(row)
    return (
        _prompt(row.question, row.turn, prompts),
        row.category,
        names.get(row.lane, row.lane),
        ttft + (f" ({row.reused:,} tokens from cache)" if row.reused else ""),
        *later,
        "" if plain else ratio(row.speedup, row.interval),
        "" if plain else "yes" if row.identical else "no",
    )


def _prompt(question: int, turn: int, prompts: tuple[str, ...]) -> str:
    """Return a prompt's number and its beginning."""
    text = " ".join(prompts[question].split()) if question < len(prompts) else ""
    turned = f", turn {turn}" if turn > 1 else ""
    return f"{question + 1}{turned} {beginning(text, 48)}".strip()
