"""Is a lane lossless? Greedy outputs are compared with standard decoding's, token for token; sampled tokens are tested
against the distribution that the target gives them in a pass of its own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from playground import metrics
from playground.backends.base import Backend
from playground.backends.local import LocalBackend
from playground.experiments import suite
from playground.experiments.events import Progress
from playground.experiments.questions import Question
from playground.experiments.record import Record
from playground.experiments.watch import Watch
from playground.lane import JOINT, LOCAL, Lane, samples_drafts, verified_by
from playground.results import STANDARD, Differing, LaneCheck, LosslessResult, SuiteResult
from playground.settings import SAMPLING, SETTINGS, default
from playground.trace import DraftToken, Trace

Asked = tuple[int, int]  # a question and a turn


def asked(questions: Sequence[Question], temperature: float, draws: int) -> list[Question]:
    """The questions greedily, then as many sampled ones, each with a seed of its own, as give so many tokens if all
    answers are long. All tokens can be sampled: top-p and the like cut nothing."""
    greedy = {name: default(name) for name in SAMPLING if not SETTINGS[name].greedy}
    whole = [replace(each, request=replace(each.request, **greedy)) for each in questions]
    sampled = -(-draws // questions[0].request.max_new_tokens)
    return whole + [
        Question(each.category, replace(each.request, temperature=temperature, seed=seed))
        for seed, each in zip(range(sampled), itertools.cycle(whole), strict=False)
    ]


def run(
    baseline: Lane,
    lanes: Sequence[Lane],
    questions: Sequence[Question],
    backends: Mapping[str, Backend],
    watch: Watch,
    *,
    temperature: float = 1.0,
    draws: int = 2048,
    record: Record | None = None,
) -> LosslessResult | None:
    """As `suite.run`; None if it was stopped.

    Args:
        lanes: of the backend in this process, each with a label of its own.
        temperature: of the sampled answers.
        draws: how many tokens to sample with each lane, at most.

    Raises:
        PlaygroundError: as `suite.run`, or no question could be run.
    """
    backend = backends[LOCAL]
    assert isinstance(backend, LocalBackend)
    ask = asked(questions, temperature, draws)
    result = suite.run(baseline, lanes, ask, backends, watch, record=record)
    if result is None or watch.stopped():
        return None
    suite.check_ran(result)
    watch.emit(Progress("Checking against the target"))
    names = dict.fromkeys(row.lane for row in result.rows)
    greedy = {name: _traces(result, name, range(len(questions))) for name in names}
    sampled = {name: _traces(result, name, range(len(questions), len(ask))) for name in names}
    return LosslessResult(
        environment=result.environment,
        request=ask[-1].request,
        lanes=tuple(lanes),
        checks=tuple(_check(name, greedy[STANDARD], greedy[name], sampled[name], backend) for name in names),
        prompts=result.prompts[: len(questions)],
        failures=result.failures,
    )


def _traces(result: SuiteResult, lane: str, questions: range) -> dict[Asked, Trace]:
    rows = zip(result.rows, result.traces, strict=True)
    return {(row.question, row.turn): trace for row, trace in rows if row.lane == lane and row.question in questions}


def _check(
    lane: str,
    standard: Mapping[Asked, Trace],
    answers: Mapping[Asked, Trace],
    sampled: Mapping[Asked, Trace],
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
    """Those of a lane in this process, which reports them all."""
    return [id_ for id_ in ids or () if id_ is not None]
