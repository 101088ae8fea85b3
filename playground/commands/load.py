"""`load` and `monitor`: servers under load, and servers that serve traffic."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from playground.commands.arguments import DEFAULT, add_model_name, add_settings, check_writable, positive, write
from playground.experiments.events import Event, Progress

CONCURRENCIES = (1, 2, 4, 8, 16, 32)


def add(commands: argparse._SubParsersAction) -> None:
    load = commands.add_parser(
        "load",
        help="a suite at several concurrencies through servers: where does speculation stop paying?",
        description="Sends the prompts of a suite to one server or two, at several levels of load; docs/servers.md.",
    )
    load.set_defaults(command=_load)
    load.add_argument("--server", metavar="URL", required=True, help="the server to measure")
    load.add_argument("--baseline-server", metavar="URL", help="the same model without speculation")
    add_model_name(load)
    load.add_argument(
        "--suite", default="examples", metavar="SUITE", help=f"a preset's name, or a .jsonl file {DEFAULT}"
    )
    load.add_argument("--per-category", type=positive, metavar="N", help="prompts of each category (default: all)")
    how = load.add_mutually_exclusive_group()
    how.add_argument(
        "--concurrency", nargs="+", type=positive, metavar="N", help="users at the same time (default: 1 2 4 8 16 32)"
    )
    how.add_argument(
        "--rate", nargs="+", type=_number, metavar="X", help="requests a second, at random moments, instead"
    )
    load.add_argument(
        "--requests", type=positive, default=16, metavar="N", help=f"of each level, at least one a user {DEFAULT}"
    )
    add_settings(load, "max_new_tokens", "temperature")
    load.add_argument(
        "--ttft-limit", type=_number, default=1.0, metavar="S", help=f"of a good request, in seconds {DEFAULT}"
    )
    load.add_argument(
        "--tpot-limit", type=_number, default=0.1, metavar="S", help=f"of a good request, in seconds {DEFAULT}"
    )
    load.add_argument("--seed", type=int, default=0, metavar="N", help=f"of the moments of --rate {DEFAULT}")
    load.add_argument(
        "--rows", type=Path, metavar="FILE", help="keep every request in FILE, and go on with it after a stop"
    )
    load.add_argument("--traces", type=Path, metavar="FILE", help="write the trace of every answer, one per line")
    load.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    load.add_argument("--html", type=Path, metavar="FILE", help="write the charts to FILE")

    monitor = commands.add_parser(
        "monitor",
        help="acceptance, throughput and queue of a server that serves traffic",
        description="Reads a server's /metrics at intervals until Ctrl-C. It sends no prompt.",
    )
    monitor.set_defaults(command=_monitor)
    monitor.add_argument("url", metavar="URL", help="llama-server (started with --metrics) or vLLM")
    monitor.add_argument("--every", type=_number, default=5.0, metavar="S", help=f"seconds between lines {DEFAULT}")
    monitor.add_argument("--count", type=positive, metavar="N", help="end after N lines (default: Ctrl-C)")
    monitor.add_argument("--json", action="store_true", help="print each line as JSON")


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _load(options: argparse.Namespace) -> None:
    from playground import export
    from playground.backends.connect import server_lanes
    from playground.experiments import load
    from playground.experiments.load_record import Record
    from playground.experiments.questions import questions
    from playground.metrics.load import Level, Limits, gains, points
    from playground.trace import Trace
    from playground.views import load as views

    for path in (options.rows, options.traces, options.json, options.html):
        check_writable(path)
    settings = {"max_new_tokens": options.max_new_tokens, "temperature": options.temperature}
    asked = questions(options.suite, options.per_category, settings)
    if options.rate:
        levels = tuple(Level(rate=rate) for rate in options.rate)
    else:
        levels = tuple(Level(concurrency=n) for n in options.concurrency or CONCURRENCIES)
    lanes, backends = server_lanes([*filter(None, (options.baseline_server, options.server))], options.model)
    traces: list[Trace] = []
    stop = threading.Event()
    plan = load.Plan(levels, options.requests, options.seed)
    keep = traces.append if options.traces else lambda trace: None
    record = Record(options.rows) if options.rows else None
    answered = load.run(lanes, asked, backends, plan, record=record, stop=stop, emit=_say, trace=keep)
    limits = Limits(options.ttft_limit, options.tpot_limit)
    if options.traces:
        write(options.traces, "\n".join(json.dumps(export.trace_to_json(trace)) for trace in traces))
    if options.json:
        figures: dict[str, Any] = {
            "limits": asdict(limits),
            "points": [asdict(point) for point in points(answered, limits)],
            "gains": [asdict(gain) for gain in gains(answered, lanes[0].name)],
            "environments": [asdict(backends[lane.backend].describe(lane)) for lane in lanes],
        }
        write(options.json, json.dumps(figures, indent=1))
    if options.html:
        write(options.html, views.page(answered, limits, lanes[0].name))
    print(f"{views.table(answered, limits).markdown()}\n\n{views.definitions(limits)}")
    for sentence in views.verdict(answered, lanes[0].name):
        print(sentence)


def _say(event: Event) -> None:
    if isinstance(event, Progress):
        print(event.label, file=sys.stderr)


def _monitor(options: argparse.Namespace) -> None:
    from playground.experiments.monitor import watch
    from playground.views import serving

    stop, said = threading.Event(), list[str]()
    if not options.json:
        print(serving.HEAD)
    for number, window in enumerate(watch(options.url, options.every, stop), start=1):
        if options.json:
            print(json.dumps(asdict(window)), flush=True)
        else:
            print(serving.line(window), flush=True)
            if (new := serving.advice(window)) != said:
                said = new
                print("\n".join(f"         {sentence}" for sentence in said), flush=True)
        if number == options.count:
            break
