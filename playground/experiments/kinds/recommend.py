"""The Recommend experiment: which drafter and which lookahead, or none, for these prompts on this machine?

It has three stages, so that time goes to the likely winners: all drafters of the pair are screened with short answers;
the best few are refined over lookaheads, with repeats; the chosen one runs again. Only the last stage gives the
reported speed-up and decides whether to draft at all: the best of many noisy figures is too high (the winner's curse),
and fresh runs are not. Where lanes are chosen among many, their intervals hold simultaneously (Bonferroni), so that
more candidates do not make more false gains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from playground import results
from playground.backends.base import Backend
from playground.experiments import suite
from playground.experiments.events import Watch
from playground.experiments.kinds.kind import Kind, OfPrompts, from_journal, titled
from playground.experiments.kinds.options import (
    AnswerOptions,
    Decoders,
    DraftersOptions,
    OrderOptions,
    PromptOptions,
    ServersOptions,
)
from playground.experiments.questions import Question
from playground.lane import Lane, at_lookahead, label
from playground.results import Recommendation, SuiteResult

LOOKAHEADS = (2, 4, 8)  # the pair's own lookahead replaces the nearest of them
KEPT = 2  # how many drafters are refined
REFINING, CONFIRMING = 2, 3  # runs of each prompt
STAGES = ("Screening", "Refining", "Confirming")


class RecommendOptions(ServersOptions, OrderOptions, AnswerOptions, PromptOptions, DraftersOptions):
    pass


@dataclass(frozen=True, kw_only=True)
class Recommend(OfPrompts):
    """The work of a Recommend experiment. `lanes`: one for each drafter."""

    lanes: tuple[Lane, ...]

    @property
    def tokens(self) -> int:
        return int(sum(costs(len(self.lanes))) * self.answer_tokens)

    def run(self, baseline: Lane, backends: Mapping[str, Backend], watch: Watch) -> Recommendation:
        """Runs the three stages.

        Raises:
            Stopped: it was stopped.
            PlaygroundError: see `suite.run`; or no prompt could be run.
        """
        watches, records = watch.parts(costs(len(self.lanes)), STAGES), self._records()

        def stage(number: int, lanes: Sequence[Lane], questions: Sequence[Question], runs: int) -> SuiteResult:
            found = suite.run(
                baseline, lanes, questions, backends, watches[number],
                runs=runs, seed=self.seed + number, skip=number == 0, record=records[number],
            )  # fmt: skip
            return suite.whole(found, watch)

        screened = stage(0, self.lanes, [_shorter(question) for question in self.questions], 1)
        deeper = [lane for best in _fastest(screened)[:KEPT] for lane in _lookaheads(best)]
        refined = stage(1, deeper, self.questions, REFINING)
        ties = [it for it in results.rank(refined.rows) if it.ties]
        gains = {it.lane for it in ties if it.gains}
        able = [lane for lane in refined.lanes if label(lane) in gains]
        tested = min(able, key=lambda lane: lane.lookahead, default=_fastest(refined)[0])
        confirmed = stage(2, [tested], self.questions, CONFIRMING)
        return Recommendation(
            lane=tested if results.rank(confirmed.rows)[0].gains else None,
            tested=tested,
            method=self.pair.drafts_by(tested.drafter) if self.pair else None,
            ties=tuple(it.lane for it in ties),
            screened=screened,
            refined=refined,
            confirmed=confirmed,
        )

    def so_far(self) -> SuiteResult | None:
        """Returns the last stage that has a finished question. The choice is made at the end."""
        return next(filter(None, map(from_journal, reversed(self._records()))), None)

    def _records(self) -> list[str]:
        """Returns the paths of the records of the three stages."""
        return [str(Path(self.record).with_suffix(f".{i}.jsonl")) if self.record else "" for i in (1, 2, 3)]


def costs(lanes: int) -> tuple[float, float, float]:
    """Returns how often each stage decodes each prompt, in full answers, if so many drafters are screened."""
    return (1 + lanes) / 4, (1 + min(KEPT, lanes) * len(LOOKAHEADS)) * REFINING, 2 * CONFIRMING


def _shorter(question: Question) -> Question:
    """Returns a question with a quarter of the answer to the first turn, which shows which drafters are slow."""
    request = question.request
    return Question(question.category, replace(request, max_new_tokens=max(8, request.max_new_tokens // 4)))


def _fastest(result: SuiteResult) -> list[Lane]:
    return sorted(result.lanes, key=lambda lane: -result.of(label(lane)).overall)


def _lookaheads(lane: Lane) -> list[Lane]:
    nearest = min(LOOKAHEADS, key=lambda k: abs(math.log(k / lane.lookahead)))
    return [at_lookahead(lane, k) for k in sorted({*LOOKAHEADS} - {nearest} | {lane.lookahead})]


def _work(options: RecommendOptions, on: Decoders) -> tuple[Recommend, str]:
    name, questions = options.read(turns=1)
    lanes = on.lanes(options.drafters)
    work = Recommend(pair=on.pair, lanes=lanes, questions=questions, seed=options.order_seed, baseline=on.baseline)
    return work, titled(name, on.title, lanes, options.max_new_tokens)


KIND = Kind(
    name="recommend",
    label="Many prompts and lookaheads",
    does="Finds out which drafter and lookahead to use for these prompts on this machine, or none; ends in settings of "
    "other engines.",
    exits="0: there is a recommendation, which may be no drafter",
    options=RecommendOptions,
    work=_work,
    experiment=Recommend,
    shared="best",
    varies=lambda options: "lookahead",
)
