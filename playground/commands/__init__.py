"""The terminal: it prints what the page would show."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from playground.commands import bench, compare, distil, listings
from playground.errors import PlaygroundError


def main(arguments: Sequence[str] | None = None) -> None:
    """Exits with 0, or with 2 and one sentence on standard error where the user can do something about it."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
        sys.stdout.flush()
    except PlaygroundError as error:
        print(f"playground: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # what reads the output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes as it exits
        sys.exit(141)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m playground", description="Speculative Decoding Playground")
    commands = parser.add_subparsers(required=True, metavar="command")
    for part in (compare, listings, bench, distil):
        part.add(commands)
    return parser
