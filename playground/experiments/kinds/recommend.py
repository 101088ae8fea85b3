"""Recommend: which drafter, and how deep, or none?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from playground.backends.base import Backend
from playground.experiments import recommend
from playground.experiments.kinds.kind import Kind
from playground.experiments.kinds.of_prompts import OfPrompts, on_record, record_at
from playground.experiments.kinds.options import (
    AnswerOptions,
    Decoders,
    DraftersOptions,
    OrderOptions,
    PromptOptions,
)
from playground.experiments.questions import Question
from playground.experiments.watch import Watch
from playground.lane import Lane
from playground.presets import Pair
from playground.results import Recommendation, SuiteResult


@dataclass(frozen=True)
class RecommendOptions(OrderOptions, AnswerOptions, PromptOptions, DraftersOptions):
    pass


@dataclass(frozen=True)
class Recommend(OfPrompts):
    pair: Pair | None
    lanes: tuple[Lane, ...]
    questions: tuple[Question, ...]
    seed: int = 0
    record: str = ""
    baseline: Lane | None = None

    @property
    def tokens(self) -> int:
        return int(sum(recommend.costs(len(self.lanes))) * self.answer_tokens)

    def run(self, baseline: Lane, backends: Mapping[str, Backend], watch: Watch) -> Recommendation | None:
        return recommend.run(
            self.pair, baseline, self.lanes, self.questions, backends, watch,
            seed=self.seed, records=[record_at(path) for path in self._stages()],
        )  # fmt: skip

    def so_far(self) -> SuiteResult | None:
        """The last stage that has a finished question; the choice comes at the end."""
        return next(filter(None, map(on_record, reversed(self._stages()))), None)

    def _stages(self) -> list[str]:
        """Their records."""
        return [str(Path(self.record).with_suffix(f".{i}.jsonl")) if self.record else "" for i in (1, 2, 3)]


def _work(options: RecommendOptions, on: Decoders) -> tuple[Recommend, str]:
    name, questions = options.read(turns=1)
    lanes = on.lanes(options.drafters)
    return Recommend(on.pair, lanes, questions, options.order_seed, baseline=on.baseline), f"{name} on {on.title}"


KIND = Kind(
    name="recommend",
    does="Finds out which drafter and lookahead to use for these prompts on this machine, or none; ends in settings of "
    "other engines.",
    intro="Which drafter should you use for your prompts on this machine, how deep, or none? All drafters are "
    "screened, the fastest are tried at several lookaheads, and what is chosen runs again. It ends in settings to "
    "paste.",
    hint="Press Run. The examples on the starter take up to ten minutes; you can close the tab meanwhile, and find it "
    "under History.",
    exits="0: there is a recommendation, which may be no drafter",
    options=RecommendOptions,
    work=_work,
    experiment=Recommend,
    servers=True,
    varies=lambda options: "lookahead",
)
