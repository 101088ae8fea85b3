"""The ranking of a suite's lanes: a table, a verdict in a sentence, and commands to deploy the winner.

Page, terminal and report share it. A best lane is named only where it is clear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from playground import results
from playground.format import UNKNOWN, count, milliseconds, number, percent, ratio, seconds
from playground.lane import LOCAL, Lane, label
from playground.results import STANDARD, Ranked, Row, SuiteResult, Summary, names_of
from playground.views import engines
from playground.views.engines import Given, Settings
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


@dataclass(frozen=True)
class Verdict:
    """What a ranking shows, from which words, sentence and command follow. `outcome`: "none ran", or "too few" prompts
    and runs for ranges; no drafter was seen to be faster ("none faster"); or which were, "best" or "tie". `winners`:
    the fastest drafting lane and those that tie with it, where one of them was seen to be faster."""

    outcome: Literal["none ran", "too few", "none faster", "best", "tie"]
    winners: tuple[Ranked, ...] = ()

    @property
    def without(self) -> str:
        """The reason for a command without a drafter."""
        return {
            "none ran": "no drafter ran",
            "too few": "too few prompts and runs to tell whether a drafter is faster",
            "none faster": "no drafter was seen to be faster",
        }.get(self.outcome, "nothing else that it can decode was seen to be faster")


def judged(found: Sequence[Ranked]) -> Verdict:
    """Return the verdict on ranked lanes, the fastest first."""
    lanes = [it for it in found if it.lane != STANDARD]
    if not lanes:
        return Verdict("none ran")
    if not any(it.interval for it in lanes):
        return Verdict("too few")
    winners = tuple(it for it in lanes if it.ties)
    if not any(it.gains for it in winners):
        return Verdict("none faster")
    return Verdict("best" if len(winners) == 1 else "tie", winners)


def verdicts(result: SuiteResult) -> dict[str, str]:
    """Return a one-word verdict for each lane's label; "" for a lane without one."""
    found = ranking(result)
    it, drafting = judged(found), [it for it in found if it.lane != STANDARD]
    said = {it.lane: FASTER if it.gains else SLOWER if it.loses else "" for it in found}
    said |= dict.fromkeys((lane.lane for lane in it.winners), BEST if it.outcome == "best" else TIED)
    return said | ({STANDARD: BEST} if drafting and all(it.loses for it in drafting) else {})


def verdict(result: SuiteResult) -> str:
    """Say which drafter to use, as far as it is clear."""
    found, names = ranking(result), names_of(result.lanes)
    it = judged(found)
    if it.outcome == "none ran":
        return "No prompt could be run."
    given = {lane.lane: f"{names[lane.lane]}, {ratio(lane.speedup, lane.interval)}" for lane in found}
    fastest = next(given[lane.lane] for lane in found if lane.lane != STANDARD)
    if it.outcome == "too few":
        return f"The fastest drafter was {fastest}: {FEW}."
    if it.outcome == "none faster":
        return f"No drafter clearly beat standard decoding (the fastest: {fastest})."
    if it.outcome == "best":
        return f"Best: {fastest}."
    more = f" and {len(it.winners) - SHOWN} more" if len(it.winners) > SHOWN else ""
    return f"No clear winner: {'; '.join(given[lane.lane] for lane in it.winners[:SHOWN])}{more} cannot be told apart."


def deploy(result: SuiteResult) -> list[Settings]:
    """Return for each engine the fastest lane that was seen to gain and that it can decode, or else standard decoding.
    The list is empty where no lane drafts, and where servers decoded, because they are already deployed."""
    if not drafts(result) or any(lane.backend != LOCAL for lane in result.lanes):
        return []
    lanes = {label(lane): lane for lane in result.lanes if not lane.forced_rates}
    found = {lanes[it.lane]: (it, result.of(it.lane)) for it in ranking(result) if it.lane in lanes}
    return commands(found, result.lanes[0].target, judged(ranking(result)))


def commands(
    found: Mapping[Lane, tuple[Ranked, Summary]], target: str, verdict: Verdict, method: str | None = None
) -> list[Settings]:
    """Return the settings of `deploy`.

    Args:
        found: lanes with their ranking and figures, the most wanted first.
        verdict: that on the whole ranking.
        method: see `engines.settings`.
    """
    given = {
        lane: engines.given_by(lane, ratio(it.speedup, it.interval), summary.mean_accepted_length)
        for lane, (it, summary) in found.items()
        if it.gains
    }
    return engines.of_ranked({**given, Lane(STANDARD, target): Given(verdict.without, 1)}, method)
