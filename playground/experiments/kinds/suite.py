"""The Suite experiment: many prompts through several drafters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from playground.backends.base import Backend
from playground.experiments.events import Watch
from playground.experiments.journal import append_traces
from playground.experiments.kinds.kind import Kind, OfPrompts, titled
from playground.experiments.kinds.options import (
    AnswerOptions,
    Decoders,
    DraftersOptions,
    OrderOptions,
    PromptOptions,
    RunsOptions,
    ServersOptions,
    TracesOptions,
    TreeOptions,
    option,
)
from playground.lane import Lane
from playground.results import SuiteResult
from playground.settings import PRESET


class SuiteOptions(
    ServersOptions, TracesOptions, OrderOptions, RunsOptions, AnswerOptions, TreeOptions, PromptOptions, DraftersOptions
):
    lookaheads: tuple[int, ...] = option(
        (), "Lookaheads", "a lane for each of these; none takes the preset's", low=1, high=64, one=4,
        places=("terminal",), group="drafting",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Suite(OfPrompts):
    """The work of a Suite experiment. `lanes`: those compared with the baseline."""

    lanes: tuple[Lane, ...]
    skip: bool = False
    traces: str = ""

    def run(self, baseline: Lane, backends: Mapping[str, Backend], watch: Watch) -> SuiteResult | None:
        result = self.run_suite(baseline, backends, watch, skip=self.skip)
        if result and self.traces:
            append_traces(self.traces, result.traces)
        return result


def _work(options: SuiteOptions, on: Decoders) -> tuple[Suite, str]:
    name, questions = options.read()
    settings = {name: getattr(options, name) for name in PRESET if name != "lookahead"}
    lanes = [
        lane
        for lookahead in options.lookaheads or (None,)
        for lane in on.lanes(options.drafters, lookahead=lookahead, **settings)
    ]
    work = Suite(
        pair=on.pair, lanes=tuple(dict.fromkeys(lanes)), questions=questions, runs=options.runs,
        seed=options.order_seed, skip=not options.drafters, baseline=on.baseline, traces=options.traces_file,
    )  # fmt: skip
    return work, titled(name, on.title, lanes, options.max_new_tokens)


KIND = Kind(
    name="suite",
    label="Many prompts",
    does="Measures how much faster each drafter is than standard decoding, over many prompts, with 95 % intervals.",
    exits="0: all prompts ran; 1: some failed",
    options=SuiteOptions,
    work=_work,
    experiment=Suite,
    shared="best",
)
