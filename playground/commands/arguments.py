"""The options that several commands share, and the files that commands read and write."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playground.api import pair_of
from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError, check
from playground.models.fetch.files import replacing
from playground.presets import DTYPES, Pair
from playground.settings import SETTINGS, Setting, flag

if TYPE_CHECKING:  # numpy would slow every command down
    from playground.results import Result
    from playground.trace import Comparison

STDOUT = Path("-")  # as a file to read, standard input
DEFAULT = "(default: %(default)s)"
PRESETS_OWN = "the preset's"


def count(text: str, least: int = 0) -> int:
    """Reads a whole number of at least `least`."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


positive = partial(count, least=1)


def positive_number(text: str) -> float:
    """Reads a positive number."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def add_models(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name a pair or its models."""
    models = parser.add_argument_group("models")
    models.add_argument(
        "--pair", metavar="NAME", help="a preset (default: starter, or on a CUDA GPU the largest that fits)"
    )
    models.add_argument("--target", metavar="MODEL", help="a Hugging Face id or a folder, instead of --pair")
    models.add_argument(
        "--assistant",
        metavar="MODEL",
        help="with --target: the draft model or trained drafter, as an id or a folder; --drafter says how it drafts",
    )
    models.add_argument(
        "--early-exit", type=int, default=0, metavar="N", help="with --target: draft with its first N layers"
    )
    models.add_argument("--dtype", default="auto", choices=DTYPES, help=f"weights and arithmetic {DEFAULT}")
    add_settings(models, "compiled")
    models.add_argument("--yes", action="store_true", help="download more than 1 GB without a question")
    models.add_argument("--device", default="auto", help=f"auto, cpu, cuda, cuda:1 or mps {DEFAULT}")
    models.add_argument(
        "--one-after-the-other",
        action="store_true",
        help="run lanes alone instead of by turns of a few rounds",
    )


def add_settings(parser: argparse._ActionsContainer, *names: str, default: str = "") -> None:
    """Adds an option for each setting. `default`: what the help calls the default, if the option's value is None
    without the option rather than the setting's default."""
    for name in names:
        setting = SETTINGS[name]
        value, of = None if default else setting.default, type(setting.default)
        add_setting(parser, name, flag(name), setting, of, default or value, _reader(setting), default=value)


def add_setting(
    parser: argparse._ActionsContainer,
    name: str,
    option: str,
    setting: Setting,
    of: Any,
    unset: Any,
    read: Callable[[str], Any] | None = None,
    **more: Any,
) -> None:
    """Adds one option.

    Args:
        of: the type of its value; a Literal of the setting's choices.
        unset: what the help says is used without the option; None is the preset's value.
        read: the function with which argparse reads a value; None for `of`.
        more: further arguments of `add_argument`; those that are None are left out.
    """
    text = "FILE" if setting.file else "NAME" if setting.choices else "TEXT"
    how: dict[str, Any] = {"type": read or of, "metavar": {int: "N", float: "X"}.get(of, text)}
    if of is bool:
        how = {"action": argparse.BooleanOptionalAction}
    elif of not in (int, float, str):
        how = {"choices": [*setting.choices]}
    if setting.line:
        how |= {"action": Joined, "metavar": setting.line}
    accepted = f"{setting.range}; " if setting.slider or (setting.choices and "choices" not in how) else ""
    words = {"True": "on", "": "none", "()": "none", "None": PRESETS_OWN}
    shown = f"{unset:g}" if isinstance(unset, float) else str(unset)
    shown = " ".join(map(str, unset)) if unset and isinstance(unset, tuple) else words.get(shown, shown)
    explained = f"{setting.help} ({accepted}default: {shown})".replace("%", "%%")
    how |= {key: value for key, value in more.items() if value is not None}
    parser.add_argument(option, dest=name, help=explained, **how)


def value_of(options: argparse.Namespace, name: str) -> Any:
    """Returns the value given for a setting; for one that is a file, its text.

    Raises:
        PlaygroundError: the file cannot be read.
    """
    given = getattr(options, name)
    return text_or_file(given) if given and name in SETTINGS and SETTINGS[name].file else given


