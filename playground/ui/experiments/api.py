"""The long experiments as endpoints for other programs, which `--mcp` serves as tools.

Experiments take minutes. For each kind one endpoint starts an experiment and returns its id; other endpoints return an
experiment by its id, stop it, and list them all.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import gradio as gr
from anyio import to_thread
from pydantic import Field

from playground import results, validation
from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError, check
from playground.experiments.history import Entry
from playground.experiments.kinds import KINDS
from playground.experiments.kinds.kind import Kind
from playground.experiments.kinds.options import options_of
from playground.presets import Pair, suites
from playground.settings import default
from playground.ui.compare.api import add, describe
from playground.ui.experiments.controls import work_of
from playground.ui.experiments.service import HZ, Experiments, View

MOST_WAIT_S = 300
Wait = Annotated[float, Field(ge=0, le=MOST_WAIT_S)]


def publish(page: gr.Blocks, experiments: Experiments, pairs: Mapping[str, Pair]) -> None:
    """Adds the endpoints to the page. Visitors of a public link are refused, as on the pages."""
    for name, kind in KINDS.items():
        add(page, name, _start(kind, experiments, pairs), _described(kind, pairs), concurrency_limit=None)
    for call in _asking(experiments):
        described = {it: ASKING[it] for it in inspect.signature(call).parameters}
        # Calls that wait for an experiment would keep other callers out.
        add(page, call.__name__, call, described, concurrency_limit=None)


def _start(kind: Kind, experiments: Experiments, pairs: Mapping[str, Pair]) -> Callable[..., dict]:
    parameters = [_parameter(name, str, default(name)) for name in ("pair",) if kind.pair]
    for name, option in options_of(kind.options, "endpoint").items():
        of, value = option.of, option.default
        if option.several:  # gr.api accepts no tuples
            of, value = list[of] | None, [*value] or None  # type: ignore[valid-type]
        elif value is None:
            of = of | None
        parameters.append(_parameter(name, of, value))

    def start(*values: Any) -> dict:
        with _in_words():
            session = experiments.session  # checked before a file is read
            name = session.start(*work_of(kind, pairs, dict(zip((it.name for it in parameters), values, strict=True))))
            return _answer(experiments.view(name), whole=False)

    start.__doc__ = f"{kind.does} Takes minutes: returns its id at once, and `experiment` has the result."
    start.__annotations__ = {**{it.name: it.annotation for it in parameters}, "return": dict}
    start.__signature__ = inspect.Signature(parameters, return_annotation=dict)  # type: ignore[attr-defined]
    return start


def _parameter(name: str, of: Any, value: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=of, default=value)


def _asking(experiments: Experiments) -> list[Callable]:
    """Returns the endpoints for experiments that were started."""

    async def experiment(id: str, wait_s: float = 0, whole: bool = True) -> dict:
        """Returns one experiment: its status, its progress and, once it has ended, its findings, in sentences and as
        the whole result. A recommendation also has settings for other engines."""
        with _in_words():
            deadline = time.monotonic() + validation.read(Wait, wait_s, "wait_s")
            view = await to_thread.run_sync(_view, experiments, id)
            while view.entry.status == "running" and time.monotonic() < deadline:
                await asyncio.sleep(1 / HZ)
                view = await to_thread.run_sync(_view, experiments, id)
            return await to_thread.run_sync(_answer, view, whole)

    def stop_experiment(id: str) -> dict:
        """Stops an experiment. What was finished stays."""
        with _in_words():
            view = _view(experiments, id)
            experiments.session.stop(id)
            return _answer(view, whole=False)

    def all_experiments(search: str = "") -> list[dict]:
        """Returns all experiments of this machine, the newest first."""
        with _in_words():
            return [_listed(entry) for entry in experiments.entries(search) if entry.kind in KINDS]

    all_experiments.__name__ = "experiments"
    return [experiment, stop_experiment, all_experiments]


def _view(experiments: Experiments, name: str) -> View:
    known = {entry.id for entry in experiments.entries() if entry.kind in KINDS}
    check(name in known, f"There is no experiment {name!r}. `experiments` lists them all.")
    return experiments.view(name)


def _answer(view: View, whole: bool) -> dict[str, Any]:
    result, found = view.result, view.report
    answer = {
        **_listed(view.entry),
        "left_s": view.done[-1].left_s if view.done and view.entry.status == "running" else None,
        "findings": list(found.findings) if found else [],
    }
    if found and found.deploy:
        answer["settings"] = [asdict(it) for it in found.deploy]
    if whole:
        answer["result"] = results.to_json(result) if result else None
    return answer


def _listed(entry: Entry) -> dict[str, Any]:
    names = ("id", "kind", "title", "status", "created", "updated", "fraction", "note")
    return {name: getattr(entry, name) for name in names}


@contextmanager
def _in_words() -> Iterator[None]:
    """Raises errors that the caller can act on as sentences."""
    try:
        yield
    except PlaygroundError as problem:
        raise gr.Error(str(problem), print_exception=False) from None


ASKING = {
    "id": "What a start returned, or `experiments` lists.",
    "wait_s": f"A number from 0 to {MOST_WAIT_S}; seconds to wait for its end. 0 answers at once.",
    "whole": "True or false; false leaves out the result with its rows, and keeps the findings.",
    "search": "Words that must all be in its id, kind, title or status. Empty lists all.",
}


def _described(kind: Kind, pairs: Mapping[str, Pair]) -> dict[str, str]:
    """Describes each parameter in a line: what it takes, and what it is for."""
    drafting = ", ".join(name for name in METHODS if name != "none")
    allowed = {
        "suite": f"one of {', '.join(suites())}",
        "drafters": f"those of the pair, among {drafting}",
        "drafter": f"one that the pair has, among {drafting}",
    }
    described = {"pair": describe("pair", pairs, optional=False)} if kind.pair else {}
    for name, option in options_of(kind.options, "endpoint").items():
        setting = option.setting
        chosen = f"some of {setting.range}" if option.several and setting.choices else setting.allowed
        takes = allowed.get(name) or chosen
        takes += ", or a folder or an id" if option.weighted else ""
        takes = f"several, each {takes}" if option.several and not setting.choices and name not in allowed else takes
        described[name] = f"{takes[0].upper()}{takes[1:]}; {setting.help}."
    return described
