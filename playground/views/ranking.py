"""The ranking of a suite's lanes: the table that page, terminal and report share, its verdict as a sentence, and the
commands of engines that it ends in. A best one is named only where it is clear."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from playground import metrics, ranked
from playground.format import UNKNOWN, count, number, percent, ratio
from playground.lane import LOCAL, Lane, label
from playground.results import ALL, STANDARD, SuiteResult, Summary, names_of
from playground.views import engines
from playground.views.engines import Settings
from playground.views.table import Table

HEAD = ("drafter", "verdict", "speed-up", "runs in", "tokens per pass", "accepted", "tokens/s", "identical")
FEW = "too few prompts and runs for ranges, so none is called best"
BEST, TIED, SLOWER = "best", "tie", "slower"
SHOWN = 3  # of the lanes that tie, in a sentence


def table(result: SuiteResult) -> Table:
    """A row for each lane over all prompts, the fastest first."""
    names, engine, said = names_of(result.lanes), runs_in(result.lanes), verdicts(result)
    rows = [
        (
            names.get(it.lane, it.lane),
            said[it.lane],
            "" if it.lane == STANDARD else ratio(it.overall, it.interval),
            engine.get(it.lane, UNKNOWN),
            number(it.mean_accepted_length),
            percent(it.acceptance_rate),
            number(it.tokens_per_s, 1),
            "" if it.lane == STANDARD else f"{it.identical} of {it.prompts}",
        )
        for it in _fastest(result)
    ]
    prompts = count(max((it.prompts for it in result.summaries), default=0), "prompt")
    return Table(f"Which drafter? Over {prompts}", HEAD, tuple(rows), numbers=6)


def runs_in(lanes: Iterable[Lane]) -> dict[str, str]:
    """The engines that can decode as each lane, by its label, and as the baseline."""
    return {STANDARD: "every engine", **{label(lane): engines.runs_in(lane) for lane in lanes}}


def verdicts(result: SuiteResult) -> dict[str, str]:
    """By the lanes' labels, in a word or two; "" where there is nothing to say."""
    found, ties = _fastest(result), tied(result)
    said = {it.lane: SLOWER if it.overall < 1 and metrics.differs(it.interval) else "" for it in found}
    said |= dict.fromkeys(ties, TIED if len(ties) > 1 else BEST)
    return said


def tied(result: SuiteResult) -> list[str]:
    """The labels of the fastest lane, standard decoding included, and of those that cannot be told from it, the fastest
    first; none without ranges."""
    lanes = [it.lane for it in _fastest(result)]
    ranges = any(it.interval for it in result.summaries)
    return ranked.ties(result.rows, lanes) if ranges else []


def verdict(result: SuiteResult) -> str:
    """Which drafter to use, as far as it is clear."""
    lanes = [it for it in _fastest(result) if it.lane != STANDARD]
    if not lanes:
        return "No prompt could be run."
    ties, names = tied(result), names_of(result.lanes)
    given = [f"{names[it.lane]}, {ratio(it.overall, it.interval)}" for it in lanes]
    if not ties:
        return f"The fastest was {given[0]}: {FEW}."
    if STANDARD in ties:
        return f"No drafter was clearly faster than no drafting (the fastest: {given[0]})."
    if len(ties) == 1:
        return f"Best: {given[0]}."
    more = f" and {len(ties) - SHOWN} more" if len(ties) > SHOWN else ""
    return f"No clear winner: {'; '.join(given[: min(SHOWN, len(ties))])}{more} cannot be told apart."


def deploy(result: SuiteResult, method: str | None = None) -> list[Settings]:
    """For each engine the fastest lane that it can decode of those that were seen to gain; standard decoding where none
    was. Empty where servers decoded: they run there.

    Args:
        method: as `engines.settings` takes it.
    """
    if any(lane.backend != LOCAL for lane in result.lanes):
        return []
    lanes = {label(lane): lane for lane in result.lanes if not lane.drawn}
    return commands({lanes[it.lane]: it for it in _fastest(result) if it.lane in lanes}, result.lanes[0].target, method)


def commands(found: Mapping[Lane, Summary], target: str, method: str | None) -> list[Settings]:
    """As `deploy`, of lanes with what they gave, the most wanted first."""
    given = {lane: ratio(it.overall, it.interval) for lane, it in found.items() if it.gains}
    if given and not any(lane.drafter == "ngram" for lane in found):
        return engines.of_ranked(given, method)
    nothing = "nothing else that it can decode was seen to be faster" if given else "no drafter was seen to be faster"
    return engines.of_ranked({**given, Lane(STANDARD, target): nothing}, method)


def _fastest(result: SuiteResult) -> Sequence[Summary]:
    """Every lane over all prompts, the fastest first."""
    return sorted((it for it in result.summaries if it.category == ALL), key=lambda it: -it.overall)
