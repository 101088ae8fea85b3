"""The Acceptance experiment: what would a better drafter gain on this machine?

It measures speed-up over acceptance, with the real drafter as one point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from playground.backends.base import Backend
from playground.errors import check
from playground.experiments import suite
from playground.experiments.events import Watch
from playground.experiments.kinds.kind import Kind, OfPrompts, on_record, record_at
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
from playground.lane import Lane, synthetic, together
from playground.presets import Pair
from playground.results import AcceptanceResult
from playground.settings import PRESET


@dataclass(frozen=True)
class AcceptanceOptions(OrderOptions, RunsOptions, AnswerOptions, DraftingOptions, PromptOptions):
    drafter: str | None = option(None, "Drafter", "the drafting method", group="drafting")
    rates: tuple[float, ...] = option(
        (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), "Rates", "chances to accept a draft token if those before it were",
        low=0, high=1, group="drafting",
    )  # fmt: skip


@dataclass(frozen=True)
class Acceptance(OfPrompts):
    """The work of an Acceptance experiment. `lane`: the drafter. `rates`: a lane with forced acceptance runs for
    each."""

    pair: Pair
    lane: Lane
    rates: tuple[float, ...]
    questions: tuple[Question, ...]
    runs: int = 1
    seed: int = 0
    record: str = ""

    @property
    def lanes(self) -> Sequence[Lane]:
        return [self.lane, *(synthetic(self.lane, [rate]) for rate in self.rates)]

    @property
    def tokens(self) -> int:
        return (1 + self.runs * (1 + len(self.lanes))) * self.answer_tokens

    def run(self, baseline: Lane, backends: Mapping[str, Backend], watch: Watch) -> AcceptanceResult | None:
        result = suite.run(
            baseline, self.lanes, self.questions, backends, watch,
            runs=self.runs, seed=self.seed, record=record_at(self.record),
        )  # fmt: skip
        return AcceptanceResult(result) if result else None

    def so_far(self) -> AcceptanceResult | None:
        result = on_record(self.record)
        return AcceptanceResult(result) if result else None


def _work(options: AcceptanceOptions, on: Decoders) -> tuple[Acceptance, str]:
    assert on.pair, "of a pair alone"
    name, questions = options.read()
    drafter = options.drafter or on.pair.drafter
    check(drafter != "none", "Standard decoding drafts nothing that could be accepted. Choose a drafter.")
    check(len(set(options.rates)) == len(options.rates) > 0, "Give one rate or more, each once.")
    (lane,) = on.lanes((drafter,), **{name: getattr(options, name) for name in PRESET})
    work = Acceptance(on.pair, lane, options.rates, questions, options.runs, options.order_seed)
    return work, f"Acceptance of {together([lane])} on {on.title}: {name}"


KIND = Kind(
    name="acceptance",
    label="Drafter or machine?",
    does="Draws speed-up over acceptance for a drafter on this machine, and puts the measured point on the curve.",
    intro="Is the drafter too often wrong, or is the machine the limit? Here verdicts are drawn at fixed rates while "
    "drafting and verification run as always. The curve belongs to the machine, the measured point on it to the "
    "drafter.",
    hint="Press Run. All points but the measured one are synthetic.",
    exits="0: all prompts ran; 1: some failed",
    options=AcceptanceOptions,
    work=_work,
    experiment=Acceptance,
)
