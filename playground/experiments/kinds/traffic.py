"""The Traffic experiment: does speculation pay on the conversations of a log?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from playground.backends.base import Backend
from playground.errors import check
from playground.experiments import traffic_log
from playground.experiments.events import Watch
from playground.experiments.kinds.kind import Kind, OfPrompts, on_record, record_at, titled
from playground.experiments.kinds.options import (
    ANSWER,
    AnswerOptions,
    Decoders,
    DraftersOptions,
    OrderOptions,
    RunsOptions,
    TreeOptions,
    option,
)
from playground.experiments.questions import Question
from playground.lane import Lane
from playground.presets import Pair
from playground.results import SuiteResult, TrafficResult
from playground.settings import PRESET


@dataclass(frozen=True)
class TrafficOptions(OrderOptions, RunsOptions, AnswerOptions, TreeOptions, DraftersOptions):
    log: str = option("", "Log", "conversations as JSON or JSON lines: messages, or ShareGPT's form", positional=True)
    sample: int = option(0, "Sample", "assistant turns to decode, spread evenly; 0 for all", folded=True)
    estimate: bool = option(True, "Estimate first", "acceptance over the logged answers, without decoding", folded=True)
    texts: bool = option(True, "Texts", "whether the report may show what was asked", folded=True)
    on_error: Literal["stop", "skip"] = option(
        "skip", "Broken lines", "what a broken line of the log does", choices={"stop": "Stop", "skip": "Skip"},
        folded=True,
    )  # fmt: skip
    runs: int = option(1, "Runs", "runs of each turn in each lane", low=1, high=100, folded=True)

    def read(self) -> traffic_log.Log:
        """Reads the log.

        Raises:
            PlaygroundError: the log cannot be read, holds no turn, or has a broken line that is not to be skipped.
        """
        check(bool(self.log.strip()), f"Give a log of conversations. {traffic_log.FORMS}")
        settings: dict[str, Any] = {name: getattr(self, name) for name in ANSWER}
        return traffic_log.load(self.log, settings, self.on_error)

    def broken_lines(self) -> list[str]:
        return list(self.read().problems)


@dataclass(frozen=True)
class Traffic(OfPrompts):
    """The work of a Traffic experiment. `turns`: all turns of the log. `questions`: the turns that are decoded."""

    pair: Pair | None
    lanes: tuple[Lane, ...]
    questions: tuple[Question, ...]
    turns: tuple[traffic_log.Turn, ...]
    conversations: int
    skipped: tuple[str, ...] = ()
    estimate: bool = True
    texts: bool = True
    runs: int = 1
    seed: int = 0
    record: str = ""
    baseline: Lane | None = None

    @property
    def tokens(self) -> int:
        return self.runs * (1 + len(self.lanes)) * self.answer_tokens

    def run(self, baseline: Lane, backends: Mapping[str, Backend], watch: Watch) -> TrafficResult | None:
        from playground.experiments import traffic  # importing it loads torch

        return traffic.run(
            baseline, self.lanes, self.turns, self.questions, backends, watch, conversations=self.conversations,
            skipped=self.skipped, estimate=self.estimate, texts=self.texts, runs=self.runs, seed=self.seed,
            record=record_at(self.record),
        )  # fmt: skip

    def so_far(self) -> SuiteResult | None:
        return on_record(self.record)


def _work(options: TrafficOptions, on: Decoders) -> tuple[Traffic, str]:
    log = options.read()
    settings = {name: getattr(options, name) for name in PRESET if name != "lookahead"}
    lanes = on.lanes(options.drafters, **settings)
    work = Traffic(
        on.pair,
        lanes,
        tuple(turn.question for turn in traffic_log.spread(log.turns, options.sample)),
        log.turns if options.estimate else (),
        log.conversations,
        log.problems,
        options.estimate,
        options.texts,
        options.runs,
        options.order_seed,
        baseline=on.baseline,
    )
    name = "a log" if options.log.lstrip().startswith(("{", "[")) else Path(options.log).name
    return work, titled(name, on.title, lanes, options.max_new_tokens)


KIND = Kind(
    name="traffic",
    label="Your own logs",
    does="Generates every assistant turn of a log of conversations again, and says whether speculation pays on them.",
    intro="Does speculation pay on your traffic? Each assistant's turn of your log is generated again under its real "
    "history, by every drafter you choose. Nothing leaves this machine.",
    hint="Choose a log and press Run. A log is JSON or JSON lines, of OpenAI's messages or in ShareGPT's form.",
    exits="0: all turns ran; 1: some failed, or a line was skipped",
    options=TrafficOptions,
    work=_work,
    experiment=Traffic,
    servers=True,
)
