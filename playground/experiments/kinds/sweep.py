"""The Sweep experiment: which value of one setting gives the most speed-up, and which values tie with it?

Lookahead, tree size and confidence threshold are settings of a lane: all values run on each prompt, next to the
standard lane. So do rates of acceptance, with verdicts drawn at each rate, next to the drafter as it is. Temperature
and prompt length are settings of the request: the prompts run at each value, with a standard lane of their own. The
depth of the context grows in one conversation by the project's own documents, and its rounds are grouped by depth: the
cache of the earlier turns is reused, so that all depths cost one conversation and not a prefill each. Either way it is
one suite, with its record, its order and its intervals.

Depth and acceptance also have a page, a command and an endpoint of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path

from playground import ROOT, results, theory
from playground.backends.base import Backend
from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError, check
from playground.experiments import suite
from playground.experiments.events import Watch
from playground.experiments.kinds.kind import Kind, OfPrompts, from_journal
from playground.experiments.kinds.options import (
    ANSWER,
    AnswerOptions,
    Decoders,
    DraftingOptions,
    OrderOptions,
    PromptOptions,
    RunsOptions,
    ServersOptions,
    option,
)
from playground.experiments.questions import Question
from playground.lane import AXES, Axis, Lane, Request, at_lookahead, label, synthetic, together
from playground.results import STANDARD, Point, Predicted, SuiteResult, SweepResult, rates_of
from playground.settings import DRAFTING, PRESET, SETTINGS, SWEPT

DEFAULTS: dict[str, tuple[float, ...]] = {
    **SWEPT,
    "prompt_tokens": (128, 512, 1024, 2048),
    "depth": tuple(range(256, 2049, 256)),
    "acceptance": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
}
OF_LANES = tuple(name for name in SWEPT if name in DRAFTING)
OF_REQUESTS = (*(name for name in SWEPT if name in ANSWER), "prompt_tokens")
CHARACTERS = 4  # per token, roughly, where a backend does not report the prompt's tokens
ASKED = "A part of a manual:\n\n{}\n\nSay in a few sentences what this part is about, and quote one sentence of it."
SAMPLE = 400  # characters that are tokenised to find their number per token
LEAST = 64  # tokens that a turn grows by


class DrafterOptions(OrderOptions, RunsOptions, AnswerOptions, DraftingOptions):
    drafter: str | None = option(None, "Drafter", "the drafting method", group="drafting")


class SweepOptions(ServersOptions, DrafterOptions, PromptOptions):
    axis: Axis = option("lookahead", "Setting", "which takes several values", choices=AXES, flag="over")
    values: tuple[float, ...] = option(
        (), "Values", "of the setting; lookahead 0 is no drafter; none takes some over its range",
        by=("axis", DEFAULTS),
    )  # fmt: skip


class DepthOptions(ServersOptions, DrafterOptions):
    until: int = option(2048, "Context", "tokens of context at the end", low=256, high=2**20)
    steps: int = option(8, "Turns", "turns in which the context grows to its end", low=2, high=64)
    runs: int = option(1, "Runs", "runs of each turn in each lane", low=1, high=100, folded=True)


class AcceptanceOptions(DrafterOptions, PromptOptions):
    rates: tuple[float, ...] = option(
        DEFAULTS["acceptance"], "Rates", "chances to accept a draft token if those before it were", low=0, high=1,
        group="drafting",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sweep(OfPrompts):
    """The work of a Sweep experiment, a suite over the values of the setting. `lane`: the drafter with its other
    settings. `questions`: for the depth one with as many turns as values, whose texts are found when it runs."""

    lane: Lane
    axis: Axis
    values: tuple[float, ...]

    @property
    def lanes(self) -> Sequence[Lane]:
        return lanes_of(self.lane, self.axis, self.values)

    @property
    def tokens(self) -> int:
        times = len(self.values) if self.axis in OF_REQUESTS else 1
        first = self.axis == "acceptance"  # the output of standard decoding, from which verdicts are drawn
        return (first + self.runs * times * (1 + len(self.lanes))) * self.answer_tokens

    def run(self, baseline: Lane, backends: Mapping[str, Backend], watch: Watch) -> SweepResult | None:
        questions: Sequence[Question] = self.questions
        if self.axis in ANSWER:
            questions = [_at(question, self.axis, value) for value in self.values for question in questions]
        elif self.axis in ("prompt_tokens", "depth"):
            backends[baseline.backend].load(baseline, watch.progress)
            count = partial(_count, backends[baseline.backend], baseline)
            if self.axis == "depth":
                questions = [conversation(questions[0].request, [int(value) for value in self.values], count)]
            else:
                questions = [_padded(question, int(value), count) for value in self.values for question in questions]
        found = self.run_suite(baseline, backends, watch, questions)
        if found and self.axis == "depth":
            suite.check_ran(found)
        return self._result(found)

    def so_far(self) -> SweepResult | None:
        found = from_journal(self.record)
        return None if found and self.axis == "depth" and not found.rows else self._result(found)

    def _result(self, found: SuiteResult | None) -> SweepResult | None:
        return sweep_result(self.axis, self.values, self.lanes, found) if found else None


@dataclass(frozen=True, kw_only=True)
class Depth(Sweep):
    """A sweep over the depth of the context, which the history lists as `depth`."""


@dataclass(frozen=True, kw_only=True)
class Acceptance(Sweep):
    """A sweep over rates of acceptance, which the history lists as `acceptance`."""


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
    if axis == "acceptance":
        check(lane.drafter != "none", "Standard decoding drafts nothing that could be accepted. Choose a drafter.")
        return [lane, *(synthetic(lane, [rate]) for rate in values)]
    if axis == "depth":
        check(list(values) == sorted(values), "Depths grow from turn to turn. Give them in ascending order.")
    if axis not in OF_LANES:
        return [lane]
    if axis == "lookahead":
        return [at_lookahead(lane, int(value)) for value in values if value]
    if axis == "nodes":
        return [replace(lane, nodes=int(value)) for value in values]
    return [replace(lane, policy="confidence", confidence_threshold=value) for value in values]


def sweep_result(axis: Axis, values: Sequence[float], lanes: Sequence[Lane], result: SuiteResult) -> SweepResult:
    """Groups the suite of a sweep by the values. `lanes`: those of `lanes_of`."""
    if axis == "depth":
        return SweepResult(axis, (), result, results.depths_of(result, (0, *map(int, values))))
    return SweepResult(axis, tuple(_points(axis, values, lanes, result)), result)


def _points(axis: Axis, values: Sequence[float], lanes: Sequence[Lane], result: SuiteResult) -> Iterator[Point]:
    if axis in OF_LANES:
        names = iter(map(label, lanes))
        by_value = {value: next(names) if axis != "lookahead" or value else STANDARD for value in values}
        present = {row.lane for row in result.rows}
        of = lambda name: tuple(s for s in result.summaries if s.lane == name)  # noqa: E731
        run = [name for name in by_value.values() if name in present]
        ranking = results.rank(result.rows, run) if run else []
        best, ties = (ranking[0].lane if ranking else ""), {it.lane for it in ranking if it.ties}
        predicted = _predicted(values, result) if axis == "lookahead" else {}
        for value, name in by_value.items():
            yield Point(value, name, of(name), name == best, name in ties, predicted.get(value))
        return
    if axis == "acceptance":
        yield from rates_of(result)
        return
    each = len(result.prompts) // len(values)
    for i, value in enumerate(values):
        rows = [row for row in result.rows if row.question // each == i]
        name = label(lanes[0])
        yield Point(value, name, tuple(s for s in suite.summarise(rows) if s.lane == name))


def _predicted(values: Sequence[float], result: SuiteResult) -> dict[float, Predicted]:
    """Predicts each lookahead from the rounds of the largest. Returns nothing without traces, as in a result from a
    file, and where the drafts are trees."""
    deepest = int(max(values))
    base = [trace for trace in result.traces if trace.lane.drafter == "none" and trace.rounds]
    ours = [trace for trace in result.traces if trace.lane.drafter != "none" and trace.lane.lookahead == deepest]
    if not base or not ours:
        return {}
    passes = ours[0].environment.pass_times
    what_if = theory.what_if_of_runs([it.rounds for it in base], [it.rounds for it in ours], passes, deepest)
    if what_if is None:
        return {}
    prefill_s = sum(it.rounds[0].end_s - it.rounds[0].start_s for it in base)
    share = prefill_s / sum(
        it.rounds[-1].end_s - it.rounds[0].start_s for it in base
    )  # the prefill's share, which drafting does not change
    predicted = {}
    for value in values:
        at = what_if.predictions[int(value)]
        # A round that drafts nothing, which is common for a lookup, is a plain round at any lookahead.
        tokens = what_if.drafting * at.tokens_per_pass + 1 - what_if.drafting
        decoding = what_if.overall(at, what_if.drafting)
        predicted[value] = Predicted(tokens, 1 / (share + (1 - share) / decoding))
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


def conversation(request: Request, ends: Sequence[int], count: Callable[[Request], int]) -> Question:
    """Returns a question whose turns bring so many tokens of documents that the context ends near the last of `ends`.

    Args:
        request: how each turn is answered; its prompt is not used.
        ends: tokens of context at the end of each turn, answers included.
        count: returns the number of tokens of a request's prompt.

    Raises:
        PlaygroundError: the documents are too short, or the turns are too many.
    """
    text = documents()

    def tokens(part: str) -> int:
        return count(replace(request, prompt=ASKED.format(part)))

    asked = tokens("")
    steps = [end - start - request.max_new_tokens - asked for start, end in pairwise((0, *ends))]
    check(
        min(steps) >= LEAST,
        f"{len(ends)} turns with answers of {request.max_new_tokens:,} tokens leave no room for text in "
        f"{ends[-1]:,} tokens. Ask for a deeper context, fewer turns or shorter answers.",
    )
    sample = max(1, tokens(text[:SAMPLE]) - asked)
    cuts = [0, *accumulate(step * SAMPLE // sample for step in steps)]
    check(
        cuts[-1] <= len(text),
        f"There is not enough text for {ends[-1]:,} tokens: about {ends[-1] * len(text) // cuts[-1]:,} are here.",
    )
    first, *more = (ASKED.format(text[start:end]) for start, end in pairwise(cuts))
    return Question("depth", replace(request, prompt=first), tuple(more))


def _sweep(
    kind: type[Sweep], options: DrafterOptions, on: Decoders, axis: Axis, values: tuple[float, ...]
) -> tuple[Sweep, str]:
    """Returns the work, and the name of its prompts."""
    drafter = (options.drafter,) if options.drafter else ((on.pair.drafter,) if on.pair else ())
    (lane,) = on.lanes(drafter, **{name: getattr(options, name) for name in PRESET})
    if axis == "lookahead" and not options.policy:
        lane = replace(lane, policy="constant")  # other policies take it as a bound, not as the length of the drafts
    lanes_of(lane, axis, values)  # raises now instead of in the middle
    if axis == "depth":
        request = replace(Request("…", **{name: getattr(options, name) for name in ANSWER}), prefix_cache=True)
        name, questions = "documents", (Question("depth", request, (request.prompt,) * (len(values) - 1)),)
    else:
        assert isinstance(options, PromptOptions)
        name, questions = options.read()
    work = kind(
        pair=on.pair, lane=lane, axis=axis, values=values, questions=questions, runs=options.runs,
        seed=options.order_seed, baseline=on.baseline,
    )  # fmt: skip
    return work, name


def _work(options: SweepOptions, on: Decoders) -> tuple[Sweep, str]:
    values = options.values or DEFAULTS[options.axis]
    work, name = _sweep(Sweep, options, on, options.axis, values)
    axis, at = AXES[options.axis], ", ".join(f"{value:g}" for value in values)
    return work, f"{axis[:1].upper()}{axis[1:]} {at} of {together([work.lane])} on {on.title}: {name}"


def _depth(options: DepthOptions, on: Decoders) -> tuple[Sweep, str]:
    ends = tuple(i * options.until // options.steps for i in range(1, options.steps + 1))
    work, _ = _sweep(Depth, options, on, "depth", ends)
    return work, f"{together([work.lane])} to {options.until:,} tokens of context on {on.title}"


def _acceptance(options: AcceptanceOptions, on: Decoders) -> tuple[Sweep, str]:
    work, name = _sweep(Acceptance, options, on, "acceptance", options.rates)
    return work, f"Acceptance of {together([work.lane])} on {on.title}: {name}"


KIND = Kind(
    name="sweep",
    label="Tune one setting",
    does="Measures one setting of a drafter at several values: which is the fastest, and which tie with it.",
    intro="How many tokens should be drafted at a time? A sweep tries every value on the same prompts and marks the "
    "best.",
    hint="Press Run. Lookahead 0 is no drafter, so that drafting has to earn its place.",
    exits="0: all prompts ran; 1: some failed",
    options=SweepOptions,
    work=_work,
    experiment=Sweep,
    varies=lambda options: options.axis,
)

DEPTH = Kind(
    name="depth",
    label="Long conversations",
    does="Measures a drafter over the depth of the context, in one conversation that grows, and says where it stops "
    "paying.",
    intro="Does speculation still pay deep in a context? One conversation grows turn by turn; acceptance, tokens per "
    "check, the cost of a pass and the speed-up are shown against the tokens before them.",
    hint="Press Run. All depths together cost one conversation: the cache of the earlier turns is kept.",
    exits="0: it ran to the end",
    options=DepthOptions,
    work=_depth,
    experiment=Depth,
)

ACCEPTANCE = Kind(
    name="acceptance",
    label="Drafter or machine?",
    does="Draws speed-up over acceptance for a drafter on this machine, and puts the measured point on the curve.",
    intro="Is the drafter too often wrong, or is the machine the limit? We force a fixed acceptance rate and "
    "measure the speed-up. The curve belongs to the machine, the measured point on it to the "
    "drafter.",
    hint="Press Run. All points but the measured one are synthetic.",
    exits="0: all prompts ran; 1: some failed",
    options=AcceptanceOptions,
    work=_acceptance,
    experiment=Acceptance,
)
