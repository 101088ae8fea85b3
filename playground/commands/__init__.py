"""The command line: the same experiments as on the page, printed as text."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from playground import app
from playground.commands import compare, forecast, history, kinds, servers
from playground.errors import PlaygroundError
from playground.plugins import load_plugins


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command of the playground; see `run_command`."""
    run_command(_parser().parse_args(arguments))


def run_command(options: argparse.Namespace) -> None:
    """Runs `options.command`. Exits with 2 and one sentence on standard error if the user can fix the error."""
    try:
        options.command(options)
        sys.stdout.flush()
    except PlaygroundError as error:
        print(f"playground: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of the output, such as head, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again when it exits
        sys.exit(141)


def _parser() -> argparse.ArgumentParser:
    as_module = Path(sys.argv[0]).name == "__main__.py"
    parser = argparse.ArgumentParser(
        prog="python -m playground" if as_module else "playground",
        description="Compares standard and speculative decoding, with the tokens of every round.",
        epilog="`python -m playground COMMAND --help` lists the options of a command.",
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    for add in (
        app.add,
        compare.add,
        compare.add_why,
        kinds.add,
        history.add,
        forecast.add,
        history.add_listings,
        history.add_record,
        servers.add_serve_command,
        servers.add_monitor,
    ):
        add(commands)
    load_plugins("playground.commands", lambda add, package: add(commands), first="playground_distil:COMMANDS")
    return parser
