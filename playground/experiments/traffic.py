"""Does speculation pay on a log of conversations?

Before anything is decoded, the acceptance of drafters that read tokens or hidden states is estimated over the logged
answers; the decoded turns then show how far the estimate is off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from playground import metrics, ranked
from playground.backends.base import Backend
from playground.backends.local import LocalBackend
from playground.errors import PlaygroundError, Stopped
from playground.experiments import suite
from playground.experiments.events import Progress, Watch
from playground.experiments.questions import Question
from playground.experiments.record import Record
from playground.experiments.traffic_log import Turn
from playground.lane import LOCAL, Lane, label, together
from playground.metrics.estimate import Counts, add_counts
from playground.results import STANDARD, Estimated, LaneDepths, SuiteResult, TrafficResult
from playground.trace import Trace


def run(
    baseline: Lane,
    lanes: Sequence[Lane],
    turns: Sequence[Turn],
    questions: Sequence[Question],
    backends: Mapping[str, Backend],
    watch: Watch,
    *,
    conversations: int,
    skipped: Sequence[str] = (),
    estimate: bool = True,
    texts: bool = True,
    runs: int = 1,
    seed: int = 0,
    record: Record | None = None,
) -> TrafficResult | None:
    """Estimates acceptance, then decodes the questions like `suite.run`; None if it was stopped before a turn was
    decoded.

    Args:
        turns: the turns of the log over which acceptance is estimated.
        questions: those of the turns that are decoded.
        conversations: how many the log has.
        skipped: a sentence for each entry that was left out.
        estimate: whether to estimate first.
        texts: whether the result may hold the texts of the log.
    """
    try:
        counts = _estimates(lanes, turns, backends, watch) if estimate else {}
    except Stopped:
        return None
    found = suite.run(baseline, lanes, questions, backends, watch, runs=runs, seed=seed, skip=True, record=record)
    if found is None:
        return None
    suite.check_ran(found)
    return traffic_result(found, counts, len(turns) or len(questions), conversations, skipped, texts=texts)


def traffic_result(
    found: SuiteResult,
    counts: Mapping[str, Counts],
    turns: int,
    conversations: int,
    skipped: Sequence[str],
    *,
    texts: bool,
) -> TrafficResult:
    """Returns the result of a log: its suite by depth, the verdict, and the estimates by the lanes' labels."""
    names = list(dict.fromkeys(row.lane for row in found.rows))
    best = next(it for it in ranked.rank(found.rows) if it.lane != STANDARD)
    in_lane: dict[str, list[Trace]] = {name: [] for name in names}
    for trace in found.traces:
        in_lane[label(trace.lane) if trace.lane in found.lanes else STANDARD].append(trace)
    depths = [LaneDepths(name, tuple(metrics.by_depth(traces))) for name, traces in in_lane.items()]
    estimates = [
        Estimated(name, it, it.tokens_per_pass, found.of(name).mean_accepted_length if name in names else None)
        for name, it in counts.items()
    ]
    return TrafficResult(
        suite=found if texts else _without_texts(found),
        conversations=conversations,
        turns=turns,
        best=best.lane,
        speedup=best.speedup,
        interval=best.interval,
        depths=tuple(depths),
        estimates=tuple(estimates),
        skipped=tuple(skipped if texts else (sentence.partition(": ")[0] for sentence in skipped)),
    )


def _without_texts(found: SuiteResult) -> SuiteResult:
    blank = replace(found.request, prompt="…", history=(), system="", tools="")
    return replace(found, request=blank, prompts=(), traces=())


def _estimates(
    lanes: Sequence[Lane], turns: Sequence[Turn], backends: Mapping[str, Backend], watch: Watch
) -> dict[str, Counts]:
    """Estimates each lane that decodes greedily in this process and whose drafts can be made at all positions at
    once."""
    found: dict[str, Counts] = {}
    for number, lane in enumerate(lanes):
        backend = backends[lane.backend]
        if lane.backend != LOCAL or not isinstance(backend, LocalBackend) or not turns[0].question.request.greedy:
            continue
        try:
            backend.load(lane, watch.progress)
        except PlaygroundError:
            continue  # the suite leaves it out, and says why
        of_turns = []
        for at, turn in enumerate(turns):
            part = (number + at / len(turns)) / len(lanes)
            watch.progress(Progress(f"Estimating {together([lane])} on turn {at + 1} of {len(turns)}", part))
            try:
                counts = backend.estimated(lane, turn.question.request, turn.answer)
            except PlaygroundError:
                continue  # too long, or refused by the template; decoding it reports that
            if counts is None:
                break
            of_turns.append(counts)
        if of_turns:
            found[label(lane)] = add_counts(of_turns)
    return found
