"""The Sweep experiment: which value of one setting gives the most speed-up, and which values tie with it?

Lookahead, tree size and confidence threshold are settings of a lane: all values run on each prompt, next to the
standard lane. Temperature and prompt length are settings of the request: the prompts run at each value, with a standard
lane of their own. Either way it is one suite, with its record, its order and its intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from playground import ROOT, ranked, theory
from playground.backends.base import Backend
from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError, Stopped, check
from playground.experiments import suite
from playground.experiments import suite as summaries
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
from playground.lane import AXES, Axis, Lane, Request, at_lookahead, label, together
from playground.presets import Pair
from playground.results import STANDARD, Point, Predicted, SuiteResult, SweepResult
from playground.settings import ANSWER, DRAFTING, PRESET, SETTINGS, SWEPT

DEFAULTS = {**SWEPT, "prompt_tokens": (128, 512, 1024, 2048)}
OF_LANES = tuple(name for name in SWEPT if name in DRAFTING)
CHARACTERS = 4  # per token, roughly, where a backend does not report the prompt's tokens


@dataclass(frozen=True)
class SweepOptions(OrderOptions, RunsOptions, AnswerOptions, DraftingOptions, PromptOptions):
    drafter: str | None = option(None, "Drafter", "the drafting method", group="drafting")
    axis: Axis = option("lookahead", "Setting", "which takes several values", choices=AXES, flag="over")
    values: tuple[float, ...] = option(
        (), "Values", "of the setting; lookahead 0 is no drafter; none takes some over its range",
        by=("axis", DEFAULTS),
    )  # fmt: skip


@dataclass(frozen=True)
class Sweep(OfPrompts):
    """The work of a Sweep experiment, a suite over the values of the setting. `lane`: the drafter with its other
    settings."""

    pair: Pair | None
    lane: Lane
    axis: Axis
    values: tuple[float, ...]
    questions: tuple[Question, ...]
    runs: int = 1
    seed: int = 0
    record: str = ""
    baseline: Lane | None = None

    @property
    def lanes(self) -> Sequence[Lane]:
        return lanes_of(self.lane, self.axis, self.values)

    @property
    def tokens(self) -> int:
        times = 1 if self.axis in OF_LANES else len(self.values)
        return self.runs * times * (1 + len(self.lanes)) * self.answer_tokens

    def run(self, baseline: Lane, backends: Mapping[str, Backend], watch: Watch) -> SweepResult | None:
        questions: Sequence[Question] = self.questions
        if self.axis in ANSWER:
            questions = [_at(question, self.axis, value) for value in self.values for question in questions]
        elif self.axis == "prompt_tokens":
            try:
                backends[baseline.backend].load(baseline, watch.progress)
            except Stopped:
                return None
            count = partial(_count, backends[baseline.backend], baseline)
            questions = [_padded(question, int(value), count) for value in self.values for question in questions]
        return self._result(
            suite.run(
                baseline, self.lanes, questions, backends, watch,
                runs=self.runs, seed=self.seed, record=record_at(self.record),
            )
        )  # fmt: skip

    def so_far(self) -> SweepResult | None:
        return self._result(on_record(self.record))

    def _result(self, found: SuiteResult | None) -> SweepResult | None:
        return sweep_result(self.axis, self.values, self.lanes, found) if found else None


def lanes_of(lane: Lane, axis: Axis, values: Sequence[float]) -> list[Lane]:
    """Returns the lanes of a sweep. A lookahead of 0 is the standard lane, which is left out.

    Args:
        lane: the drafter with its other settings.

    Raises:
        PlaygroundError: the drafter has no such setting, or a value is out of bounds.
    """
    check(len(values) == len(set(values)) > 0, "A sweep needs one value or more, each named once.")
    if axis == "nodes":
        check(METHODS[lane.drafter].tree, f"{together([lane])} drafts no tree. Sweep the nodes of a drafter that does.")
    if axis not in OF_LANES:
        return [lane]
    if axis == "lookahead":
        return [at_lookahead(lane, int(value)) for value in values if value]
    if axis == "nodes":
        return [replace(lane, nodes=int(value)) for value in values]
    return [replace(lane, policy="confidence", confidence_threshold=value) for value in values]


def sweep_result(axis: Axis, values: Sequence[float], lanes: Sequence[Lane], result: SuiteResult) -> SweepResult:
    """Groups the suite of a sweep by the values. `lanes`: those of `lanes_of`."""
    return SweepResult(axis, tuple(_points(axis, values, lanes, result)), result)


def _points(axis: Axis, values: Sequence[float], lanes: Sequence[Lane], result: SuiteResult) -> Iterator[Point]:
    if axis in OF_LANES:
        names = iter(map(label, lanes))
        by_value = {value: next(names) if axis != "lookahead" or value else STANDARD for value in values}
        present = {row.lane for row in result.rows}
        of = lambda name: tuple(s for s in result.summaries if s.lane == name)  # noqa: E731
        run = [name for name in by_value.values() if name in present]
        ranking = ranked.rank(result.rows, run) if run else []
        best, ties = (ranking[0].lane if ranking else ""), {it.lane for it in ranking if it.ties}
        predicted = _predicted(values, result) if axis == "lookahead" else {}
        for value, name in by_value.items():
            yield Point(value, name, of(name), name == best, name in ties, predicted.get(value))
        return
    each = len(result.prompts) // len(values)
    for i, value in enumerate(values):
        rows = [row for row in result.rows if row.question // each == i]
        name = label(lanes[0])
        yield Point(value, name, tuple(s for s in summaries.summarise(rows) if s.lane == name))


def _predicted(values: Sequence[float], result: SuiteResult) -> dict[float, Predicted]:
    """Predicts each lookahead from the rounds of the largest. Returns nothing without traces, as in a result from a
    file, and where the drafts are trees."""
    deepest = int(max(values))
    base = [trace for trace in result.traces if trace.lane.drafter == "none" and trace.rounds]
    ours = [trace for trace in result.traces if trace.lane.drafter != "none" and trace.lane.lookahead == deepest]
    if not base or not ours:
        return {}
    passes = ours[0].environment.pass_times
    found = theory.what_if_of_runs([it.rounds for it in base], [it.rounds for it in ours], passes, deepest)
    if found is None:
        return {}
    prefill_s = sum(it.rounds[0].end_s - it.rounds[0].start_s for it in base)
    share = prefill_s / sum(
        it.rounds[-1].end_s - it.rounds[0].start_s for it in base
    )  # the prefill's share, which drafting does not change
    predicted = {}
    for value in values:
        at = found.predictions[int(value)]
        # A round that drafts nothing, which is common for a lookup, is a plain round at any lookahead.
        tokens = found.drafting * at.tokens_per_pass + 1 - found.drafting
        cost = found.drafting * at.tokens_per_pass / at.speedup + 1 - found.drafting
        predicted[value] = Predicted(tokens, 1 / (share + (1 - share) * cost / tokens))
    return predicted


def _at(question: Question, axis: str, value: float) -> Question:
    return replace(question, request=replace(question.request, **{axis: SETTINGS[axis].read(value)}))


def _count(backend: Backend, lane: Lane, request: Request) -> int:
    """Returns the number of tokens of a request's prompt."""
    ids = backend.run(lane, request).prompt_ids
    return len(request.prompt) // CHARACTERS if ids is None else len(ids)


