"""The long experiments as endpoints for other programs, which `--mcp` serves as tools. They take minutes: one endpoint
for each kind starts one and returns its id, others ask for it by that id, stop it and list them all."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, get_type_hints

import gradio as gr
from anyio import to_thread
from pydantic import Field

from playground import results, validation
from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError, check
from playground.experiments.history import Entry
from playground.experiments.work import Experiment
from playground.lane import LOSSY_RULES
from playground.presets import Pair, load_suites
from playground.results import Axis, Recommendation
from playground.settings import default
from playground.ui.compare.api import add, describe
from playground.ui.experiments import lossless, recommend, suite, sweep
from playground.ui.experiments.prompts import MOST_RUNS, NEW_TOKENS, RUNS
from playground.ui.experiments.service import HZ, Experiments, View
from playground.ui.experiments.tab import Kind
from playground.views import recommend as view_of
from playground.views.sweep import NAMES

MOST_WAIT_S = 300
Wait = Annotated[float, Field(ge=0, le=MOST_WAIT_S)]
Count = Annotated[int, Field(ge=0)]
Runs = Annotated[int, Field(ge=1, le=MOST_RUNS)]


@dataclass(frozen=True)
class Asked:
    """The parameters of every kind, by the names of the tabs' controls."""

    pair: str = default("pair")
    suite: str = "examples"
    prompts: list[str] | None = None
    per_category: Count = 0
    max_new_tokens: int = NEW_TOKENS


@dataclass(frozen=True)
class AskedLossless(Asked):
    drafters: list[str] | None = None
    rules: list[str] | None = None
    draws: Annotated[int, Field(ge=1)] = 2048


@dataclass(frozen=True)
class AskedRecommend(Asked):
    drafters: list[str] | None = None
    temperature: float = default("temperature")
    order_seed: Count = 0


@dataclass(frozen=True)
class AskedSuite(AskedRecommend):
    runs: Runs = RUNS


@dataclass(frozen=True)
class AskedSweep(Asked):
    drafter: str | None = None
    axis: Axis = "lookahead"
    values: list[float] | None = None
    temperature: float = default("temperature")
    order_seed: Count = 0
    runs: Runs = RUNS


@dataclass(frozen=True)
class Tool:
    """What starts one kind. `does`: what it finds out."""

    kind: Kind
    asked: type[Asked]
    work: Callable[[Mapping[str, Pair], Mapping[str, Any]], tuple[Experiment, str]]
    does: str


TOOLS = (
    Tool(
        suite.KIND, AskedSuite, suite.asked_for,
        "Measures how much faster each drafter is than standard decoding, over many prompts, with 95 % intervals.",
    ),
    Tool(
        sweep.KIND, AskedSweep, sweep.asked_for,
        "Measures one setting of a drafter at several values: which is the fastest, and which tie with it.",
    ),
    Tool(
        recommend.KIND, AskedRecommend, recommend.asked_for,
        "Finds out which drafter and lookahead to use for these prompts on this machine, or none; ends in settings of "
        "other engines.",
    ),
    Tool(
        lossless.KIND, AskedLossless, lossless.asked_for,
        "Checks whether the output of each drafter is the target's own, greedy and sampled.",
    ),
)  # fmt: skip
KINDS = {tool.kind.name: tool.kind for tool in TOOLS}


def publish(page: gr.Blocks, experiments: Experiments, pairs: Mapping[str, Pair]) -> None:
    """Adds the endpoints to the page. Visitors of a public link are refused, as on the tabs."""
    told = _told(pairs)
    calls = {tool.kind.name: _start(tool, experiments, pairs) for tool in TOOLS}
    calls |= {call.__name__: call for call in _asking(experiments)}
    for name, call in calls.items():
        # Those that wait for an experiment would keep others out.
        add(page, name, call, {it: told[it] for it in inspect.signature(call).parameters}, concurrency_limit=None)


def _start(tool: Tool, experiments: Experiments, pairs: Mapping[str, Pair]) -> Callable[..., dict]:
    parameters = inspect.signature(tool.asked).parameters

    def start(*values: Any) -> dict:
        with _in_words():
            experiments.allowed()
            asked = validation.read(tool.asked, dict(zip(parameters, values, strict=True)))
            name = experiments.start(*tool.work(pairs, {**vars(asked), "file": None}))
            return _answer(experiments.view(name), whole=False)

    start.__doc__ = f"{tool.does} Takes minutes: returns its id at once, and `experiment` has the result."
    start.__annotations__ = {**get_type_hints(tool.asked), "return": dict}
    start.__signature__ = inspect.Signature([*parameters.values()], return_annotation=dict)  # type: ignore[attr-defined]
    return start


