"""A lossless check as a table and sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from playground.format import UNKNOWN, beginning, count, percent
from playground.lane import LOSSY, Lane
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
    return compared.settings_of(result.request, result.environment, prompts=result.prompts)


@compared.figures.register
def _(a: LosslessResult, b: LosslessResult) -> Table:
    first, second = ({row[0]: row[1] for row in table(result).rows} for result in (a, b))
    return Table("Verdicts", ("lane", *compared.HEAD[:2]), tuple(compared.common(first, second)), numbers=0)


@spreadsheet.lines.register
def _(result: LosslessResult) -> list[dict[str, Any]]:
    shown = table(result)
    return [dict(zip(shown.columns, row, strict=True)) for row in shown.rows]


def table(result: LosslessResult) -> Table:
    """Return a row for each lane."""
    return Table(
        "Is the output the target's own?",
        ("lane", "verdict", "greedy outputs identical", "near-ties", "faults", "sampled tokens", "tested",
         "p-value", "bias seen", "smallest bias found", "accepted", "expected", "p-value of these",
         "bonus tokens tested", "p-value of bonus tokens", "corrected tokens tested", "p-value of corrected tokens"),
        tuple(_row(check, result) for check in result.checks),
        numbers=15,
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
    if failed:
        said = f"NOT lossless: {', '.join(failed)}."
    elif unsure := [names[check.lane] for check in exact if result.unsure(check)]:
        said = f"Cannot tell: {', '.join(unsure)}, {over}."
    else:
        said = f"No difference found: {over}."
    lossy = count(len(checks) - len(exact), "lane")
    caught = f" Of {lossy} wrong on purpose, {found} {'was' if found == 1 else 'were'} caught."
    return said + (caught if len(checks) > len(exact) else "")


def findings(result: LosslessResult) -> list[str]:
    """Return a sentence for each lane, and one for each greedy output that differs."""
    return [sentence for check in result.checks if check.lane != STANDARD for sentence in _sentences(check, result)]


def method(result: LosslessResult) -> str:
    """Say what was compared with what."""
    request = result.request
    if result.baseline:
        return _in_server(result, result.baseline)
    return (
        f"{result.environment.device_name}, {result.environment.dtype}. Greedy outputs are compared with standard "
        f"decoding's, token for token. Of the tokens sampled at temperature {request.temperature:g}, those at "
        "positions where a draft token was verified (all of them, where a rule judges a draft as a whole) are tested "
        "against the distribution that the target gives them in a plain pass: by the class of their rank (1, 2, 3 to "
        "4, 5 to 16, further), chi-square. So are bonus tokens, by themselves; and corrected tokens, where drafts are "
        "chosen, against what the distribution leaves to tokens that were not drafted. The smallest bias is the "
        f"probability that must move between ranks to be found with a chance of {lossless.POWER:.0%}. The draft tokens "
        f"that were accepted are counted against how many exact verification would accept. {_fault()}"
    )


def _fault() -> str:
    return (
        f"A fault is p < {lossless.LEVEL:g}: of a thousand exact lanes at most {1000 * lossless.SIGNIFICANCE:g} fails, "
        "its tests taken together."
    )


def _in_server(result: LosslessResult, baseline: Lane) -> str:
    request, itself = result.request, baseline in result.lanes
    how = f"temperature {request.temperature:g}, top-k {request.top_k} and top-p {request.top_p:g}"
    alone = "alone, one a request, which leaves nothing to draft"
    greedy = f"the tokens that it draws {alone}" if itself else f"those of {baseline.target} in {baseline.backend}"
    if any(check.logprobs == "none" for check in result.checks):
        return (
            f"Greedy outputs are compared with {greedy}. There are no log-probabilities of token ids: the first "
            f"{request.max_new_tokens} tokens of answers at {how} are compared with as many answers of the baseline, "
            f"by how often each text comes (chi-square, p < {lossless.LEVEL:g} is a fault)."
        )
    drawn = f"tokens that {baseline.backend if result.baseline_server else 'it'} draws {alone}"
    return (
        f"Greedy outputs are compared with {greedy}. Of the tokens sampled at {how}, those at positions where a draft "
        f"token was verified are compared with {drawn}, after the same text: by the class of their rank (1, 2, 3 to 4, "
        "5 to 16, further), chi-square. So are bonus tokens, by themselves. The control compares the tokens drawn "
        "alone with the log-probabilities at their places. The smallest bias is the probability that must move between "
        f"ranks to be found with a chance of {lossless.POWER:.0%}. {_fault()}"
    )


def _sentences(check: LaneCheck, result: LosslessResult) -> Iterator[str]:
    name = names_of(result.lanes)[check.lane]
    verdict = "NOT lossless" if not check.passed else "cannot tell" if result.unsure(check) else "no difference found"
    sampled = _served(check, result) if check.logprobs else [_sampled(check), *_own(check), _accepted(check)]
    yield " ".join(filter(None, [f"{name}: {verdict}.", _greedy(check), *sampled]))
    for each in check.differing:
        yield f"{name}, {_where(each, result)}: {_difference(each)}"


def _greedy(check: LaneCheck) -> str:
    if check.identical == check.outputs:
        drafted = "" if check.drafted is None else f", {count(check.drafted, 'drafted token')} in them"
        return f"All {check.outputs} greedy outputs are identical{drafted}."
    faults, unjudged = len(check.faults), sum(not each.judged for each in check.differing)
    why = {
        "at a tie within rounding": len(check.differing) - faults - unjudged,
        "by a real fault": faults,
        "where nothing tells rounding from a fault": unjudged,
    }
    found = [f"{n} {'differs' if n == 1 else 'differ'} {how}" for how, n in why.items() if n]
    return f"{check.identical} of {check.outputs} greedy outputs are identical; {' and '.join(found)}."


def _sampled(check: LaneCheck) -> str:
    law = check.law
    if law is None:
        return f"Of {check.sampled:,} sampled tokens too few were drafted, or all were too certain, to test."
    tested = f"{law.draws:,} sampled tokens{' that were drafted' if law.draws < check.sampled else ''}"
    if law.passed:
        power = f"a bias of {law.smallest_bias:.1%} would have been found"
        return f"The ranks of {tested} show no bias (p = {law.p_value:.2g}; {power})."
    return f"The ranks of {tested} are {law.bias:.1%} off the target's distribution ({_p(law)})."


def _p(test: lossless.LawTest) -> str:
    never = f"{count(test.excluded, 'token')} of them can never come; " if test.excluded else ""
    return f"{never}p = {test.p_value:.1g}"


def _own(check: LaneCheck) -> Iterator[str]:
    """Say what the tests of the target's own tokens after drafts found."""
    for name, test in (("bonus", check.bonus), ("corrected", check.corrected)):
        if test and test.passed:
            power = f"{test.smallest_bias:.1%} would have been found"
            yield f"{test.draws:,} {name} tokens show none either (p = {test.p_value:.2g}; {power})."
        elif test:
            yield f"{test.draws:,} {name} tokens are {test.bias:.1%} off it ({_p(test)})."


