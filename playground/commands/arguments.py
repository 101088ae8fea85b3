"""What several commands ask for, and the files they read and write."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from playground.errors import PlaygroundError
from playground.presets import DTYPES, Pair

DEFAULT = "(default: %(default)s)"


def count(text: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} will not do: give a whole number from {least} on")
    return int(text)


def positive(text: str) -> int:
    return count(text, least=1)


def add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", help="a preset's name (default: starter, or on a CUDA GPU the largest that fits)")
    parser.add_argument("--target", help="a hub id or a folder, in place of --pair")
    parser.add_argument("--assistant", help="what drafts for it: a hub id or a folder; --drafter tells what it is")
    parser.add_argument(
        "--early-exit", type=int, default=0, metavar="N", help="with --target: its first N layers draft"
    )
    parser.add_argument("--dtype", default="auto", choices=DTYPES)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")


def chosen_pair(options: argparse.Namespace) -> Pair:
    """The pair that --pair, or --target and --assistant, name.

    Raises:
        PlaygroundError: both were given, or there is no such pair.
    """
    from playground.models.fit import default_pair
    from playground.presets import custom_pair, load_pairs

    if options.target is not None or options.assistant:
        if options.pair or options.target is None:
            raise PlaygroundError("Give either --pair, or --target with or without --assistant.")
        return custom_pair(options.target, options.assistant, getattr(options, "drafter", None), options.early_exit)
    pairs, _ = load_pairs()
    if options.pair is None:
        return default_pair(pairs)
    if options.pair not in pairs:
        raise PlaygroundError(f"There is no pair {options.pair!r}. There are: {', '.join(pairs)}.")
    return pairs[options.pair]


def read(path: Path) -> str:
    """Raises:
    PlaygroundError: the file cannot be read, or is no UTF-8 text.
    """
    try:
        return sys.stdin.read() if path == Path("-") else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlaygroundError(f"The file {path} cannot be read ({error}). Give a UTF-8 text file.") from error


def check_writable(path: Path | None) -> None:
    """Before a long run, not behind it.

    Raises:
        PlaygroundError: there is no folder to write into, or a folder stands where the file would.
    """
    if path and path.is_dir():
        raise PlaygroundError(f"{path} is a folder. Name a file to write.")
    if path and not path.parent.is_dir():
        raise PlaygroundError(
            f"There is no folder {path.parent} to write {path.name} into. Make it, or choose another."
        )


def write(path: Path, text: str) -> None:
    """Raises:
    PlaygroundError: the file cannot be written.
    """
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise PlaygroundError(f"{path} cannot be written ({error}). Choose another file.") from error
