"""`monitor`: a server that serves traffic, watched."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from playground.backends.kinds import programs
from playground.commands.arguments import DEFAULT, positive, positive_number


def add(commands: argparse._SubParsersAction) -> None:
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


def _monitor(options: argparse.Namespace) -> None:
    from playground.experiments.monitor import watched
    from playground.experiments.watch import Watch
    from playground.metrics.serving import Window
    from playground.views import monitor as serving

    said, windows = list[str](), list[Window]()
    if not options.json:
        print(serving.readings([]).text())
    for number, window in enumerate(watched(options.url, options.every, Watch()), start=1):
        if options.json:
            print(json.dumps(asdict(window)), flush=True)
        else:
            print(serving.readings([window]).text().splitlines()[-1], flush=True)
            windows = [*(it for it in windows if it.drafted), window][-2:]
            if (new := serving.advice(windows)) != said:
                said = new
                print("\n".join(f"         {sentence}" for sentence in said), flush=True)
        if number == options.count:
            break
