"""`python -m benchmarks gpu`: runs the parts in order of worth, and prints the tables of result files."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import correct, lanes, passes
from benchmarks.gpu.rig import Rig
from playground.commands.arguments import positive
from playground.errors import PlaygroundError, check

Part = Callable[[], Iterator[tuple[str, Any]]]  # what it yields goes into the file, merged by title and row
FILE = "gpu.json"
LEAST = 5  # seconds; no part is begun with fewer left
PARTS: dict[str, tuple[int, Callable[[Rig], Iterator[tuple[str, Any]]]]] = {  # name -> seconds at most, work
    "where": (60, correct.where),
    "trust": (60, correct.trust),
    "rounds": (120, lanes.decoding),
    "passes": (100, passes.passes),
    "generate": (40, lanes.generate),
    "flashspec": (60, lanes.flashspec),
    "loading": (30, passes.loading),
    "containment": (40, correct.containment),
    "attention": (30, passes.attention),
    "experts": (40, passes.experts),
    "few bits": (60, passes.few_bits),
    "pairs": (3600, lanes.pairs),
}


def add(commands: argparse._SubParsersAction) -> None:
    gpu = commands.add_parser(
        "gpu",
        help="what only a GPU can tell: captures, rounds and passes of real shapes, without a hub",
        description="Runs models of real shapes and random weights. Each part has a process of its own, so that one "
        "that fails or hangs ends no other.",
    )
    gpu.set_defaults(command=_gpu)
    gpu.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"writes {FILE} there after each figure")
    gpu.add_argument("--seconds", type=positive, default=540, metavar="N", help="for all parts (default: 540)")
    gpu.add_argument("--only", nargs="+", metavar="PART", help=f"some of: {' '.join(PARTS)}")
    gpu.add_argument("--pairs", nargs="+", default=[], metavar="NAME", help="presets to run too, which are fetched")
    gpu.add_argument("--rehearse", action="store_true", help="tiny models on a CPU: every line runs, no figure counts")
    tables = commands.add_parser("gpu-tables", help="print the tables of files that `gpu` wrote, as Markdown")
    tables.set_defaults(command=_tables)
    tables.add_argument("files", nargs="+", type=Path, metavar="FILE")


def _gpu(options: argparse.Namespace) -> None:
    unknown = set(options.only or ()) - PARTS.keys()
    check(not unknown, f"The benchmark has no part {', '.join(sorted(unknown))}, only {', '.join(PARTS)}.")
    # A process that is forked from one that has asked for CUDA cannot use it.
    rig = Rig(torch.device("cpu" if options.rehearse else "cuda:0"), options.rehearse, tuple(options.pairs))
    chosen = {
        name: (seconds, partial(work, rig))
        for name, (seconds, work) in PARTS.items()
        if name == "where" or (name in options.only if options.only else name != "pairs" or options.pairs)
    }
    options.out.mkdir(parents=True, exist_ok=True)
    if run(chosen, options.seconds, options.out / FILE, print):
        sys.exit(1)


def run(
    parts: Mapping[str, tuple[float, Part]], seconds: float, file: Path, say: Callable[[str], None]
) -> dict[str, str]:
    """Runs parts, each in a process of its own for as long as it may and all of them in `seconds`. Writes `file` after
    each figure.

    Returns:
        The parts that failed or were left out, and why.

    Raises:
        PlaygroundError: the first part, which describes the machine, failed.
    """
    end = time.monotonic() + seconds
    failed: dict[str, str] = {}
    kept: dict[str, Any] = {"kind": "gpu", "environment": {}, "tables": {}, "failed": failed, "seconds": {}}

    def write() -> None:
        file.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def keep(title: str, rows: dict[str, Any]) -> None:
        if title == "environment":
            kept["environment"] = rows
        for row, columns in rows.items() if title != "environment" else ():
            kept["tables"].setdefault(title, {}).setdefault(row, {}).update(columns)
        write()

    for name, (most, part) in parts.items():
        start = time.monotonic()
        limit = min(most, end - start)
        why = _run_alone(part, limit, keep) if limit > LEAST else "left out: the time was over"
        if why:
            failed[name] = why
        kept["seconds"][name] = round(time.monotonic() - start, 1)
        write()
        last = why.rpartition("\n")[-1]
        say(f"{name}: {kept['seconds'][name]:.0f} s{last and ': '}{last}")
        check(bool(kept["environment"]), f"Nothing can be measured here: {last}")
    return failed


def _run_alone(part: Part, seconds: float, keep: Callable[[str, Any], None]) -> str:
    """Runs a part in a process of its own: an assertion that fails on the device leaves none that can use it. Returns
    why it failed; "" if it did not."""
    context = multiprocessing.get_context("fork")  # importing everything again takes longer than some parts
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(part, theirs))
    process.start()
    theirs.close()
    end = time.monotonic() + seconds
    try:
        while ours.poll(max(0.0, end - time.monotonic())):
            title, rows = ours.recv()
            if title == "failed":
                return rows
            keep(title, rows)
    except EOFError:  # its process has ended
        process.join()
        return f"ended with {process.exitcode}" if process.exitcode else ""
    finally:
        process.kill()
        process.join()
    return f"cut off after {seconds:.0f} s"


def _send(part: Part, to: Connection) -> None:
    try:
        for found in part():
            to.send(found)
    except Exception:
        to.send(("failed", traceback.format_exc()[-1500:].strip()))


def _tables(options: argparse.Namespace) -> None:
    for file in options.files:
        try:
            print(tables(json.loads(file.read_text(encoding="utf-8"))))
        except (OSError, ValueError, KeyError) as error:
            raise PlaygroundError(f"{file} is no file that `gpu` wrote ({error}).") from None


def tables(result: Mapping[str, Any]) -> str:
    """Returns a result as Markdown: a table for each title."""
    its = result["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in its["versions"].items())
    lines = [f"{its['device_name']}, {its['bandwidth'] / 1e9:,.0f} GB/s; {versions}; {its['created'][:10]}", ""]
    for title, rows in result["tables"].items():
        columns = list(dict.fromkeys(column for figures in rows.values() for column in figures))
        lines += [f"| {title} | {' | '.join(columns)} |", f"|---|{'--:|' * len(columns)}"]
        lines += [f"| {row} | {' | '.join(_cell(figures.get(c)) for c in columns)} |" for row, figures in rows.items()]
        lines.append("")
    return "\n".join([*lines, *(f"{name} failed: {why.splitlines()[-1]}" for name, why in result["failed"].items())])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return "" if value is None else str(value)
