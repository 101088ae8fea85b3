"""The commands `history`, `report` and `record`, for past runs and result files, and `pairs` and
`drafters`, which list choices."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playground import ROOT
from playground.commands.arguments import check_writable, read, write
from playground.drafting_methods import METHODS, TARGETS, help_for
from playground.errors import PlaygroundError, check
from playground.experiments.history import History, open_history
from playground.format import count

if TYPE_CHECKING:  # numpy and transformers would slow every command down
    from playground.experiments.history import Entry
    from playground.results import Result, SuiteResult
    from playground.results.record import Record
    from playground.trace import Comparison

DATASET = "PLAYGROUND_RECORDS"  # names the dataset of a Space
FORMS = (".json", ".csv", ".html", ".md")


def add(commands: argparse._SubParsersAction) -> None:
    history = commands.add_parser(
        "history",
        help="list, compare and export what was run on this machine",
        description="Lists what was run on this machine, on the page or in the terminal: running, finished, stopped "
        "and failed. Nothing leaves the machine. PLAYGROUND_HISTORY=off keeps nothing.",
    )
    history.set_defaults(command=_list, search=[], json=False)
    actions = history.add_subparsers(metavar="action")

    action = partial(_action, actions)
    listed = action("list", "list it, the newest first (also without an action)", _list)
    listed.add_argument("search", nargs="*", metavar="WORD", help="only those with all of these words")
    listed.add_argument("--json", action="store_true", help="print the list as JSON")
    show = action("show", "print the result of one", _show, id="as `history` lists it")
    show.add_argument("--json", action="store_true", help="print it as JSON")
    either = "an id, or a file of `--json`"
    action("compare", "print two side by side", _compare, first=either, second=either)
    export = action("export", "write one to a file", _export, id="as `history` lists it")
    export.add_argument("file", type=Path, help=f"its ending says the form: {', '.join(FORMS)}")
    action("delete", "delete one", lambda options: open_history().delete(options.id), id="as `history` lists it")
    back = "bring back one that was deleted in the last ten minutes"
    action("restore", back, lambda options: open_history().restore(options.id), id="the one that it had")
    action("clear", "delete all but those that run", lambda options: print(f"{len(open_history().clear())} deleted."))

    report = commands.add_parser(
        "report",
        help="turn a result file into one HTML page with charts",
        description="Writes a page that opens without a server: of a comparison the replay, of all else tables and "
        "charts.",
    )
    report.set_defaults(command=_report)
    report.add_argument("file", type=Path, help="what `--json` wrote, or a suite's record")
    report.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="the page to write")


def _action(actions: Any, name: str, help: str, command: Callable[[argparse.Namespace], None], **names: str) -> Any:
    """Adds an action of a command, and returns its parser. `names`: what it takes, each with its help."""
    parser = actions.add_parser(name, help=help)
    parser.set_defaults(command=command)
    for argument, explained in names.items():
        parser.add_argument(argument, help=explained)
    return parser


def _list(options: argparse.Namespace) -> None:
    from playground.views.table import Table

    entries = open_history().entries(search=" ".join(options.search))
    if options.json:
        print(json.dumps([asdict(entry) for entry in entries], indent=1))
    elif entries:
        print(Table("History", ("id", "at", "kind", "state", "what"), tuple(map(_row, entries)), numbers=0).text())
    else:
        print("Nothing was run, or nothing has these words.")


def _row(entry: Entry) -> tuple[str, ...]:
    at = datetime.fromtimestamp(entry.created).strftime("%Y-%m-%d %H:%M")
    status = f"{entry.status} {entry.fraction:.0%}" if entry.status in ("running", "stopped") else entry.status
    return entry.id, at, entry.kind, status, f"{entry.title} ({entry.note})" if entry.note else entry.title


def _show(options: argparse.Namespace) -> None:
    from playground.views import report

    result = _kept(open_history(), options.id)
    print(report.file(result, ".json") if options.json else report.text(report.of(result)))


def _compare(options: argparse.Namespace) -> None:
    from playground.views import compared

    sentences, table = compared.side_by_side(*(named(name) for name in (options.first, options.second)))
    print("\n".join([*sentences, "", table.text()]))


def _export(options: argparse.Namespace) -> None:
    from playground.views import report

    check(options.file.suffix in FORMS, f"{options.file} should end in {', '.join(FORMS)}.")
    check_writable(options.file)
    history = open_history()
    result, title = _kept(history, options.id), history.entry(options.id).title
    write(options.file, report.file(result, options.file.suffix, title).rstrip())


def _report(options: argparse.Namespace) -> None:
    from playground.views import report

    check_writable(options.out)
    write(options.out, report.file(opened_file(options.file), ".html"))


def _kept(history: History, name: str) -> Result | Comparison:
    from playground.experiments.session import opened

    return opened(history, name)


def opened_file(path: Path) -> Result | Comparison:
    """Reads a result file, or what a suite wrote of itself while it ran."""
    from playground import results
    from playground.experiments import journal, suite

    text = read(path)
    if text.startswith(journal.HEAD.decode()):
        result = suite.suite_result(*journal.read(path))
        if result is None:
            raise PlaygroundError(f"{path} holds no prompt that has ended.")
        return result
    try:
        data: Any = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        raise PlaygroundError(f"{path} is not JSON. {results.CHOOSE}") from None
    return results.from_json(data)


def named(name: str) -> Result | Comparison:
    """Returns a result by its id in the history or by its file."""
    return opened_file(Path(name)) if Path(name).is_file() else _kept(open_history(), name)


def add_record(commands: argparse._SubParsersAction) -> None:
    record = commands.add_parser(
        "record",
        help="make, check and submit records of results",
        description="A record is one result worth citing as a small file, without the prompts' text. The page Records "
        "shows those of records/.",
    )
    actions = record.add_subparsers(required=True, metavar="action")

    action = partial(_action, actions)
    make = action("make", "make one of a result", _make_record)
    make.add_argument("result", help="a file that `--json` of compare, suite, sweep or recommend wrote, or a run's id")
    make.add_argument("-o", "--out", type=Path, metavar="FILE", help="the record to write (default: print it)")
    make.add_argument("--suite", default="", metavar="NAME", help="the name of the prompts")
    make.add_argument("--hardware", default="", metavar="TEXT", help="what decoded, where a server does not say it")
    make.add_argument("--url", default="", help="where the run behind it can be opened")
    make.add_argument("--note", default="", metavar="TEXT", help="what a reader should know, such as a busy machine")
    make.add_argument("--prompts", action="store_true", help="include the prompts' text")
    checked = action("check", "check that the sums of records agree", _check_records)
    checked.add_argument("files", nargs="+", type=Path, metavar="FILE")
    submit = action("submit", "add one to records/, with the text of a pull request", _submit_record)
    submit.add_argument("file", type=Path)
    submit.add_argument(
        "--dataset",
        default=os.environ.get(DATASET, ""),
        metavar="OWNER/NAME",
        help=f"open a pull request at this dataset of the Hugging Face Hub instead (default: ${DATASET})",
    )
    page = action("page", "write the page Records as one HTML file", _page_of_records)
    page.add_argument("--html", type=Path, required=True, metavar="FILE", help="the page to write")
    page.add_argument("--folder", type=Path, metavar="FOLDER", help="of the records (default: the playground's)")


def _make_record(options: argparse.Namespace) -> None:
    from playground.results import record

    check_writable(options.out)
    made = record.of(
        _suite_of(named(options.result)),
        suite=options.suite,
        hardware=options.hardware,
        url=options.url,
        note=options.note,
        prompts=options.prompts,
    )
    path = Path(options.result).resolve()
    if path.is_relative_to(ROOT / "assets"):
        made = replace(made, run=path.relative_to(ROOT).as_posix())
    if options.out:
        write(options.out, record.text(made).rstrip())
    else:
        print(record.text(made), end="")


def _suite_of(result: Result | Comparison) -> SuiteResult:
    """Return what a record is made of.

    Raises:
        PlaygroundError: the result has no suite.
    """
    from playground.experiments.suite import of_comparison
    from playground.results import SuiteResult
    from playground.trace import Comparison

    found = of_comparison(result) if isinstance(result, Comparison) else getattr(result, "suite", result)
    if not isinstance(found, SuiteResult):
        raise PlaygroundError("A record is made of a comparison, a suite, a sweep or a recommendation.")
    return found


def _check_records(options: argparse.Namespace) -> None:
    from playground.results import record

    for path in options.files:
        found = record.read(read(path), path.name)
        run, of_run = record.run_of(found), ""
        if run is not None:
            wrong = record.differing(found, _suite_of(run))
            check(not wrong, f"{path.name}: {', '.join(wrong)} are not those of its run, {found.run}. Make it again.")
            of_run = ", and its figures are those of its run"
        print(f"{path.name}: {len(found.lanes)} of {found.target} on {found.hardware}; the sums agree{of_run}.")


def _submit_record(options: argparse.Namespace) -> None:
    from playground.results import record

    found = record.read(read(options.file), options.file.name)
    name = re.sub(r"[^a-z0-9.]+", "-", options.file.stem.lower()).strip("-.") or "record"
    title, body = request_text(found)
    if options.dataset:
        print(f"Opened {_upload(found, name, options.dataset, title, body)}")
        return
    folder = Path("records")
    check(folder.is_dir(), "There is no folder records/ here. Go to a checkout of the playground, or name a --dataset.")
    path = folder / f"{name}.json"
    check(not path.exists(), f"{path} is there already. Give the file another name.")
    check_writable(path)
    write(path, record.text(found).rstrip())
    print(f"Wrote {path}. Commit it, and open a pull request with this text:\n\n{title}\n\n{body}")


def request_text(record: Record) -> tuple[str, str]:
    """Returns the title and the text of a pull request that adds a record, as Markdown."""
    from playground.views import records
    from playground.views.table import escaped

    title = f"Record: {record.target} on {record.hardware}"
    runs = f"{count(record.runs, 'run')} each" if record.runs else "published, not measured"
    about = [record.engine, record.dtype, record.suite, runs, record.created, record.note, record.url]
    said = "; ".join(escaped(str(it)) for it in about if it)
    return " ".join(title.split()), f"{said}\n\n{records.table({'record': record}).markdown()}"


def _upload(record: Record, name: str, dataset: str, title: str, body: str) -> str:
    """Opens a pull request at a dataset of the hub, and returns its address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    from playground.results import record as records

    try:
        done = HfApi().upload_file(
            path_or_fileobj=records.text(record).encode(),
            path_in_repo=f"records/{name}.json",
            repo_id=dataset,
            repo_type="dataset",
            commit_message=title,
            commit_description=body,
            create_pr=True,
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise PlaygroundError(f"The dataset {dataset} did not take the record ({error}). Are you signed in?") from None
    check(bool(done.pr_url), f"The dataset {dataset} opened no pull request.")
    return str(done.pr_url)


def _page_of_records(options: argparse.Namespace) -> None:
    from playground.results import record
    from playground.views import records

    check_writable(options.html)
    write(options.html, records.page(record.load(options.folder or record.RECORDS)))


def add_listings(commands: argparse._SubParsersAction) -> None:
    pairs = commands.add_parser("pairs", help="list the presets and which of them this machine can run now")
    pairs.set_defaults(command=_pairs)

    drafters = commands.add_parser("drafters", help="list the drafting methods and the presets that have them")
    drafters.set_defaults(command=_drafters)
    pages = [*METHODS, TARGETS]
    drafters.add_argument(
        "name", nargs="?", choices=pages, metavar="NAME", help=f"print the help page of this drafter, or of {TARGETS}"
    )
    drafters.add_argument("--json", action="store_true", help="print the list as JSON")


def _pairs(options: argparse.Namespace) -> None:
    from playground.models.device import resolve_device
    from playground.models.fit import fits
    from playground.presets import load_pairs

    pairs, problems = load_pairs()
    device = resolve_device("auto")
    width = max(map(len, pairs), default=0)
    for pair in pairs.values():
        fit = fits(pair, device)
        about = f"{pair.title}; drafters: {', '.join(pair.drafters)}"
        _listed(pair.name, width, fit.label, about, "" if fit.runs else fit.sentence, pair.note)
    for problem in problems:
        print(f"playground: {problem}", file=sys.stderr)


def _drafters(options: argparse.Namespace) -> None:
    from playground.presets import load_pairs

    if options.name:
        print(help_for(options.name))
        return
    pairs, _ = load_pairs()
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "label": way.label,
            "needs": way.needs,
            "exact": True,
            "paper": way.paper,
            "presets": [pair.name for pair in pairs.values() if name == "none" or name in pair.drafters],
        }
        for name, way in METHODS.items()
    ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    width = max(map(len, METHODS))
    for row in rows:
        presets = "all presets" if len(row["presets"]) == len(pairs) else ", ".join(row["presets"]) or "no preset"
        about = f"{row['label']}; exact; needs {row['needs']}"
        _listed(row["name"], width, about, f"{row['paper']}; in {presets}")


def _listed(name: str, width: int, *lines: str) -> None:
    """Print lines beside a name, cut to the width of the terminal if there is one; "" is left out."""
    before, columns = f"{name:<{width}}  ", shutil.get_terminal_size((sys.maxsize, 0)).columns
    for line in filter(None, lines):
        ahead = " " * len(before)
        print(textwrap.fill(line, columns, initial_indent=before, subsequent_indent=ahead, break_on_hyphens=False))
        before = ahead
