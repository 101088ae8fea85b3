"""`load` and `monitor`: servers under load, and servers that serve traffic."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from playground.backends.kinds import programs
from playground.commands.arguments import (
    DEFAULT,
    add_model_name,
    add_settings,
    check_writable,
    positive,
    positive_number,
    write,
)

CONCURRENCIES = (1, 2, 4, 8, 16, 32)


def add(commands: argparse._SubParsersAction) -> None:
    load = commands.add_parser(
        "load",
        help="a suite at several concurrencies through servers: where does speculation stop paying?",
        description="Sends the prompts of a suite to one server or two, at several levels of load; docs/servers.md.",
        epilog="Each level is written to disk as it ends: Ctrl-C stops, and the same command goes on where it was "
        "stopped. Exit code 0: all requests were answered; 1: some failed; 2: it cannot be run; 130: it was stopped.",
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
        "--rate", nargs="+", type=positive_number, metavar="X", help="requests a second, at random moments, instead"
    )
    load.add_argument(
        "--requests", type=positive, default=16, metavar="N", help=f"of each level, at least one a user {DEFAULT}"
    )
    add_settings(load, "max_new_tokens", "temperature")
    load.add_argument(
        "--ttft-limit", type=positive_number, default=1.0, metavar="S", help=f"limit for goodput, in seconds {DEFAULT}"
    )
    load.add_argument(
        "--tpot-limit", type=positive_number, default=0.1, metavar="S", help=f"limit for goodput, in seconds {DEFAULT}"
    )
    load.add_argument("--seed", type=int, default=0, metavar="N", help=f"of the moments of --rate {DEFAULT}")
    load.add_argument("--again", action="store_true", help="begin anew, also if it was stopped before")
    load.add_argument("--traces", type=Path, metavar="FILE", help="add the trace of every answer to FILE, one per line")
    load.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE; - for stdout")
    load.add_argument("--html", type=Path, metavar="FILE", help="write a report with charts to FILE")

    monitor = commands.add_parser(
        "monitor",
        help="acceptance, throughput and queue of a server that serves traffic",
        description="Reads a server's /metrics at intervals until Ctrl-C. It sends no prompt.",
    )
    monitor.set_defaults(command=_monitor)
    monitor.add_argument("url", metavar="URL", help=f"{programs()}; llama-server needs --metrics")
    monitor.add_argument(
        "--every", type=positive_number, default=5.0, metavar="S", help=f"seconds between lines {DEFAULT}"
    )
    monitor.add_argument("--count", type=positive, metavar="N", help="end after N lines (default: Ctrl-C)")
    monitor.add_argument("--json", action="store_true", help="print each line as JSON")


def _load(options: argparse.Namespace) -> None:
    from playground import results
    from playground.backends.connect import Servers
    from playground.commands import experiment
    from playground.experiments.load import Plan
    from playground.experiments.questions import questions
    from playground.experiments.work import Load
    from playground.metrics.load import Level, Limits
    from playground.results import LoadResult
    from playground.views import page_report, report

    for path in (options.traces, options.json, options.html):
        check_writable(path)
    settings = {"max_new_tokens": options.max_new_tokens, "temperature": options.temperature}
    asked = questions(options.suite, options.per_category, settings)
    concurrencies = () if options.rate else options.concurrency or CONCURRENCIES
    levels = [Level(rate=rate) for rate in options.rate or ()] + [Level(concurrency=n) for n in concurrencies]
    work = Load(
        Servers(options.server, options.baseline_server or "", options.model),
        tuple(asked),
        Plan(tuple(dict.fromkeys(levels)), options.requests, options.seed),
        Limits(options.ttft_limit, options.tpot_limit),
        traces=str(options.traces.absolute()) if options.traces else "",
    )
    title = work.title(options.suite)
    result = experiment.run(work, title, again=options.again)
    assert isinstance(result, LoadResult)
    document = json.dumps(results.to_json(result), indent=1)
    if options.json == Path("-"):
        print(document)
    else:
        if options.json:
            write(options.json, document)
        print(report.text(report.of(result)))
    if options.html:
        write(options.html, page_report.build(result, title))
    if result.failures:
        sys.exit(1)


def _monitor(options: argparse.Namespace) -> None:
    from playground.experiments.monitor import watched
    from playground.experiments.watch import Watch
    from playground.views import monitor as serving

    said = list[str]()
    if not options.json:
        print(serving.HEAD)
    for number, window in enumerate(watched(options.url, options.every, Watch()), start=1):
        if options.json:
            print(json.dumps(asdict(window)), flush=True)
        else:
            print(serving.line(window), flush=True)
            if (new := serving.advice(window)) != said:
                said = new
                print("\n".join(f"         {sentence}" for sentence in said), flush=True)
        if number == options.count:
            break
