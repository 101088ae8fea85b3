"""Do turns bias a lane? The same lanes by turns and alone, in pairs, on a quiet machine.

A lane that takes turns finds the caches of the processor as the other lane left them. So its rounds could take longer
than alone, and one lane's more than the other's.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from playground.backends.local import LocalBackend
from playground.commands.arguments import add_models, add_settings, check_writable, chosen_pair, positive, write
from playground.errors import PlaygroundError
from playground.experiments.events import Watch
from playground.experiments.race import Race
from playground.format import number
from playground.lane import LOCAL, Lane, Request, lanes_of, standard_lane
from playground.models.store import ModelStore
from playground.trace import Trace
from playground.views.table import Table

Estimate = tuple[float, float, float]  # a ratio and its interval

PROMPT = "Write a Python function that merges two sorted lists, and explain it step by step."


@dataclass(frozen=True)
class Bias:
    """What turns change. `speedup`: by turns, of all rounds but the first. `bias`: it over the one alone, with its 95 %
    interval over the pairs. `standard`, `assisted`: a round's time by turns over alone, likewise."""

    drafter: str
    speedup: float
    bias: Estimate
    standard: Estimate
    assisted: Estimate


def add(commands: argparse._SubParsersAction) -> None:
    turns = commands.add_parser(
        "turns",
        help="whether lanes that take turns measure what lanes that run alone do",
        description="Runs standard decoding and each drafter by turns and alone, in pairs of runs.",
    )
    turns.set_defaults(command=_turns)
    turns.add_argument("--runs", type=positive, default=9, metavar="N", help="pairs of runs (default: 9)")
    turns.add_argument("--drafters", nargs="+", metavar="NAME", help="only these drafters of the pair")
    add_settings(turns, "max_new_tokens")
    turns.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    add_models(turns)


def _turns(options: argparse.Namespace) -> None:
    check_writable(options.json)
    pair, found = chosen_pair(options), list[Bias]()
    backend = LocalBackend(ModelStore(), pair, options.dtype, options.device)
    request = Request(PROMPT, max_new_tokens=options.max_new_tokens)
    for lane in lanes_of(pair, {}, every=True)[1:]:
        if lane.drafter not in (options.drafters or [lane.drafter]):
            continue
        try:
            found.append(_measured(backend, [standard_lane(pair), lane], request, options.runs))
            print("{}: by turns ÷ alone {:.3f} ({:.3f} to {:.3f})".format(lane.drafter, *found[-1].bias), flush=True)
        except PlaygroundError as error:
            print(f"{lane.drafter}: {error}")
    print(_table(found).text())
    if options.json:
        write(options.json, json.dumps([asdict(each) for each in found], indent=1))


def _measured(backend: LocalBackend, lanes: Sequence[Lane], request: Request, runs: int) -> Bias:
    for lane in lanes:
        backend.load(lane, lambda step: None)
    for lane in lanes:
        backend.warm_up(lane, request, lambda: False)
    race = Race({LOCAL: backend}, request, Watch())
    slower: list[list[float]] = []  # by pair and lane
    speedups = []
    for i in range(runs):
        order = lanes[:: -1 if i % 2 else 1]
        both: dict[bool, list[Trace]] = {}
        for by_turns in (True, False) if i % 4 < 2 else (False, True):
            taken = race.run(order) if by_turns else [race.run([lane])[0] for lane in order]
            both[by_turns] = [trace for trace in taken[:: -1 if i % 2 else 1] if trace]
        slower.append([_slower(*lane) for lane in zip(both[True], both[False], strict=True)])
        seconds = [sum(_round_seconds(trace)) for trace in both[True]]
        speedups.append(math.log(seconds[0] / seconds[1]))
    standard, assisted = zip(*slower, strict=True)
    return Bias(
        lanes[1].drafter,
        math.exp(statistics.median(speedups)),
        _estimate([base - ours for base, ours in slower]),
        _estimate(standard),
        _estimate(assisted),
    )


def _slower(by_turns: Trace, alone: Trace) -> float:
    """Return the logarithm of a round's time by turns over that of the same round alone: the mean over the rounds but
    the first, without the tenth at either end, which a neighbour's burst met. A drafter that learns from times drafts
    other rounds: then of all of them."""
    from scipy import stats

    turns, others = _round_seconds(by_turns), _round_seconds(alone)
    if [len(each.tokens) for each in by_turns.rounds] != [len(each.tokens) for each in alone.rounds]:
        return math.log(sum(turns) / sum(others))
    return float(stats.trim_mean([math.log(turn / other) for turn, other in zip(turns, others, strict=True)], 0.1))


def _round_seconds(trace: Trace) -> list[float]:
    """Return the time of each round but the first, which holds the prefill."""
    return [each.end_s - each.start_s + (each.commit_s or 0.0) for each in trace.rounds[1:]]


def _estimate(logs: Sequence[float]) -> Estimate:
    """Return the ratio of the Hodges-Lehmann estimate, and its 95 % interval by Wilcoxon's signed ranks."""
    n = len(logs)
    walsh = sorted((logs[i] + logs[j]) / 2 for i in range(n) for j in range(i, n))
    outside = max(0, int(n * (n + 1) / 4 - 1.96 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)))
    return math.exp(statistics.median(walsh)), math.exp(walsh[outside]), math.exp(walsh[-1 - outside])


def _table(found: Sequence[Bias]) -> Table:
    rows = tuple(
        (it.drafter, number(it.speedup, 2), *("{:.3f} ({:.3f} to {:.3f})".format(*each)
         for each in (it.bias, it.standard, it.assisted)))
        for it in found
    )  # fmt: skip
    head = ("Drafter", "Speed-up by turns", "by turns ÷ alone (95 %)", "A round of standard", "A round of the drafter")
    return Table("Turns", head, rows, numbers=4)