def _padded(question: Question, tokens: int, count: Callable[[Request], int]) -> Question:
    """Returns the question with enough of the project's documents before it to make the prompt that long, or a few
    tokens longer. The documents are always available and do not repeat, which would flatter a lookup. A longer question
    does not change.

    Raises:
        PlaygroundError: the documents are too short.
    """
    request, text = question.request, documents()

    def padded(characters: int) -> Request:
        return replace(request, prompt=f"{text[:characters]}\n\n{request.prompt}")

    def fits(request: Request) -> bool:
        try:
            return count(request) <= tokens
        except PlaygroundError:  # it is longer than the target's context
            return False

    if not fits(request):
        return question
    check(not fits(padded(len(text))), f"There is not enough text to fill a prompt of {tokens:,} tokens with.")
    low, high = 0, len(text)
    while high - low > CHARACTERS:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(padded(middle)) else (low, middle)
    return replace(question, request=padded(high))


def documents() -> str:
    """Returns the text of the project's own documents."""
    paths: list[Path] = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return "\n\n".join(path.read_text(encoding="utf-8") for path in paths)


def _work(options: SweepOptions, on: Decoders) -> tuple[Sweep, str]:
    name, questions = options.read()
    drafter = (options.drafter,) if options.drafter else ((on.pair.drafter,) if on.pair else ())
    (lane,) = on.lanes(drafter, **{name: getattr(options, name) for name in PRESET})
    if options.axis == "lookahead" and not options.policy:
        lane = replace(lane, policy="constant")  # other policies take it as a bound, not as the length of the drafts
    values = options.values or DEFAULTS[options.axis]
    lanes_of(lane, options.axis, values)  # raises now instead of in the middle
    work = Sweep(on.pair, lane, options.axis, values, questions, options.runs, options.order_seed, baseline=on.baseline)
    axis, at = AXES[options.axis], ", ".join(f"{value:g}" for value in values)
    return work, f"{axis[:1].upper()}{axis[1:]} {at} of {together([lane])} on {on.title}: {name}"


KIND = Kind(
    name="sweep",
    label="One setting",
    does="Measures one setting of a drafter at several values: which is the fastest, and which tie with it.",
    intro="How many tokens should be drafted at a time? A sweep tries every value on the same prompts and marks the "
    "best.",
    hint="Press Run. Lookahead 0 is no drafter, so that drafting has to earn its place.",
    exits="0: all prompts ran; 1: some failed",
    options=SweepOptions,
    work=_work,
    experiment=Sweep,
    servers=True,
    varies=lambda options: options.axis,
)
