"""Sweep: one setting of a drafter over several values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from playground.backends.base import Backend
from playground.experiments import sweep
from playground.experiments.kinds.kind import Kind
from playground.experiments.kinds.of_prompts import OfPrompts, on_record, record_at
from playground.experiments.kinds.options import (
    AnswerOptions,
    Decoders,
    DraftingOptions,
    OrderOptions,
    PromptOptions,
    RunsOptions,
    option,
)
from playground.experiments.questions import Question
from playground.experiments.watch import Watch
from playground.lane import AXES, Axis, Lane
from playground.presets import Pair
from playground.results import SweepResult
from playground.settings import PRESET, SWEPT

DEFAULTS = {**SWEPT, "prompt_tokens": (128, 512, 1024, 2048)}


@dataclass(frozen=True)
class SweepOptions(OrderOptions, RunsOptions, AnswerOptions, DraftingOptions, PromptOptions):
    drafter: str | None = option(None, "Drafter", "what drafts", group="drafting")
    axis: Axis = option(
        "lookahead",
        "Setting",
        "which takes several values",
        choices=AXES,
        flag="over",
    )
    values: tuple[float, ...] = option(
        (), "Values", "of the setting; lookahead 0 is no drafter; none takes some over its range",
        by=("axis", DEFAULTS),
    )  # fmt: skip


@dataclass(frozen=True)
class Sweep(OfPrompts):
    pair: Pair | None
    lane: Lane
    axis: Axis
    values: tuple[float, ...]
    questions: tuple[Question, ...]
    runs: int = 1
    seed: int = 0
    record: str = ""
    baseline: Lane | None = None

    @property
    def lanes(self) -> Sequence[Lane]:
        return sweep.lanes_of(self.lane, self.axis, self.values)

    @property
    def tokens(self) -> int:
        times = 1 if self.axis in sweep.OF_LANES else len(self.values)
        return self.runs * times * (1 + len(self.lanes)) * self.answer_tokens

    def run(self, baseline: Lane, backends: Mapping[str, Backend], watch: Watch) -> SweepResult | None:
        return sweep.run(
            baseline, self.lane, self.axis, self.values, self.questions, backends, watch,
            runs=self.runs, seed=self.seed, record=record_at(self.record),
        )  # fmt: skip

    def so_far(self) -> SweepResult | None:
        result = on_record(self.record)
        return sweep.sweep_result(self.axis, self.values, self.lanes, result) if result else None


def _work(options: SweepOptions, on: Decoders) -> tuple[Sweep, str]:
    name, questions = options.read()
    drafter = (options.drafter,) if options.drafter else ((on.pair.drafter,) if on.pair else ())
    (lane,) = on.lanes(drafter, **{name: getattr(options, name) for name in PRESET})
    if options.axis == "lookahead" and not options.policy:
        lane = replace(lane, policy="constant")  # under another it is a bound, not the length of the drafts
    values = options.values or DEFAULTS[options.axis]
    sweep.lanes_of(lane, options.axis, values)  # raises here and not in the middle
    work = Sweep(on.pair, lane, options.axis, values, questions, options.runs, options.order_seed, baseline=on.baseline)
    return work, f"{AXES[options.axis].capitalize()} of {lane.drafter} on {on.title}, {name}"


KIND = Kind(
    name="sweep",
    does="Measures one setting of a drafter at several values: which is the fastest, and which tie with it.",
    intro="How many tokens should be drafted at a time? A sweep tries every value on the same prompts and marks the "
    "best.",
    hint="Press Run. Lookahead 0 is no drafter, so that drafting has to earn its place.",
    exits="0: all prompts ran; 1: some failed",
    options=SweepOptions,
    work=_work,
    experiment=Sweep,
    servers=True,
    varies=lambda options: options.axis,
)
