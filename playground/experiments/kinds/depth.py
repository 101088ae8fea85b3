"""Depth: how far into a long context does speculation pay?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from playground.backends.base import Backend
from playground.experiments import depth
from playground.experiments.kinds.kind import Kind
from playground.experiments.kinds.of_prompts import OfPrompts, on_record, record_at
from playground.experiments.kinds.options import (
    ANSWER,
    AnswerOptions,
    Decoders,
    DraftingOptions,
    RunsOptions,
    option,
)
from playground.experiments.questions import Question
from playground.experiments.watch import Watch
from playground.lane import Lane, Request, together
from playground.presets import Pair
from playground.results import DepthResult
from playground.settings import PRESET


@dataclass(frozen=True)
class DepthOptions(RunsOptions, AnswerOptions, DraftingOptions):
    drafter: str | None = option(None, "Drafter", "what drafts", group="drafting")
    until: int = option(2048, "Context", "tokens of context at the end", low=256, high=2**20)
    steps: int = option(8, "Turns", "turns in which the context grows to its end", low=2, high=64)
    runs: int = option(1, "Runs", "runs of each turn in each lane", low=1, high=100, folded=True)


@dataclass(frozen=True)
class Depth(OfPrompts):
    """`request`: how each turn is answered; the documents are its prompts."""

    pair: Pair | None
    lane: Lane
    request: Request
    until: int
    steps: int
    runs: int = 1
    record: str = ""
    baseline: Lane | None = None

    @property
    def questions(self) -> tuple[Question, ...]:  # type: ignore[override]
        """Of so many turns; their text is found when it runs."""
        return (Question("depth", self.request, (self.request.prompt,) * (self.steps - 1)),)

    @property
    def lanes(self) -> Sequence[Lane]:
        return (self.lane,)

    @property
    def tokens(self) -> int:
        return 2 * self.runs * self.answer_tokens

    def run(self, baseline: Lane, backends: Mapping[str, Backend], watch: Watch) -> DepthResult | None:
        return depth.run(
            baseline, self.lane, self.request, self.until, self.steps, backends, watch,
            runs=self.runs, record=record_at(self.record),
        )  # fmt: skip

    def so_far(self) -> DepthResult | None:
        found = on_record(self.record)
        return depth.depth_result(found, self.until, self.steps) if found and found.rows else None


def _work(options: DepthOptions, on: Decoders) -> tuple[Depth, str]:
    drafter = (options.drafter,) if options.drafter else ((on.pair.drafter,) if on.pair else ())
    (lane,) = on.lanes(drafter, **{name: getattr(options, name) for name in PRESET})
    settings: dict[str, Any] = {name: getattr(options, name) for name in ANSWER}
    request = replace(Request("…", **settings), prefix_cache=True)
    work = Depth(on.pair, lane, request, options.until, options.steps, options.runs, baseline=on.baseline)
    return work, f"{together([lane])} to {options.until:,} tokens of context on {on.title}"


KIND = Kind(
    name="depth",
    label="Depth of a conversation",
    does="Measures a drafter over the depth of the context, in one conversation that grows, and says where it stops "
    "paying.",
    intro="Does speculation still pay deep in a context? One conversation grows turn by turn; acceptance, tokens per "
    "pass, the cost of a pass and the speed-up are shown against the tokens before them.",
    hint="Press Run. All depths together cost one conversation: the cache of the earlier turns is kept.",
    exits="0: it ran to the end",
    options=DepthOptions,
    work=_work,
    experiment=Depth,
    servers=True,
)