def text_or_file(text: str) -> str:
    """Returns the text of a setting that is JSON: the text itself, or the content of the file with this name. An empty
    text is none.

    Raises:
        PlaygroundError: the file cannot be read.
    """
    return text if not text.strip() or text.lstrip()[0] in "[{" else read(Path(text))


class Joined(argparse.Action):
    """An option that may be repeated. Its values become lines of one text."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, f"{before}\n{values}" if before else values)


def _reader(setting: Setting) -> Callable[[str], Any]:
    """Returns the function with which argparse reads an option of a setting."""

    def read(text: str) -> Any:
        try:
            return setting.read(text)
        except PlaygroundError as refusal:
            raise argparse.ArgumentTypeError(str(refusal)) from None

    return read


def chosen_pair(options: argparse.Namespace) -> Pair:
    """Returns the pair named by --pair, or by --target and --assistant, to be run as --compiled says.

    Raises:
        PlaygroundError: both were given, there is no such pair, or nobody agreed to a large download.
    """
    how, weights = getattr(options, "drafter", None), options.assistant
    if options.target and how and not weights and how not in METHODS:  # its folder or id
        how, weights = None, how
    own = {"early_exit": options.early_exit, "compiled": options.compiled}
    pair = pair_of(options.pair, options.target, weights, how, **own)
    _agree_to_download(pair, options)
    return pair


def _agree_to_download(pair: Pair, options: argparse.Namespace) -> None:
    from playground.format import gigabytes
    from playground.models.device import resolve_device
    from playground.models.fit import LARGE, fits

    if options.yes or (size := fits(pair, resolve_device(options.device)).download) <= LARGE:
        return
    needs = f"{pair.title} is not on this machine: up to {gigabytes(size)} has to be downloaded first."
    if sys.stdin.isatty() and input(f"{needs} Go on? [y/N] ").strip().lower() in ("y", "yes"):
        return
    raise PlaygroundError(f"{needs} Agree with --yes, or choose another pair.")


def add_outputs(parser: argparse.ArgumentParser, result: str, page: str) -> None:
    """Adds the options that `show` follows. `result`, `page`: what its files are called in the help."""
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write {result} to FILE; - for stdout")
    parser.add_argument("--html", type=Path, metavar="FILE", help=f"write {page} to FILE, which opens without a server")
    parser.add_argument("--all-tables", action="store_true", help="print the longer tables too")


def show(result: Result | Comparison, options: argparse.Namespace, title: str = "") -> None:
    """Writes a result to the files that the options name, and prints its report, or with `--json -` its JSON. `title`:
    see `report.file`."""
    from playground.views import report

    if options.html:
        write(options.html, report.file(result, ".html", title))
    if options.json == STDOUT:
        print(report.file(result, ".json"))
        return
    if options.json:
        write(options.json, report.file(result, ".json"))
    print(report.text(report.of(result), folded=options.all_tables))


def read(path: Path) -> str:
    """Returns the text of a file.

    Raises:
        PlaygroundError: the file cannot be read, or is no UTF-8 text.
    """
    try:
        return sys.stdin.read() if path == STDOUT else path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PlaygroundError(f"The file {path} cannot be read ({error}). Give a UTF-8 text file.") from error


def check_writable(*paths: Path | None) -> None:
    """Checks that files can be written, before a long run rather than after it.

    Raises:
        PlaygroundError: there is no folder to write into, or a path is a folder.
    """
    for path in filter(None, paths):
        check(not path.is_dir(), f"{path} is a folder. Name a file to write.")
        check(
            path.parent.is_dir(),
            f"There is no folder {path.parent} to write {path.name} into. Make it, or choose another.",
        )


def write(path: Path, text: str) -> None:
    """Writes the whole text. If that fails, the file does not change.

    Raises:
        PlaygroundError: the file cannot be written.
    """
    replaced = not path.exists() or path.is_file()  # /dev/stdout and the like cannot be replaced
    try:
        with replacing(path) if replaced else nullcontext(path) as part:
            part.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise PlaygroundError(f"{path} cannot be written ({error}). Choose another file.") from error