LOGPROBS = {
    "processed": "Its log-probabilities are those after temperature, top-k and top-p, not the model's.",
    "rounded": "Its log-probabilities are rounded too coarsely to check them.",
    "wrong": "Tokens that it draws alone do not follow its log-probabilities at these settings: it samples by others, "
    "or the log-probabilities are not of its distribution. A --baseline-server would tell.",
}
BASELINE = {
    "processed": "The baseline's log-probabilities are those after temperature, top-k and top-p, not the model's.",
    "rounded": "The baseline's log-probabilities are rounded too coarsely to check them.",
    "wrong": "Tokens that the baseline draws do not follow its log-probabilities at these settings, so both servers "
    "are compared by their tokens alone.",
}


def _served(check: LaneCheck, result: LosslessResult) -> Iterator[str]:
    """Say what the tests of a server's sampled tokens found."""
    yield (BASELINE if result.baseline_server else LOGPROBS).get(check.logprobs or "", "")
    if check.logprobs == "wrong" and check.control:
        it = check.control
        yield f"{it.draws:,} tokens drawn alone are {it.bias:.1%} off them (p = {it.p_value:.1g})."
    if check.law and not check.law.passed:
        yield f"{_sampled(check)} With more draws, tokens drawn alone would tell whether drafts cause it."
    if not check.against:
        yield f"Of {check.sampled:,} sampled tokens too few were drafted, or all were too certain, to test."
    of = "answers, by their first words," if check.logprobs == "none" else "sampled tokens that were drafted"
    drawn = "the baseline's" if result.baseline_server or check.logprobs == "none" else "tokens that it drew alone"
    for what, test in ((of, check.against), ("bonus tokens", check.bonus)):
        if test and test.passed:
            power = f"a bias of {test.smallest_bias:.1%} would have been found"
            yield f"{test.draws:,} {what} do not differ from {drawn} (p = {test.p_value:.2g}; {power})."
        elif test:
            yield f"{test.draws:,} {what} are {test.bias:.1%} off {drawn} ({_p(test)})."


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
    if not each.judged:
        return f"{token}; no log-probabilities tell rounding from a fault."
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


def _row(check: LaneCheck, result: LosslessResult) -> tuple[str, ...]:
    law, rule = check.against or check.law, check.acceptance
    plain = check.lane == STANDARD
    verdict = "cannot tell" if result.unsure(check) else "pass" if check.passed else "FAIL"
    return (
        names_of(result.lanes)[check.lane],
        f"{verdict} (control)" if plain else f"{verdict}, {LOSSY} rule" if LOSSY in check.lane else verdict,
        f"{check.identical} of {check.outputs}",
        str(sum(each.judged and not each.fault for each in check.differing)),
        str(len(check.faults)),
        f"{check.sampled:,}",
        *_tested(law),
        percent(law.bias if law else None, 1),
        percent(law.smallest_bias if law else None, 1),
        percent(rule.accepted if rule else None, 1),
        percent(rule.due if rule else None, 1),
        f"{rule.p_value:.2g}" if rule else UNKNOWN,
        *_tested(check.bonus),
        *_tested(check.corrected),
    )


def _tested(test: lossless.LawTest | None) -> tuple[str, str]:
    return (f"{test.draws:,}", f"{test.p_value:.2g}") if test else ("0", UNKNOWN)
