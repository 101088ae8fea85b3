"""A diagnosis of a drafter as sentences and tables."""

from __future__ import annotations

import json
from typing import Any

from playground.drafting_methods import METHODS
from playground.format import count, number, percent
from playground.metrics.drafts import Counts
from playground.results import Diagnosis, Scored
from playground.views import compared, report
from playground.views import table as spreadsheet
from playground.views.report import Report
from playground.views.suite import left_out
from playground.views.table import Table

MARKS = {"broken": "broken", "mismatched": "mismatched", "suspect": "suspicious", "note": "worth knowing"}
AS_IT_IS = "as it is"
PAYS = 0.1  # tokens per check that one more drafted token should add


@report.of.register
def _(result: Diagnosis) -> Report:
    tables = [files(result), scores("How the drafter is read", "reading", result.readings)]
    folded = [
        scores("By category", "category", result.categories),
        scores("By template", "template", result.templates),
        scores("Without weights", "drafter", result.others),
        scores("What was tried on it", "first tokens", _trials(result)),
    ]
    said = [headline(result), *treatment(result), *(advice(result) if result.verdict in ("weak", "healthy") else ())]
    return Report(
        f"Diagnosis of {METHODS[result.method].label} for {result.lane.target}",
        method(result),
        [*said, *left_out(result.failures)],
        [],
        [table for table in tables if table.rows],
        [table for table in folded if table.rows],
    )


@compared.settings.register
def _(result: Diagnosis) -> dict[str, Any]:
    more = {"prompts": result.prompts, "drafter": result.lane.assistant}
    return compared.settings_of(result.request, result.environment, **more)


@compared.figures.register
def _(a: Diagnosis, b: Diagnosis) -> Table:
    first, second = ({row[0]: row[-1] for row in scores("", "", of.readings).rows} for of in (a, b))
    return Table("Tokens per check", ("reading", *compared.HEAD[:2]), tuple(compared.common(first, second)), numbers=2)


@spreadsheet.lines.register
def _(result: Diagnosis) -> list[dict[str, Any]]:
    found = [{"part": it.about, "is": MARKS[it.mark], "said": it.said} for it in result.findings]
    shown = scores("", "reading", result.readings)
    return [*found, *(dict(zip(shown.columns, row, strict=True)) for row in shown.rows)]


def method(result: Diagnosis) -> str:
    """Say over what the drafts were counted."""
    answers = f"{count(len(result.prompts), 'answer')} of {result.lane.target}"
    if not result.readings:
        return f"{answers}; no drafts of {result.lane.assistant} could be counted. Its files were compared."
    counts = result.readings[0].counts
    positions, rounds = count(counts.reached[0], "position"), count(counts.rounds_reached[0], "round")
    return (
        f"Drafts of {result.lane.assistant} at all {positions} of {answers}, greedy: acceptance is over all of them, "
        f"tokens per check over the {rounds} that decoding would have. Always drafting the most common token would be "
        f"right in {percent(result.chance)}."
    )


def headline(result: Diagnosis) -> str:
    """Say what is wrong, in one sentence."""
    accepted = f"its first token is accepted in {percent(result.first)}" if result.first is not None else ""
    worst = next((it for it in result.findings if it.mark == result.verdict), None)
    suspects = [it.about for it in result.findings if it.mark == "suspect"]
    better, chance = result.mended, _chance(result)
    match result.verdict:
        case "broken" if worst:
            return f"Broken ({worst.about}): {worst.said}"
        case "broken":
            assert better, "the verdict comes from it"
            return f"Broken: it drafts well only with {better.name}. {gain(result, better)}."
        case "mismatched":
            assert worst, "the verdict comes from it"
            return f"Mismatched ({worst.about}): {worst.said}"
        case "misread":
            assert better, "the verdict comes from it"
            return f"Read wrongly: it is meant with {better.name}. {gain(result, better)}."
        case "collapsed":
            return f"Collapsed: {accepted}, where {chance}. Cause unknown: {_odd(suspects)}."
        case "unknown":
            return f"Cause unknown: {accepted}, which is little, where {chance}; {_odd(suspects)}."
        case "weak":
            return f"Weak: {accepted}, where {chance}. Its weights look sound, and no other reading is better."
    return f"Healthy: {accepted or 'its files fit the target'}."


def _odd(suspects: list[str]) -> str:
    return (
        f"suspicious, but not shown to be the cause: {', '.join(suspects)}"
        if suspects
        else "nothing in its files says why"
    )


