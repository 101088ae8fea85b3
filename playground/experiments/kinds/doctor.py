"""The doctor: is a drafter broken, mismatched, or just weak?

The target answers the prompts. Then the drafter's files are compared with the target's, and its drafts at hundreds of
positions of these answers, made in one pass, are counted: as it is, and read in the other ways that published drafters
are known to need.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from playground.backends.base import Backend
from playground.conversation import THINKING, read_arguments
from playground.drafting_methods import METHODS
from playground.errors import MadeForAnother, PlaygroundError, check
from playground.experiments import suite
from playground.experiments.events import Progress, Watch
from playground.experiments.kinds.kind import Kind, OfPrompts, titled
from playground.experiments.kinds.options import Decoders, PromptOptions, WholeAnswerOptions, option, option_of
from playground.lane import LOCAL, Lane, assisted_lane
from playground.metrics.drafts import Counts, add_counts
from playground.presets import Pair, custom_pair
from playground.results import Diagnosis, Finding, Scored, SuiteResult
from playground.trace import Trace

if TYPE_CHECKING:  # torch would slow every command down
    from playground.backends.local import LocalBackend

ANSWERS = 0.7  # share of the progress; the rest is the scoring
LOOKUPS = ("ngram", "suffix")  # need no weights, and so are what a drafter has to beat


class DoctorOptions(WholeAnswerOptions, PromptOptions):
    drafter: str | None = option(
        None,
        "Drafter",
        "whose weights to examine; also a folder or an id of your own",
        group="drafting",
        weighted=True,
    )
    target: str = option(
        "", "Target", "a folder or an id in place of the models' target", places=("page", "endpoint"), folded=True
    )
    max_new_tokens: int = option_of("max_new_tokens", 128, group="answer", folded=True)  # hundreds of positions in all
    lookahead: int = option(5, "Lookahead", "tokens of each draft", low=1, high=64, folded=True, group="drafting")


@dataclass(frozen=True, kw_only=True)
class Doctor(OfPrompts):
    """The work of the doctor. `lanes`: that of the drafter."""

    lanes: tuple[Lane, ...]

    @property
    def tokens(self) -> int:
        return 2 * self.answer_tokens  # with and without thinking

    def run(self, baseline: Lane, backends: Mapping[str, Backend], watch: Watch) -> Diagnosis:
        """Has the target answer, also with its chat template's switch for thinking turned, then examines the drafter.

        Raises:
            Stopped: it was stopped.
            PlaygroundError: see `suite.run`; or no prompt could be run.
        """
        backend = cast("LocalBackend", backends[LOCAL])
        backend.load(baseline, watch.progress)
        turned = [replace(it, request=other) for it in self.questions if (other := backend.turned(it.request))]
        answering, scoring = watch.parts((ANSWERS, 1 - ANSWERS))
        questions = [*self.questions, *turned]
        answered = suite.whole(suite.run(baseline, [], questions, backends, answering, record=self.record), watch)
        assert self.pair, "of a pair alone"
        return examine(answered, self.pair, self.lanes[0], backend, scoring)

    def so_far(self) -> None:
        """None: the diagnosis is made at the end, of all answers."""


def examine(answered: SuiteResult, pair: Pair, lane: Lane, backend: LocalBackend, watch: Watch) -> Diagnosis:
    """Returns the diagnosis of a drafter by the target's answers, of which those with other template arguments than the
    first one's are apart. `lane`: the drafter's.

    Raises:
        Stopped: it was stopped.
        PlaygroundError: its files cannot be fetched.
    """
    watch.progress(Progress("Reading the drafter's files", 0.0))
    method = pair.drafts_by(lane.drafter) or lane.drafter
    findings, known = backend.check_files(lane), pair.readings.get(method, {})
    scores, chosen = _Scores(), Counter[int]()
    try:
        for number, (row, trace) in enumerate(zip(answered.rows, answered.traces, strict=True)):
            total = len(answered.traces)
            watch.progress(Progress(f"Scoring drafts over answer {number + 1} of {total}", number / total))
            found = _of(backend, lane, trace)
            if not found:
                break
            if trace.request.template != answered.request.template:
                turned = read_arguments(trace.request.template)
                scores.add({_called(turned): (turned, found[0][""][1])}, "template")
                continue
            chosen += found[1]
            scores.add(found[0])
            scores.add({row.category: ({}, found[0][""][1])}, "category")
            for other in LOOKUPS:
                if by := _of(backend, assisted_lane(pair, other, lane.lookahead), trace):
                    scores.add({METHODS[other].label: by[0][""]}, "other")
    except PlaygroundError as error:  # the loader's refusal is a finding
        findings.append(Finding("mismatched" if isinstance(error, MadeForAnother) else "broken", "loading", str(error)))
    found = Diagnosis(
        environment=answered.environment,
        request=answered.request,
        lane=lane,
        method=method,
        prompts=tuple(dict.fromkeys(answered.prompts)),
        findings=tuple(findings),
        readings=tuple(replace(it, override={**known, **it.override}) for it in scores.of("reading")),
        chance=chosen.most_common(1)[0][1] / chosen.total() if chosen else 0.0,
        categories=scores.of("category"),
        others=scores.of("other"),
        failures=answered.failures,
        templates=scores.of("template"),
    )
    shown = any(it.mark in ("broken", "mismatched") for it in found.findings)
    return _with_trials(found, answered, backend, watch) if found.low and not shown else found


def _with_trials(found: Diagnosis, answered: SuiteResult, backend: LocalBackend, watch: Watch) -> Diagnosis:
    """Returns the diagnosis of a drafter that drafts badly with what was tried on it."""
    watch.progress(Progress("Trying to mend the drafter", 1.0))
    asked = [trace for trace in answered.traces if trace.request.template == answered.request.template]
    made = backend.tried(found.lane, [_ids(trace) for trace in asked], watch.stopped)
    return replace(found, trials=made) if made else found


def _called(arguments: Mapping[str, Any]) -> str:
    on = all(value is True for name, value in arguments.items() if name in THINKING)
    return f"the chat template {'with' if on else 'without'} thinking"


def _of(backend: LocalBackend, lane: Lane, trace: Trace) -> Any:
    return backend.under_readings(lane, trace.request, *_ids(trace))


def _ids(trace: Trace) -> tuple[list[int], list[int]]:
    """Returns the ids of a prompt and of its answer."""
    prompt, answer = ([id_ for id_ in ids if id_ is not None] for ids in (trace.prompt_ids or (), trace.token_ids))
    return prompt, answer


class _Scores:
    """Counts by kind of score and by name, added up over answers."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, list[tuple[Mapping[str, Any], Counts]]]] = defaultdict(dict)

    def add(self, scored: Mapping[str, tuple[Mapping[str, Any], Counts]], kind: str = "reading") -> None:
        for name, each in scored.items():
            self._found[kind].setdefault(name, []).append(each)

    def of(self, kind: str) -> tuple[Scored, ...]:
        added = {name: (each[0][0], add_counts(it[1] for it in each)) for name, each in self._found[kind].items()}
        return tuple(Scored(name, override, counts) for name, (override, counts) in added.items())


