"""The Lossless experiment: is the output the target's own?

Greedy outputs are compared with standard decoding's, token for token; sampled tokens are tested against the
distribution that the target gives them in a separate pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from playground import metrics
from playground.backends.base import Backend
from playground.experiments import suite
from playground.experiments.events import Event, Progress, PromptDone, Watch
from playground.experiments.kinds.kind import Kind, OfPrompts, on_record, record_at, titled
from playground.experiments.kinds.options import (
    Decoders,
    DraftersOptions,
    DraftingOptions,
    PromptOptions,
    WholeAnswerOptions,
    option,
)
from playground.experiments.questions import Question
from playground.lane import JOINT, LOCAL, LOSSY_RULES, Lane, Rule, fits, lossy, samples_drafts, verified_by
from playground.results import STANDARD, Differing, LaneCheck, LosslessResult, SuiteResult
from playground.settings import PRESET, SAMPLING, SETTINGS, default
from playground.trace import DraftToken, Trace

if TYPE_CHECKING:  # torch would slow every command down
    from playground.backends.local import LocalBackend

ANSWERS = 0.75  # share of the progress; the rest is the check against the target
Turn = tuple[int, int]  # the index of a question and of its turn


class LosslessOptions(WholeAnswerOptions, DraftingOptions, PromptOptions, DraftersOptions):
    draws: int = option(2048, "Draws", "tokens to sample with each lane", low=1, folded=True, group="what is tested")
    rules: tuple[Rule, ...] = option(
        (), "Wrong on purpose", "adds deliberately lossy lanes, which the check should fail",
        choices=LOSSY_RULES, flag="rule", folded=True, group="what is tested",
    )  # fmt: skip
    sampled_at: float = option(
        1.0, "Temperature", "temperature of the sampled answers", low=0.01, high=10, places=("terminal",),
        flag="temperature", group="what is tested",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Lossless(OfPrompts):
    """The work of a Lossless experiment. `lanes`: with distinct labels. `temperature`: of the sampled answers. `draws`:
    the most tokens to sample with each lane."""

    lanes: tuple[Lane, ...]
    temperature: float = 1.0
    draws: int = 2048

    @property
    def tokens(self) -> int:
        return (1 + len(self.lanes)) * (self.answer_tokens + self.draws)

    def run(self, baseline: Lane, backends: Mapping[str, Backend], watch: Watch) -> LosslessResult | None:
        """Runs greedy and sampled questions like `suite.run`, then checks the answers; None if it was stopped.

        Raises:
            PlaygroundError: see `suite.run`; or no question could be run.
        """
        every, first = self._every_question(), len(self.questions)

        def called(number: int, total: int) -> str:
            if number < first:
                return f"Prompt {number + 1} of {first}"
            return f"Sampled answer {number + 1 - first} of {total - first}"

        def emit(event: Event) -> None:
            """Emits progress, scaled to leave a share for the check against the target."""
            if isinstance(event, PromptDone) or (isinstance(event, Progress) and event.fraction):
                event = replace(event, fraction=(event.fraction or 0.0) * ANSWERS)
            watch.emit(event)

        part, record = replace(watch, emit=emit), record_at(self.record)
        result = suite.run(baseline, self.lanes, every, backends, part, record=record, called=called)
        if result is None or watch.stopped():
            return None
        suite.check_ran(result)
        backend = cast("LocalBackend", backends[LOCAL])
        names = [*dict.fromkeys(row.lane for row in result.rows)]
        greedy = {name: _traces(result, name, range(first)) for name in names}
        sampled = {name: _traces(result, name, range(first, len(every))) for name in names}
        checks = []
        for number, name in enumerate(names):
            done = ANSWERS + (1 - ANSWERS) * number / len(names)
            watch.emit(Progress(f"Checking lane {number + 1} of {len(names)} against the target: {name}", done))
            checks.append(_check(name, greedy[STANDARD], greedy[name], sampled[name], backend))
        return LosslessResult(
            environment=result.environment,
            request=every[-1].request,
            lanes=self.lanes,
            checks=tuple(checks),
            prompts=result.prompts[:first],
            failures=result.failures,
        )

    def so_far(self) -> SuiteResult | None:
        """Returns the greedy answers on record, which show whether they are identical. Differences are checked at the
        end."""
        return on_record(self.record, len(self.questions))

    def _every_question(self) -> list[Question]:
        """Returns the greedy questions, then as many sampled ones, each with its own seed, as give `draws` tokens if
        all answers are long. Top-p and the like are off, so that every token can be sampled."""
        greedy = {name: default(name) for name in SAMPLING if not SETTINGS[name].greedy}
        whole = [replace(each, request=replace(each.request, **greedy)) for each in self.questions]
        sampled = -(-self.draws // whole[0].request.max_new_tokens)
        return whole + [
            Question(each.category, replace(each.request, temperature=self.temperature, seed=seed))
            for seed, each in zip(range(sampled), itertools.cycle(whole), strict=False)
        ]


def _traces(result: SuiteResult, lane: str, questions: range) -> dict[Turn, Trace]:
    rows = zip(result.rows, result.traces, strict=True)
    return {(row.question, row.turn): trace for row, trace in rows if row.lane == lane and row.question in questions}


def _check(
    lane: str,
    standard: Mapping[Turn, Trace],
    answers: Mapping[Turn, Trace],
    sampled: Mapping[Turn, Trace],
    backend: LocalBackend,
) -> LaneCheck:
    found = [_differing(*at, standard[at], trace, backend) for at, trace in answers.items()]
    differing = tuple(each for each in found if each)
    places: list[Sequence[DraftToken]] = []
    tokens: list[metrics.Placed] = []
    joint = any(verified_by(trace.lane) in JOINT for trace in sampled.values())
    for trace in sampled.values():
        judged = metrics.judged(trace.rounds, joint=joint)
        drafted = [_ids([token.id for token in each]) for each in judged]
        ids = _ids(trace.token_ids)
        tokens += backend.placed(trace.lane, trace.request, _ids(trace.prompt_ids), ids, drafted)
        places += judged
    tested = tokens if lane == STANDARD or joint else list(itertools.compress(tokens, places))
    samples = any(samples_drafts(trace.lane) for trace in sampled.values())
    return LaneCheck(
        lane=lane,
        outputs=len(answers),
        identical=len(answers) - len(differing),
        differing=differing,
        sampled=len(tokens),
        law=metrics.law_test(tested),
        acceptance=metrics.acceptance_test(places, tokens, samples),
    )


def _differing(question: int, turn: int, standard: Trace, other: Trace, backend: LocalBackend) -> Differing | None:
    first = metrics.first_difference(standard, other)
    if first is None:
        return None
    text = lambda trace: trace.tokens[first.index].text if first.index < len(trace.tokens) else ""  # noqa: E731
    ours, theirs = first.token_ids
    tie = None
    if ours is not None and theirs is not None:
        answer = _ids(standard.token_ids)[: first.index + 1]
        tie = backend.near_tie(standard.lane, standard.request, _ids(standard.prompt_ids), answer, theirs)
    return Differing(question, turn, first.index, text(standard), text(other), tie)


def _ids(ids: Sequence[int | None] | None) -> list[int]:
    """Returns the token ids of a lane in this process, where all are known."""
    return [id_ for id_ in ids or () if id_ is not None]


def _work(options: LosslessOptions, on: Decoders) -> tuple[Lossless, str]:
    assert on.pair, "of a pair alone"
    name, questions = options.read()
    exact = on.lanes(options.drafters, **{name: getattr(options, name) for name in PRESET})
    wrong = [lossy(lane, rule) for lane in exact for rule in options.rules if fits(lane, rule)]
    work = Lossless(
        pair=on.pair, lanes=(*exact, *wrong), questions=questions, temperature=options.sampled_at, draws=options.draws
    )
    return work, titled(name, on.title, exact, options.max_new_tokens)


KIND = Kind(
    name="lossless",
    label="Is the output the same?",
    does="Checks whether the output of each drafter is the target's own, greedy and sampled.",
    intro="Speculative decoding promises the model's own output. This checks the promise for your models: greedy "
    "outputs token for token, sampled ones by a test of their distribution.",
    hint="Press Run. To see the check fail, add a rule that is wrong on purpose under Advanced.",
    exits="0: all lanes passed; 1: one is not lossless",
    options=LosslessOptions,
    work=_work,
    experiment=Lossless,
    room="",
)
