"""Do turns bias a lane? The same rounds by turns and alone, on one machine within the same second.

A lane that takes turns finds the caches of the processor as the other lane left them. So its rounds could take longer
than alone, and one lane's more than the other's. Two runs of both lanes decode side by side: while the lanes of one
take turns, those of the other decode as many rounds in a row; then the two change places. So each round is timed both
ways, a fraction of a second apart, and what else the machine does meets both ways alike.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path

from playground.backends.local import LocalBackend
from playground.commands.arguments import add_models, add_settings, check_writable, chosen_pair, positive, write
from playground.errors import PlaygroundError, check
from playground.experiments.race import SECONDS
from playground.lane import Lane, Request, lanes_of, standard_lane
from playground.models.store import ModelStore
from playground.trace import Round
from playground.views.table import Table

Estimate = tuple[float, float, float]  # a ratio and its interval

PROMPT = "Write a Python function that merges two sorted lists, and explain it step by step."


LEAST = 6  # rounds of a lane between two changes; the first, which finds the other lane's caches, is not compared


@dataclass(frozen=True)
class Bias:
    """What turns change. `standard`, `assisted`: a round's time by turns over that of the same round alone, with its
    95 % interval over the pairs. `speedup`: their ratio, which is the bias of the speed-up. `rounds`: compared, of
    the drafter."""

    drafter: str
    rounds: int
    speedup: Estimate
    standard: Estimate
    assisted: Estimate


def add(commands: argparse._SubParsersAction) -> None:
    turns = commands.add_parser(
        "turns",
        help="whether lanes that take turns measure what lanes that run alone do",
        description="Times the same rounds of standard decoding and each drafter by turns and in blocks, in pairs.",
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
    fixed = {"policy": "constant"}  # one that learns from times would draft other rounds
    for lane in lanes_of(pair, fixed, every=True)[1:]:
        if lane.drafter not in (options.drafters or [lane.drafter]):
            continue
        try:
            found.append(_measured(backend, [standard_lane(pair), lane], request, options.runs))
            print("{}: by turns ÷ alone {:.3f} ({:.3f} to {:.3f})".format(lane.drafter, *found[-1].speedup), flush=True)
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
    pairs = [_pair(backend, lanes, request, number) for number in range(runs)]
    check(all(pair[1] for pair in pairs), f"An answer ended before {2 * LEAST} rounds. Raise --max-new-tokens.")
    standard, assisted = ([statistics.median(pair[lane]) for pair in pairs] for lane in range(2))
    return Bias(
        lanes[1].drafter,
        sum(len(pair[1]) for pair in pairs),
        _estimate([base - ours for base, ours in zip(standard, assisted, strict=True)]),
        _estimate(standard),
        _estimate(assisted),
    )


def _pair(backend: LocalBackend, lanes: Sequence[Lane], request: Request, number: int) -> list[list[float]]:
    """Runs both lanes twice. Returns, of each lane, the logarithms of its rounds' times by turns over alone.

    Args:
        number: the pair's. Which run takes turns, and which goes first, changes with it too, since a short answer has
            only one or two segments.
    """
    logs: list[list[float]] = [[], []]
    with ExitStack() as closing:
        started = [[backend.run(lane, request) for lane in lanes] for _ in range(2)]
        runs, turn = [[run.rounds for run in way] for way in started], started[0][0].turn
        for rounds in chain(*runs):
            closing.callback(rounds.close)
            next(rounds)  # the prefill
        order = _order([SECONDS, SECONDS], turn)
        for segment in range(request.max_new_tokens):
            turning, first = (number + segment) % 2, (number + segment) // 2 % 2
            taken = {i: _seconds(runs[i], order if i == turning else sorted(order)) for i in (first, 1 - first)}
            if sum(map(len, chain(*taken.values()))) < 2 * len(order):
                break  # a lane has ended
            for lane, (turns, alone) in enumerate(zip(taken[turning], taken[1 - turning], strict=True)):
                if segment:  # the first has turns of one round, as what a round costs is not known yet
                    logs[lane] += [math.log(a / b) for a, b in zip(turns[1:], alone[1:], strict=True)]
            order = _order([statistics.median(seconds) for seconds in taken[turning]], turn)
    return logs


def _order(costs: Sequence[float], turn: int) -> list[int]:
    """Returns the order in which lanes take turns of so many rounds that cost that much, as `Race` orders them."""
    order: list[int] = []
    while min(order.count(lane) for lane in range(len(costs))) < LEAST:
        lane = min(range(len(costs)), key=lambda lane: order.count(lane) * costs[lane])
        order += [lane] * min(turn, math.ceil(SECONDS / costs[lane]))
    return order


def _seconds(lanes: Sequence[Iterator[Round]], order: Sequence[int]) -> list[list[float]]:
    """Decodes a round of each lane in `order`. Returns the seconds of each lane's rounds."""
    seconds: list[list[float]] = [[] for _ in lanes]
    for lane in order:
        for each in islice(lanes[lane], 1):
            seconds[lane].append(each.end_s - each.start_s + (each.commit_s or 0.0))
    return seconds


def _estimate(logs: Sequence[float]) -> Estimate:
    """Return the ratio of the Hodges-Lehmann estimate, and its 95 % interval by Wilcoxon's signed ranks."""
    n = len(logs)
    walsh = sorted((logs[i] + logs[j]) / 2 for i in range(n) for j in range(i, n))
    outside = max(0, int(n * (n + 1) / 4 - 1.96 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)))
    return math.exp(statistics.median(walsh)), math.exp(walsh[outside]), math.exp(walsh[-1 - outside])


def _table(found: Sequence[Bias]) -> Table:
    rows = tuple(
        (it.drafter, str(it.rounds), *("{:.3f} ({:.3f} to {:.3f})".format(*each)
         for each in (it.speedup, it.standard, it.assisted)))
        for it in found
    )  # fmt: skip
    head = ("Drafter", "Rounds", "Speed-up, by turns ÷ alone (95 %)", "A round of standard", "A round of the drafter")
    return Table("Turns", head, rows, numbers=4)
