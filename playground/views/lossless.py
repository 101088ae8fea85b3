"""A lossless check as a table and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from playground.format import UNKNOWN, beginning, count, percent
from playground.lane import LOSSY
from playground.metrics import lossless
from playground.results import STANDARD, Differing, LaneCheck, LosslessResult, names_of
from playground.views import compared, report
from playground.views import table as spreadsheet
from playground.views.report import Report
from playground.views.table import Table


@report.of.register
def _(result: LosslessResult) -> Report:
    title = f"Lossless check of {result.lanes[0].target}"
    return Report(title, method(result), [headline(result), *findings(result)], [], [table(result)])


@compared.settings.register
def _(result: LosslessResult) -> dict[str, Any]:
    where = compared.where(result.environment)
    return {"prompts": result.prompts, **compared.asked(result.request), **where}


@compared.figures.register
def _(a: LosslessResult, b: LosslessResult) -> Table:
    first, second = ({row[0]: row[1] for row in table(result).rows} for result in (a, b))
    return Table("Verdicts", ("lane", *compared.HEAD[:2]), tuple(compared.both(first, second)), numbers=0)


@spreadsheet.lines.register
def _(result: LosslessResult) -> list[dict[str, Any]]:
    shown = table(result)
    return [dict(zip(shown.columns, row, strict=True)) for row in shown.rows]


def table(result: LosslessResult) -> Table:
    """Return a row for each lane."""
    return Table(
        "Is the output the target's own?",
        ("lane", "verdict", "greedy outputs identical", "near-ties", "faults", "sampled tokens", "tested",
         "p-value", "bias seen", "smallest bias found", "accepted", "expected", "p-value of these"),
        tuple(_row(check, names_of(result.lanes)) for check in result.checks),
        numbers=11,
    )  # fmt: skip


def headline(result: LosslessResult) -> str:
    """Say how many lanes are lossless, and how many of the deliberately wrong rules were caught."""
    checks = [check for check in result.checks if check.lane != STANDARD]
    exact = [check for check in checks if LOSSY not in check.lane]
    names = names_of(result.lanes)
    failed = [names[check.lane] for check in exact if not check.passed]
    found = sum(not check.passed for check in checks if LOSSY in check.lane)
    samples = sum(check.sampled for check in exact)
    over = f"{count(len(exact), 'drafter')}, {count(len(result.prompts), 'prompt')}, {count(samples, 'sampled token')}"
    said = f"NOT lossless: {', '.join(failed)}." if failed else f"No difference found: {over}."
    lossy = count(len(checks) - len(exact), "lane")
    caught = f" Of {lossy} wrong on purpose, {found} {'was' if found == 1 else 'were'} caught."
    return said + (caught if len(checks) > len(exact) else "")


def findings(result: LosslessResult) -> list[str]:
    """Return a sentence for each lane, and one for each greedy output that differs."""
    return [sentence for check in result.checks if check.lane != STANDARD for sentence in _sentences(check, result)]


def method(result: LosslessResult) -> str:
    """Say what was compared with what."""
    request = result.request
    return (
        f"{result.environment.device_name}, {result.environment.dtype}. Greedy outputs are compared with standard "
        f"decoding's, token for token. Of the tokens sampled at temperature {request.temperature:g}, those at "
        "positions where a draft token was verified (all of them, where a rule judges a draft as a whole) are tested "
        "against the distribution that the target gives them in a plain pass: by the class of their rank (1, 2, 3 to "
        "4, 5 to 16, further), chi-square. The smallest bias is the probability that must move between ranks to be "
        f"found with a chance of {lossless.POWER:.0%}. The draft tokens that were accepted are counted against how "
        "many exact verification would accept. "
        f"A fault is p < {lossless.SIGNIFICANCE:g}."
    )


def _sentences(check: LaneCheck, result: LosslessResult) -> Iterator[str]:
    name = names_of(result.lanes)[check.lane]
    verdict = "no difference found" if check.passed else "NOT lossless"
    yield " ".join(filter(None, [f"{name}: {verdict}.", _greedy(check), _sampled(check), _accepted(check)]))
    for each in check.differing:
        yield f"{name}, {_where(each, result)}: {_difference(each)}"


def _greedy(check: LaneCheck) -> str:
    if check.identical == check.outputs:
        return f"All {check.outputs} greedy outputs are identical."
    ties, faults = len(check.differing) - len(check.faults), len(check.faults)
    found = [
        f"{n} {'differs' if n == 1 else 'differ'} {why}"
        for n, why in ((ties, "at a tie within rounding"), (faults, "by a real fault"))
        if n
    ]
    return f"{check.identical} of {check.outputs} greedy outputs are identical; {' and '.join(found)}."


def _sampled(check: LaneCheck) -> str:
    law = check.law
    if law is None:
        return f"Of {check.sampled:,} sampled tokens too few were drafted to test."
    tested = f"{law.draws:,} sampled tokens{' that were drafted' if law.draws < check.sampled else ''}"
    if law.passed:
        power = f"a bias of {law.smallest_bias:.1%} would have been found"
        return f"The ranks of {tested} show no bias (p = {law.p_value:.2g}; {power})."
    return f"The ranks of {tested} are {law.bias:.1%} off the target's distribution (p = {law.p_value:.1g})."


def _accepted(check: LaneCheck) -> str:
    rule = check.acceptance
    if rule is None:
        return "" if check.lane == STANDARD else "Too few draft tokens were judged to test how many are accepted."
    if rule.passed:
        return ""
    return (
        f"Draft tokens are accepted at {rule.accepted:.1%} of {rule.places:,} places; exact verification would accept "
        f"{rule.due:.1%} (p = {rule.p_value:.1g})."
    )


def _difference(each: Differing) -> str:
    token = f"token {each.index + 1} is {each.other!r} instead of {each.standard!r}"
    if each.near_tie is None:
        return f"{token}; one output ended before the other: a real fault."
    tie = each.near_tie
    second = "the second-best token" if tie.rank == 2 else f"the target's token of rank {tie.rank}"
    verdict = "a tie within rounding" if tie.tie else "a real fault"
    return (
        f"{token}, {second}; logits {tie.chosen:.4g} and {tie.other:.4g}, a margin of {tie.margin:.2g}, "
        f"{tie.in_roundings:.1f} times what rounding does here: {verdict}."
    )


def _where(each: Differing, result: LosslessResult) -> str:
    turn = f", turn {each.turn}" if each.turn > 1 else ""
    return f"prompt {each.question + 1}{turn} ({beginning(result.prompts[each.question], 40)})"


def _row(check: LaneCheck, names: Mapping[str, str]) -> tuple[str, ...]:
    law, rule = check.law, check.acceptance
    plain = check.lane == STANDARD
    verdict = "pass" if check.passed else "FAIL"
    return (
        names[check.lane],
        f"{verdict} (control)" if plain else f"{verdict}, {LOSSY} rule" if LOSSY in check.lane else verdict,
        f"{check.identical} of {check.outputs}",
        str(len(check.differing) - len(check.faults)),
        str(len(check.faults)),
        f"{check.sampled:,}",
        f"{law.draws:,}" if law else "0",
        f"{law.p_value:.2g}" if law else UNKNOWN,
        percent(law.bias if law else None, 1),
        percent(law.smallest_bias if law else None, 1),
        percent(rule.accepted if rule else None, 1),
        percent(rule.due if rule else None, 1),
        f"{rule.p_value:.2g}" if rule else UNKNOWN,
    )
