"""Sweep: one setting of a drafter over several values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from playground.experiments.kinds.kind import Kind
from playground.experiments.kinds.options import (
    AnswerOptions,
    Decoders,
    DraftingOptions,
    OrderOptions,
    PromptOptions,
    RunsOptions,
    option,
)
from playground.lane import AXES, Axis
from playground.settings import PRESET

if TYPE_CHECKING:
    from playground.experiments.work import Sweep

DEFAULTS: dict[Axis, tuple[float, ...]] = {
    "lookahead": (0, 1, 2, 3, 4, 6, 8, 12, 16),
    "nodes": (4, 8, 16, 32, 64),
    "confidence_threshold": (0.0, 0.2, 0.4, 0.6, 0.8),
    "temperature": (0.0, 0.3, 0.7, 1.0),
    "prompt_tokens": (128, 512, 1024, 2048),
}


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


def _work(options: SweepOptions, on: Decoders) -> tuple[Sweep, str]:
    from playground.experiments import sweep
    from playground.experiments.work import Sweep

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
    servers=True,
    varies=lambda options: options.axis,
)
