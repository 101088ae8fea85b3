"""Do lanes that take turns and lanes that run one after the other give one speed-up, on a quiet machine and a busy one?

Passes of both kinds alternate, each with its lanes in another order than the one before. `none` is a second standard
lane, whose true speed-up is 1. The neighbour takes a core in bursts of 1.5 seconds on average, with pauses as long.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from playground import metrics
from playground.backends.local import LocalBackend
from playground.commands.arguments import add_models, add_settings, check_writable, chosen_pair, positive, write
from playground.errors import check
from playground.experiments.events import Watch
from playground.experiments.race import Race
from playground.format import ratio
from playground.lane import LOCAL, Lane, Request, lanes_of, standard_lane
from playground.metrics import Measured
from playground.models.store import ModelStore
from playground.presets import suites
from playground.trace import Comparison
from playground.views.table import Table

BURST_S = 1.5
KINDS = ("by turns", "one after the other")


def add(commands: argparse._SubParsersAction) -> None:
    races = commands.add_parser(
        "races",
        help="whether lanes by turns and lanes one after the other give one speed-up, also on a busy machine",
        description="Runs standard decoding against drafters both ways, in alternating passes.",
    )
    races.set_defaults(command=_races)
    races.add_argument("--passes", type=positive, default=4, metavar="N", help="of each kind and prompt (default: 4)")
    races.add_argument("--prompts", type=positive, default=3, metavar="N", help="of the examples (default: 3)")
    races.add_argument("--drafters", nargs="+", metavar="NAME", default=["none", "ngram", "mtp", "composite"])
    races.add_argument("--neighbour", action="store_true", help="let another process take a core in bursts")
    add_settings(races, "max_new_tokens")
    races.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    add_models(races)


def _races(options: argparse.Namespace) -> None:
    check_writable(options.json)
    pair, store = chosen_pair(options), ModelStore()
    lanes = {lane.drafter: lane for lane in lanes_of(pair, {}, every=True)[1:]}
    lanes["none"] = replace(standard_lane(pair), name="Again")
    unknown = {*options.drafters} - {*lanes}
    check(not unknown, f"This pair has no drafter {min(unknown, default='')!r}. It has {', '.join(lanes)}.")
    backends = [LocalBackend(store, pair, options.dtype, options.device, by_turns=turns) for turns in (True, False)]
    prompts = suites()["examples"].prompts[: options.prompts]
    requests = [Request(prompt.text, max_new_tokens=options.max_new_tokens) for prompt in prompts]
    rows, found = list[tuple[str, ...]](), list[dict[str, object]]()
    with _neighbour() if options.neighbour else nullcontext():
        for drafter in options.drafters:
            for number, request in enumerate(requests, 1):
                both = _measured(backends, [standard_lane(pair), lanes[drafter]], request, options.passes)
                rows.append((drafter, str(number), *(ratio(it.speedup, it.interval) for it in both)))
                found += [
                    {"drafter": drafter, "prompt": number, "kind": kind, "speedup": it.speedup, "interval": it.interval}
                    for kind, it in zip(KINDS, both, strict=True)
                ]
                print(*rows[-1], flush=True)
    print(Table("Speed-up, with its 95 % interval", ("Drafter", "Prompt", *KINDS), tuple(rows), numbers=2).text())
    if options.json:
        write(options.json, json.dumps(found, indent=1))


def _measured(backends: Sequence[LocalBackend], lanes: Sequence[Lane], request: Request, passes: int) -> list[Measured]:
    """Returns the speed-up of the second lane by turns, and one after the other."""
    for backend in backends:
        for lane in lanes:
            backend.load(lane, lambda step: None)
    for lane in lanes:
        backends[0].warm_up(lane, request, lambda: False)
    ran: list[list[tuple]] = [[], []]
    for number in range(passes):
        order = [*lanes][:: -1 if number % 2 else 1]
        for backend, of_kind in zip(backends, ran, strict=True):
            traces = Race({LOCAL: backend}, request, Watch()).run(order)
            of_kind.append(tuple(traces[order.index(lane)] for lane in lanes))
    comparisons = (Comparison(first, repeats=tuple(more)) for first, *more in ran)
    return [metrics.measured(comparison, lanes[1].name) for comparison in comparisons]


@contextmanager
def _neighbour() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "from benchmarks.races import burn; burn()"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def burn() -> None:
    """Takes a core in bursts until it is killed."""
    rng = random.Random(1)
    while True:
        end = time.monotonic() + rng.expovariate(1 / BURST_S)
        while time.monotonic() < end:
            pass
        time.sleep(rng.expovariate(1 / BURST_S))
