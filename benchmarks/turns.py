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

from playground import metrics
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

PROMPT = "Write a Python function that merges two sorted lists, and explain it step by step."


@dataclass(frozen=True)
class Bias:
    """A drafter's speed-up by turns and alone: the mean of the logarithms of its runs, as ratios. `bias`: the one over
    the other, with its 95 % interval over the pairs. `standard`: seconds of standard decoding by turns over alone."""

    drafter: str
    by_turns: float
    alone: float
    bias: tuple[float, float, float]
    standard: float


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
    race, pairs = Race({LOCAL: backend}, request, Watch()), []
    for i in range(runs):
        order = lanes[:: -1 if i % 2 else 1]
        both: dict[bool, list[Trace]] = {}
        for by_turns in (True, False) if i % 4 < 2 else (False, True):
            taken = race.run(order) if by_turns else [race.run([lane])[0] for lane in order]
            both[by_turns] = [trace for trace in taken[:: -1 if i % 2 else 1] if trace]
        pairs.append((both[True], both[False]))
    logs = [[math.log(_ratio(lanes)) for lanes in way] for way in zip(*pairs, strict=True)]
    off = [by_turns - alone for by_turns, alone in zip(*logs, strict=True)]
    low, high = _interval(off)
    standard = statistics.fmean(math.log(_seconds(t[0]) / _seconds(a[0])) for t, a in pairs)
    return Bias(
        lanes[1].drafter,
        math.exp(statistics.fmean(logs[0])),
        math.exp(statistics.fmean(logs[1])),
        (math.exp(statistics.fmean(off)), math.exp(low), math.exp(high)),
        math.exp(standard),
    )


def _ratio(lanes: Sequence[Trace]) -> float:
    found = metrics.speedup(*lanes)
    assert found, "both have tokens"
    return found


def _seconds(trace: Trace) -> float:
    return metrics.measure(trace).total_s


def _interval(values: Sequence[float]) -> tuple[float, float]:
    from scipy import stats

    error = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    return statistics.fmean(values) - error, statistics.fmean(values) + error


def _table(found: Sequence[Bias]) -> Table:
    rows = tuple(
        (it.drafter, number(it.by_turns, 3), number(it.alone, 3), "{:.3f} ({:.3f} to {:.3f})".format(*it.bias),
         number(it.standard, 3))
        for it in found
    )  # fmt: skip
    head = ("Drafter", "Speed-up by turns", "alone", "ratio (95 %)", "Standard's seconds, by turns ÷ alone")
    return Table("Turns", head, rows, numbers=4)