def _examined(options: DoctorOptions, pair: Pair) -> Pair:
    """Returns the pair whose weights are examined: with target or drafter of the user's own, where they are named."""
    target, method = options.target.strip(), options.drafter if options.drafter in METHODS else None
    if not target and method == options.drafter:
        return pair
    own = custom_pair(target or pair.target, None if method else options.drafter, method)
    return replace(own, dtype=pair.dtype, compiled=pair.compiled, adapter="" if target else pair.adapter)


def _work(options: DoctorOptions, on: Decoders) -> tuple[Doctor, str]:
    assert on.pair, "of a pair alone"
    pair = _examined(options, on.pair)
    kind = pair.drafts_by(options.drafter if options.drafter in METHODS else pair.drafter)
    kind = kind or (None if options.drafter in METHODS else next(iter(pair.weights), None))
    check(
        kind is not None,
        "There are no weights to examine. Choose a drafter that has some "
        f"({', '.join(METHODS[name].label for name in pair.weights) or 'of another pair'}), or name a folder or an id.",
    )
    name, questions = options.read()
    lanes = (assisted_lane(pair, kind, options.lookahead),)
    return Doctor(pair=pair, lanes=lanes, questions=questions), titled(name, pair.title, lanes, options.max_new_tokens)


KIND = Kind(
    name="doctor",
    label="What is wrong with a drafter?",
    does="Finds out whether a drafter is broken, mismatched, read wrongly, collapsed or just weak.",
    intro="Acceptance is low and nothing says why? This compares the drafter's files with the target's, and scores it "
    "as it is and in the other ways that published drafters are known to need.",
    hint="Press Run. The examples on the starter take a minute.",
    exits="0: nothing was seen to be wrong; 1: broken, mismatched, read wrongly or collapsed",
    options=DoctorOptions,
    work=_work,
    experiment=Doctor,
)
