"""Lossless: is the output the target's own?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from playground.backends.base import Backend
from playground.experiments.kinds.kind import Kind
from playground.experiments.kinds.of_prompts import OfPrompts, on_record, record_at
from playground.experiments.kinds.options import (
    Decoders,
    DraftersOptions,
    DraftingOptions,
    PromptOptions,
    WholeAnswerOptions,
    option,
)
from playground.experiments.questions import Question
from playground.experiments.watch import Watch
from playground.lane import LOSSY_RULES, Lane, Rule, fits, lossy
from playground.presets import Pair
from playground.results import LosslessResult, SuiteResult
from playground.settings import PRESET


@dataclass(frozen=True)
class LosslessOptions(WholeAnswerOptions, DraftingOptions, PromptOptions, DraftersOptions):
    rules: tuple[Rule, ...] = option(
        (), "Wrong on purpose", "adds deliberately lossy lanes, which the check should fail",
        choices=LOSSY_RULES, flag="rule", folded=True, group="what is tested",
    )  # fmt: skip
    draws: int = option(2048, "Draws", "tokens to sample with each lane", low=1, folded=True, group="what is tested")
    sampled_at: float = option(
        1.0, "Temperature", "temperature of the sampled answers", low=0.01, high=10, places=("terminal",),
        flag="temperature", group="what is tested",
    )  # fmt: skip


@dataclass(frozen=True)
class Lossless(OfPrompts):
    pair: Pair
    lanes: tuple[Lane, ...]
    questions: tuple[Question, ...]
    temperature: float = 1.0
    draws: int = 2048
    record: str = ""

    @property
    def tokens(self) -> int:
        return (1 + len(self.lanes)) * (self.answer_tokens + self.draws)

    def run(self, baseline: Lane, backends: Mapping[str, Backend], watch: Watch) -> LosslessResult | None:
        from playground.experiments import lossless  # it loads torch

        return lossless.run(
            baseline, self.lanes, self.questions, backends, watch,
            temperature=self.temperature, draws=self.draws, record=record_at(self.record),
        )  # fmt: skip

    def so_far(self) -> SuiteResult | None:
        """Whether the greedy outputs are identical; what differs is checked at the end."""
        return on_record(self.record, len(self.questions))


def _work(options: LosslessOptions, on: Decoders) -> tuple[Lossless, str]:
    assert on.pair, "of a pair alone"
    name, questions = options.read()
    exact = on.lanes(options.drafters, **{name: getattr(options, name) for name in PRESET})
    wrong = [lossy(lane, rule) for lane in exact for rule in options.rules if fits(lane, rule)]
    work = Lossless(on.pair, (*exact, *wrong), questions, options.sampled_at, options.draws)
    return work, f"{name} on {on.title}"


KIND = Kind(
    name="lossless",
    does="Checks whether the output of each drafter is the target's own, greedy and sampled.",
    intro="Speculative decoding promises the model's own output. This checks the promise for your models: greedy "
    "outputs token for token, sampled ones by a test of their distribution.",
    hint="Press Run. To see the check fail, add a rule that is wrong on purpose under Advanced.",
    exits="0: all lanes passed; 1: one is not lossless",
    options=LosslessOptions,
    work=_work,
    experiment=Lossless,
)