def _chance(result: Diagnosis) -> str:
    """Say what chance gives."""
    control = result.trials.control if result.trials else None
    if control and _share(control.counts, 0) == result.by_chance:
        return f"{control.name} give {percent(result.by_chance)}"
    return f"always drafting the most common token gives {percent(result.by_chance)}"


def gain(result: Diagnosis, better: Scored) -> str:
    """Say what a reading gains over the drafter as it is."""
    trials = result.trials
    plain = (trials.plain if trials and better is trials.mended else result.readings[0]).counts
    first = f"{percent(_share(plain, 0))} → {percent(_share(better.counts, 0))} of first tokens accepted"
    if len(better.counts.reached) == 1:  # of trials
        return first
    return f"{first}, {number(plain.tokens_per_pass)} → {number(better.counts.tokens_per_pass)} tokens per check"


def treatment(result: Diagnosis) -> list[str]:
    """Give what a pair file can carry so that the drafter is read well, or how to ask."""
    better = result.mended
    if not (better and better.override):
        return []
    if better in result.templates:
        return [f"Ask so, with the template arguments {json.dumps(dict(better.override))}."]
    override = json.dumps({result.method: dict(better.override)})
    return [f"In a pair file, this reads it so: readings: {override}"]


def advice(result: Diagnosis) -> list[str]:
    """Say what would pay for a drafter of which nothing is broken."""
    if not result.readings:
        return []
    counts, said = result.readings[0].counts, []
    useful = sum(gain >= PAYS for gain in counts.gains)
    first, last = _share(counts, 0) or 0.0, _share(counts, useful - 1) if useful else None
    if useful < len(counts.gains):
        said.append(
            f"Fewer tokens pay: from position {useful + 1} on, each adds under {PAYS} tokens per check. A lookahead of "
            f"{max(useful, 1)} keeps what counts."
        )
    if last is not None and useful > 1 and last < 0.7 * first:
        said.append(
            f"Acceptance falls from {percent(first)} to {percent(last)} with depth: more training on its own drafts "
            "would pay."
        )
    elif result.verdict == "weak":
        said.append(f"It is weak from its first token on ({percent(first)}): more training on the target's answers.")
    best = max(result.others, key=lambda it: it.counts.tokens_per_pass, default=None)
    if best and best.counts.tokens_per_pass > counts.tokens_per_pass:
        said.append(
            f"{best.name} needs no weights and gives {number(best.counts.tokens_per_pass)} tokens per check here, "
            f"this drafter {number(counts.tokens_per_pass)}: another kind would pay."
        )
    for it in result.templates:
        said.append(
            f"With {it.name} it gives {number(it.counts.tokens_per_pass)} tokens per check, as it is asked here "
            f"{number(counts.tokens_per_pass)}."
        )
    apart = sorted(result.categories, key=lambda it: it.counts.tokens_per_pass)
    if len(apart) > 1:
        low, high = apart[0], apart[-1]
        said.append(
            f"It is best on {high.name} ({number(high.counts.tokens_per_pass)} tokens per check) and weakest on "
            f"{low.name} ({number(low.counts.tokens_per_pass)})."
        )
    return said


def files(result: Diagnosis) -> Table:
    """Return a row for each finding in the files, the worst first."""
    ranked = sorted(result.findings, key=lambda it: [*MARKS].index(it.mark))
    rows = tuple((it.about, MARKS[it.mark], it.said) for it in ranked)
    return Table("What its files say", ("part", "is", "evidence"), rows, numbers=0)


def _trials(result: Diagnosis) -> tuple[Scored, ...]:
    made = result.trials
    return tuple(it for it in (made.plain, made.control, made.mended) if it) if made else ()


def scores(caption: str, what: str, scored: tuple[Scored, ...]) -> Table:
    """Return a row for each score: acceptance by depth over all positions, and tokens per check over the rounds."""
    depth = len(scored[0].counts.reached) if scored else 0
    rows = tuple(
        (
            it.name or AS_IT_IS,
            f"{it.counts.reached[0]:,}",
            *(percent(_share(it.counts, j)) for j in range(depth)),
            number(it.counts.tokens_per_pass),
        )
        for it in scored
    )
    return Table(
        caption,
        (what, "positions", *(f"token {j + 1}" for j in range(depth)), "tokens per check"),
        rows,
        numbers=depth + 2,
    )


def _share(counts: Counts, position: int) -> float | None:
    return counts.accepted[position] / counts.reached[position] if counts.reached[position] else None
