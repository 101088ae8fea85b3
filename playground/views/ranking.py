"""The ranking of a suite's lanes: a table, a verdict in a sentence, and commands to deploy the winner.

Page, terminal and report share it. A best lane is named only where it is clear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from playground import results
from playground.format import UNKNOWN, count, milliseconds, number, percent, ratio, seconds
from playground.lane import LOCAL, Lane, label
from playground.results import STANDARD, Ranked, Row, SuiteResult, Summary, names_of
from playground.views import engines
from playground.views.engines import Settings
from playground.views.table import Table

HEAD = ("drafter", "verdict", "speed-up", "runs in", "tokens per check", "accepted", "tokens/s", "identical")
FEW = "too few prompts and runs for ranges, so none is called best"
BEST, TIED, FASTER, SLOWER = "best", "tie", "faster", "slower"
SHOWN = 3  # lanes that tie which a sentence names
FIGURES: Mapping[str, Callable[[Row | Summary], str]] = {  # the columns of every table of a suite, in their order
    "first token": lambda it: milliseconds(it.ttft_s),
    "total": lambda it: seconds(it.total_s),
    "tokens/s": lambda it: number(it.tokens_per_s, 1),
    "P50 between tokens": lambda it: milliseconds(it.p50_s),
    "P95 between tokens": lambda it: milliseconds(it.p95_s),
    "tokens per check": lambda it: number(it.mean_accepted_length),
    "accepted": lambda it: percent(it.acceptance_rate),
}


def figures(of: Row | Summary, *columns: str) -> tuple[str, ...]:
    """Return the cells of a prompt, or of a lane over several, under these columns; without any, under all."""
    return tuple(FIGURES[column](of) for column in columns or FIGURES)


def identical(summary: Summary) -> str:
    """Return how many outputs are standard decoding's, such as "7 of 8"."""
    return f"{summary.identical} of {summary.prompts}"


def table(result: SuiteResult) -> Table:
    """Return a row for each lane over all prompts, the fastest first."""
    names, engine, said = names_of(result.lanes), runs_in(result.lanes), verdicts(result)
    rows = []
    for at in ranking(result):
        it, plain = result.of(at.lane), at.lane == STANDARD
        rows.append(
            (
                names.get(at.lane, at.lane),
                said[at.lane],
                "" if plain else ratio(at.speedup, at.interval),
                engine.get(at.lane, UNKNOWN),
                *figures(it, "tokens per check", "accepted", "tokens/s"),
                "" if plain else identical(it),
            )
        )
    prompts = count(max((it.prompts for it in result.summaries), default=0), "prompt")
    return Table(f"All figures of each drafter, over {prompts}", HEAD, tuple(rows), numbers=6, words=("runs in",))


def runs_in(lanes: Iterable[Lane]) -> dict[str, str]:
    """Return the engines that can decode each lane, by its label, and the baseline."""
    return {STANDARD: "every engine", **{label(lane): engines.runs_in(lane) for lane in lanes}}


def drafts(result: SuiteResult) -> bool:
    """Return True if a lane drafts; otherwise there is no drafter to choose."""
    return any(lane.drafter != "none" for lane in result.lanes)


def ranking(result: SuiteResult) -> list[Ranked]:
    """Return the lanes of a suite, the fastest first; none where no prompt could be run."""
    return results.rank(result.rows) if result.rows else []


def verdicts(result: SuiteResult) -> dict[str, str]:
    """Return a one-word verdict for each lane's label; "" for a lane without one."""
    found = ranking(result)
    winners, drafting = _winners(found), [it for it in found if it.lane != STANDARD]
    said = {it.lane: FASTER if it.gains else SLOWER if it.loses else "" for it in found}
    said |= dict.fromkeys((it.lane for it in winners), TIED if len(winners) > 1 else BEST)
    return said | ({STANDARD: BEST} if drafting and all(it.loses for it in drafting) else {})


def _winners(found: Sequence[Ranked]) -> list[Ranked]:
    """Return the fastest drafting lane and those that tie with it, where one of them was seen to gain."""
    ties = [it for it in found if it.ties and it.lane != STANDARD]
    return ties if any(it.gains for it in ties) else []


def verdict(result: SuiteResult) -> str:
    """Say which drafter to use, as far as it is clear."""
    found, names = ranking(result), names_of(result.lanes)
    lanes = [it for it in found if it.lane != STANDARD]
    if not lanes:
        return "No prompt could be run."
    given = {it.lane: f"{names[it.lane]}, {ratio(it.speedup, it.interval)}" for it in lanes}
    fastest, winners = given[lanes[0].lane], _winners(found)
    if not any(it.interval for it in lanes):
        return f"The fastest was {fastest}: {FEW}."
    if not winners:
        return f"No drafter clearly beat standard decoding (the fastest: {fastest})."
    if len(winners) == 1:
        return f"Best: {fastest}."
    more = f" and {len(winners) - SHOWN} more" if len(winners) > SHOWN else ""
    return f"No clear winner: {'; '.join(given[it.lane] for it in winners[:SHOWN])}{more} cannot be told apart."


def deploy(result: SuiteResult) -> list[Settings]:
    """Return for each engine the fastest lane that was seen to gain and that it can decode, or else standard decoding.
    The list is empty where no lane drafts, and where servers decoded, because they are already deployed."""
    if not drafts(result) or any(lane.backend != LOCAL for lane in result.lanes):
        return []
    lanes = {label(lane): lane for lane in result.lanes if not lane.forced_rates}
    found = {lanes[it.lane]: it for it in ranking(result) if it.lane in lanes}
    return commands(found, result.lanes[0].target)


def commands(found: Mapping[Lane, Ranked], target: str, method: str | None = None) -> list[Settings]:
    """Return the settings of `deploy`. `found`: lanes with their ranking, the most wanted first. `method`: see
    `engines.settings`."""
    given = {lane: ratio(it.speedup, it.interval) for lane, it in found.items() if it.gains}
    if given and not any(lane.drafter == "ngram" for lane in found):
        return engines.of_ranked(given, method)
    nothing = "nothing else that it can decode was seen to be faster" if given else "no drafter was seen to be faster"
    return engines.of_ranked({**given, Lane(STANDARD, target): nothing}, method)
