"""Recommend: which drafter, and how deep, or none?"""

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
)

if TYPE_CHECKING:
    from playground.experiments.work import Recommend


@dataclass(frozen=True)
class RecommendOptions(OrderOptions, AnswerOptions, PromptOptions, DraftersOptions):
    pass


def _work(options: RecommendOptions, on: Decoders) -> tuple[Recommend, str]:
    from playground.experiments.work import Recommend

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
    servers=True,
    varies=lambda options: "lookahead",
)
