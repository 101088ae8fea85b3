"""Suite: many prompts through several drafters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from playground.experiments.kinds.kind import Kind
from playground.experiments.kinds.options import (
    AnswerOptions,
    Decoders,
    DraftersOptions,
    OrderOptions,
    PromptOptions,
    RunsOptions,
    TreeOptions,
    option,
)
from playground.settings import PRESET

if TYPE_CHECKING:
    from playground.experiments.work import Suite


@dataclass(frozen=True)
class SuiteOptions(OrderOptions, RunsOptions, AnswerOptions, TreeOptions, PromptOptions, DraftersOptions):
    lookaheads: tuple[int, ...] = option(
        (), "Lookaheads", "a lane for each of these; none takes the preset's", low=1, high=64, one=4,
        places=("terminal",), group="drafting",
    )  # fmt: skip


def _work(options: SuiteOptions, on: Decoders) -> tuple[Suite, str]:
    from playground.experiments.work import Suite

    name, questions = options.read()
    settings = {name: getattr(options, name) for name in PRESET if name != "lookahead"}
    lanes = [
        lane
        for lookahead in options.lookaheads or (None,)
        for lane in on.lanes(options.drafters, lookahead=lookahead, **settings)
    ]
    work = Suite(
        on.pair, tuple(dict.fromkeys(lanes)), questions, options.runs, options.order_seed, skip=not options.drafters,
        baseline=on.baseline,
    )  # fmt: skip
    return work, f"{name} on {on.title}"


KIND = Kind(
    name="suite",
    does="Measures how much faster each drafter is than standard decoding, over many prompts, with 95 % intervals.",
    intro="One prompt is an anecdote. A suite runs many, through standard decoding and every drafter you choose, in a "
    "shuffled order, and says how sure the speed-up is.",
    hint="Press Run. The examples on the starter take a few minutes; you can close the tab meanwhile, and find it "
    "under History.",
    exits="0: all prompts ran; 1: some failed",
    options=SuiteOptions,
    work=_work,
    servers=True,
)