def _asking(experiments: Experiments) -> list[Callable]:
    """The endpoints for experiments that were started."""

    async def experiment(id: str, wait_s: float = 0, whole: bool = True) -> dict:
        """One experiment: its status, how far it is and, once it has ended, what it found, in sentences and as the
        whole result. Of a recommendation, also settings of other engines."""
        with _in_words():
            due = time.monotonic() + validation.read(Wait, wait_s, "wait_s")
            view = await to_thread.run_sync(_view, experiments, id)
            while view.entry.status == "running" and time.monotonic() < due:
                await asyncio.sleep(1 / HZ)
                view = await to_thread.run_sync(_view, experiments, id)
            return await to_thread.run_sync(_answer, view, whole)

    def stop_experiment(id: str) -> dict:
        """Stops an experiment. What was finished stays."""
        with _in_words():
            view = _view(experiments, id)
            experiments.stop(id)
            return _answer(view, whole=False)

    def all_experiments(search: str = "") -> list[dict]:
        """All experiments of this machine, the newest first."""
        with _in_words():
            experiments.allowed()
            return [_listed(entry) for entry in experiments.entries(search) if entry.kind in KINDS]

    all_experiments.__name__ = "experiments"
    return [experiment, stop_experiment, all_experiments]


def _view(experiments: Experiments, name: str) -> View:
    experiments.allowed()
    known = {entry.id for entry in experiments.entries() if entry.kind in KINDS}
    check(name in known, f"There is no experiment {name!r}. `experiments` lists them all.")
    return experiments.view(name)


def _answer(view: View, whole: bool) -> dict[str, Any]:
    result, kind = view.result, KINDS[view.entry.kind]
    answer = {
        **_listed(view.entry),
        "left_s": view.done[-1].left_s if view.done and view.entry.status == "running" else None,
        "findings": kind.findings(result) if result else [],
    }
    if isinstance(result, Recommendation) and result.lane:
        answer["settings"] = [asdict(it) for it in view_of.settings(result)]
    if whole:
        answer["result"] = results.to_json(result) if result else None
    return answer


def _listed(entry: Entry) -> dict[str, Any]:
    names = ("id", "kind", "title", "status", "created", "updated", "fraction", "note")
    return {name: getattr(entry, name) for name in names}


@contextmanager
def _in_words() -> Iterator[None]:
    """What a caller can act on reaches it as a sentence."""
    try:
        yield
    except PlaygroundError as problem:
        raise gr.Error(str(problem), print_exception=False) from None


def _told(pairs: Mapping[str, Pair]) -> dict[str, str]:
    """A line on each parameter."""
    drafting = ", ".join(name for name in METHODS if name != "none")
    return {
        "pair": describe("pair", pairs, optional=False),
        "suite": f"One of {', '.join(load_suites()[0])}; which prompts.",
        "prompts": "Texts; your own prompts in place of the suite. None uses the suite.",
        "per_category": "A whole number from 0; at most so many prompts of each category of the suite. 0 takes all.",
        "max_new_tokens": describe("max_new_tokens", (), optional=False),
        "temperature": describe("temperature", (), optional=False),
        "drafters": f"Those of the pair, among {drafting}; each is one lane. None takes all that the pair has.",
        "drafter": f"One that the pair has, among {drafting}; what drafts. None uses the pair's own.",
        "axis": f"One of {', '.join(NAMES)}; the setting that takes several values.",
        "values": "Numbers within the setting's bounds; lookahead 0 is no drafter. None takes some over its range.",
        "rules": f"Some of {', '.join(LOSSY_RULES)}; adds lanes that are wrong on purpose, which the check must fail. "
        "None adds none.",
        "draws": "A whole number from 1; tokens to sample with each lane.",
        "runs": f"A whole number from 1 to {MOST_RUNS}; runs of each prompt in each lane, of which the median counts.",
        "order_seed": "A whole number from 0; seed of the lanes' shuffled order.",
        "id": "What a start returned, or `experiments` lists.",
        "wait_s": f"A number from 0 to {MOST_WAIT_S}; seconds to wait for its end. 0 answers at once.",
        "whole": "True or false; false leaves out the result with its rows, and keeps the findings.",
        "search": "Words that must all be in its id, kind, title or status. Empty lists all.",
    }
