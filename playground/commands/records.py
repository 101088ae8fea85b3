"""The command `record`: makes records of results, checks them, and submits them to a list of records."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playground import ROOT
from playground.commands.arguments import check_writable, read, write
from playground.errors import PlaygroundError, check
from playground.format import count

if TYPE_CHECKING:  # numpy would slow every command down
    from playground.results.record import Record

DATASET = "PLAYGROUND_RECORDS"  # names the dataset of a Space


def add(commands: argparse._SubParsersAction) -> None:
    record = commands.add_parser(
        "record",
        help="make, check and submit records of results",
        description="A record is one result worth citing as a small file, without the prompts' text. The page Records "
        "shows those of records/.",
    )
    actions = record.add_subparsers(required=True, metavar="action")

    def action(name: str, help: str, command: Callable[[argparse.Namespace], None]) -> Any:
        parser = actions.add_parser(name, help=help)
        parser.set_defaults(command=command)
        return parser

    make = action("make", "make one of a result", _make)
    make.add_argument("result", help="a file that `--json` of compare, suite, sweep or recommend wrote, or a run's id")
    make.add_argument("-o", "--out", type=Path, metavar="FILE", help="the record to write (default: print it)")
    make.add_argument("--suite", default="", metavar="NAME", help="the name of the prompts")
    make.add_argument("--hardware", default="", metavar="TEXT", help="what decoded, where a server does not say it")
    make.add_argument("--url", default="", help="where the run behind it can be opened")
    make.add_argument("--note", default="", metavar="TEXT", help="what a reader should know, such as a busy machine")
    make.add_argument("--prompts", action="store_true", help="include the prompts' text")
    checked = action("check", "check that the sums of records agree", _check)
    checked.add_argument("files", nargs="+", type=Path, metavar="FILE")
    submit = action("submit", "add one to records/, with the text of a pull request", _submit)
    submit.add_argument("file", type=Path)
    submit.add_argument(
        "--dataset",
        default=os.environ.get(DATASET, ""),
        metavar="OWNER/NAME",
        help=f"open a pull request at this dataset of the Hugging Face Hub instead (default: ${DATASET})",
    )
    page = action("page", "write the page Records as one HTML file", _page)
    page.add_argument("--html", type=Path, required=True, metavar="FILE", help="the page to write")
    page.add_argument("--folder", type=Path, metavar="FOLDER", help="of the records (default: the playground's)")


def _make(options: argparse.Namespace) -> None:
    from playground.commands.history import named
    from playground.experiments.suite import of_comparison
    from playground.results import SuiteResult, record
    from playground.trace import Comparison

    check_writable(options.out)
    result = named(options.result)
    result = of_comparison(result) if isinstance(result, Comparison) else getattr(result, "suite", result)
    if not isinstance(result, SuiteResult):
        raise PlaygroundError("A record is made of a comparison, a suite, a sweep or a recommendation.")
    made = record.of(
        result,
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


def _check(options: argparse.Namespace) -> None:
    from playground.results import record

    for path in options.files:
        found = record.read(read(path), path.name)
        print(f"{path.name}: {len(found.lanes)} of {found.target} on {found.hardware}; the sums agree.")


def _submit(options: argparse.Namespace) -> None:
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


def _page(options: argparse.Namespace) -> None:
    from playground.results import record
    from playground.views import records

    check_writable(options.html)
    write(options.html, records.page(record.load(options.folder or record.RECORDS)))
