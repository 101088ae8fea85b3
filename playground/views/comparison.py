"""A comparison as sentences, tables, lines for a spreadsheet and Markdown, and the command that repeats it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from playground import metrics
from playground.format import UNKNOWN, number
from playground.lane import LOCAL
from playground.presets import Pair
from playground.settings import DRAFTING
from playground.trace import Comparison, Environment, Trace
from playground.views import again, charts, compared, drafters, engines, facts, headline, report, run_details, table
from playground.views.report import Report
from playground.views.table import Table, escaped


@report.of.register
def _(result: Comparison) -> Report:
    best, shown = metrics.ranked(result)[0].ours, metrics.shown(result)
    where = dict.fromkeys(_where(trace.environment) for trace in shown.lanes)
    several = len({trace.lane.backend for trace in shown.lanes}) > 1
    # Lines of more lanes than colours would look alike, and the table has their figures.
    race = [charts.race(shown)] if len(shown.others) <= len(charts.OTHERS) else []
    ranked = drafters.table(result) if len(shown.others) > 1 else None
    return Report(
        headline.title(result, best.lane.name),
        "; ".join(where if several else [*where][-1:]),
        findings(result),
        [*race, charts.acceptance(best)],
        [*filter(None, [figures(result), ranked, facts.memory(shown)])],
        [*filter(None, [run_details.of_comparison(result)]), *run_details.tables(shown.others)],
        engines.shown(engines.of_comparison(result, best.lane)),
    )


@compared.settings.register
def _(result: Comparison) -> dict[str, Any]:
    base = result.standard
    drafting = "; ".join(f"{it.lane.name}, {it.lane.lookahead} ahead" for it in result.others)
    more = {"prompts": (base.request.question,), "target": base.lane.target, "drafting": drafting}
    return compared.settings_of(base.request, base.environment, **more)


@compared.figures.register
def _(a: Comparison, b: Comparison) -> Table:
    """Compare each lane that both have, and the drafting lanes, under one name, if each comparison has only one."""
    first, second = ({trace.lane.name: trace for trace in metrics.shown(result).others} for result in (a, b))
    pairs = [(x, y) for _, x, y in compared.common(first, second)]
    if len(a.others) == len(b.others) == 1:
        pairs = [*zip(first.values(), second.values(), strict=True)]
    rows = []
    for x, y in [(metrics.shown(a).standard, metrics.shown(b).standard), *pairs]:
        lane = x.lane.name if x.lane.name == y.lane.name else "Speculative"
        if x.lane.name != a.baseline and y.lane.name != b.baseline:
            one, other = metrics.measured(a, x.lane.name), metrics.measured(b, y.lane.name)
            cells = compared.speedups(one.speedup, one.interval, other.speedup, other.interval)
            rows.append((f"{lane}: speed-up", *cells))
        for (figure, before, digits), (_, after, _) in zip(_measured(x, a), _measured(y, b), strict=True):
            if before is not None or after is not None:
                change = number(after / before if before and after else None)
                rows.append((f"{lane}: {figure}", number(before, digits), number(after, digits), change))
    return Table("Figures", ("figure", *compared.HEAD), tuple(rows), numbers=3)


def _measured(trace: Trace, comparison: Comparison) -> list[tuple[str, float | None, int]]:
    """Return name, value and digits of each figure."""
    found, plain = metrics.measure(trace), trace.lane.name == comparison.baseline
    return [
        ("tokens/s", found.tokens_per_s, 1),
        ("first token in ms", None if found.ttft_s is None else 1000 * found.ttft_s, 0),
        ("tokens per check", None if plain else found.mean_accepted_length, 2),
    ]


@table.lines.register
def _(result: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "lane": trace.lane.name,
            "drafter": trace.lane.drafter,
            "runs_in": engines.runs_in(trace.lane),
            **_ratio(trace, result),
            **asdict(metrics.measure(trace)),
        }
        for trace in metrics.shown(result).lanes
    ]


def figures(comparison: Comparison) -> Table:
    """Return a table of all figures, with a column for each lane; of a single drafter also what `drafters.table` says
    of several."""
    lanes = metrics.shown(comparison).lanes
    shown = [_figures(trace) for trace in lanes]
    rows = [(label, *(column.get(label, UNKNOWN) for column in shown)) for label in max(shown, key=len)]
    if any(trace.reused and trace.reused.tokens for trace in lanes):
        rows.append(("Prompt from cache", *map(facts.reused, lanes)))
    if len(lanes) == 2:
        (only,) = drafters.of(comparison)
        rows.append(("Cost of a check", *(only.cost if it.lane.name == only.lane else UNKNOWN for it in lanes)))
        rows.append(("Runs in", *(engines.runs_in(it.lane) for it in lanes)))
    rows.append((f"Speed-up over {comparison.baseline}", *(_speedup(comparison, trace) for trace in lanes)))
    return Table("Figures", ("", *(trace.lane.name for trace in lanes)), tuple(rows), numbers=len(lanes))


def findings(comparison: Comparison) -> list[str]:
    """Return sentences on each lane against the baseline, why to doubt the figures, and what limits them."""
    shown = metrics.shown(comparison)
    lanes, others = shown.lanes, shown.others
    said = [
        *(_beside(comparison, other) for other in others),
        *map(facts.out_of_context, others),
        *map(facts.shortage, others),
        *map(facts.both_rules, others),
        *(headline.noisy(metrics.measured(comparison, trace.lane.name)) for trace in others),
        *(note for trace in lanes for note in trace.environment.notes),
        *facts.left_out(*lanes),
    ]
    return [*dict.fromkeys(filter(None, said))]


def _beside(comparison: Comparison, other: Trace) -> str:
    found = metrics.measured(comparison, other.lane.name)
    speedup = f"{headline.figure(found)} ({headline.runs(found)})"
    said = *facts.sentences(found), facts.fine_tuning(comparison, other)
    return " ".join(filter(None, (f"{other.lane.name}: {speedup}.", *said)))


def _figures(trace: Trace) -> dict[str, str]:
    drafting = trace.lane.drafter != "none"
    return {figure.label: figure.shown for figure in facts.figures(metrics.measure(trace), drafting=drafting)}


def _speedup(comparison: Comparison, trace: Trace) -> str:
    if trace.lane.name == comparison.baseline:
        return "1×"
    return headline.speedup(metrics.measured(comparison, trace.lane.name))


def _where(environment: Environment) -> str:
    return f"{facts.environment_line(environment)}, {'; '.join(environment.weights)}"


def _ratio(trace: Trace, comparison: Comparison) -> dict[str, float | None]:
    """Return the speed-up with its interval; None for the baseline."""
    if trace.lane.name == comparison.baseline:
        return dict.fromkeys(("speedup", "speedup_low", "speedup_high"))
    found = metrics.measured(comparison, trace.lane.name)
    low, high = found.interval or (None, None)
    return {"speedup": found.speedup, "speedup_low": low, "speedup_high": high}


def markdown(comparison: Comparison, pairs: Iterable[Pair]) -> str:
    """Return Markdown, for an issue or a chat, with each lane's figures, whether the outputs are the same, settings,
    device, and the command.

    Names, devices and prompts are untrusted: in a table cell they are escaped, and the fence of the command is longer
    than any in its text.

    Args:
        pairs: the presets, which the command names where it can.
    """
    sentences = [f"- {escaped(sentence)}" for sentence in _sentences(comparison)]
    command = repeat(comparison, pairs)
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", command) or [""]))
    return "\n".join([figures(comparison).markdown(), "", *sentences, "", f"{fence}sh", command, fence, ""])


def repeat(comparison: Comparison, pairs: Iterable[Pair]) -> str:
    """Return the command that runs the first drafting lane's comparison again: the models, and each setting that is not
    at its default."""
    trace = comparison.others[0]
    lane, request = trace.lane, trace.request
    models, usual = again.models_of(lane, pairs)
    here = [other.lane for other in comparison.others if other.lane.backend == LOCAL and not other.lane.forced_rates]
    drafters = [] if not here else ["--drafter", lane.drafter] if len(here) == 1 else ["--all-drafters"]
    words = [*models, *drafters, *_servers(comparison)]
    if repeats := sum(len(traces) == len(comparison.lanes) for traces in comparison.repeats):
        words.append(f"--repeat={repeats}")
    words += again.format_of(trace.environment)
    for rates in (other.lane.forced_rates for other in comparison.others if other.lane.forced_rates):
        words.append(f"--force-acceptance={','.join(map(str, rates))}")
    for name, value in usual.items():
        words += again.option(name, getattr(lane if name in DRAFTING else request, name), value)
    words += again.option("messages", request.history_json, "")
    prompt = [f"--prompt={request.prompt}"] if request.prompt else []
    return shlex.join(["python", "-m", "playground", "compare", *words, *prompt])


def _servers(comparison: Comparison) -> list[str]:
    """Return the options that name the servers which decoded lanes."""
    lanes = {"--baseline-server": comparison.standard.lane, "--server": comparison.others[-1].lane}
    return [word for flag, lane in lanes.items() if lane.backend != LOCAL for word in (flag, lane.server_url)]


def _sentences(comparison: Comparison) -> list[str]:
    """Return what the headline compares, each lane against the baseline, then settings and machine."""
    lanes = [metrics.measured(comparison, other.lane.name) for other in comparison.others]
    meaning = headline.meaning(lanes[0])
    said = [f"{meaning[0].upper()}{meaning[1:]}."]
    for found in lanes:
        name = f"{found.ours.lane.name}: " if len(lanes) > 1 else ""
        sentences = facts.sameness(found), facts.out_of_context(found.ours), *headline.doubts(found)
        said += [name + sentence for sentence in sentences if sentence]
    said += facts.left_out(*comparison.lanes)
    wanted = ("Target", "Drafter", "Lookahead", "Decoding", "Limit", "Ran on", "Run at")
    known = dict(run_details.details(lanes[0]))
    return said + [f"{name}: {known[name]}" for name in wanted if name in known]
