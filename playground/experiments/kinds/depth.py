"""The Depth experiment: how far into a long context does speculation pay?

One conversation grows turn by turn, and its rounds are grouped by depth. The cache of the earlier turns is reused, so
that all depths together cost one conversation and not a prefill each. The conversation grows by the project's own
documents, a text that is always available and does not repeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from playground import metrics
from playground.backends.base import Backend
from playground.errors import Stopped, check
from playground.experiments import suite
from playground.experiments.events import Watch
from playground.experiments.kinds.kind import Kind, OfPrompts, on_record, record_at
from playground.experiments.kinds.options import ANSWER, AnswerOptions, Decoders, DraftingOptions, RunsOptions, option
from playground.experiments.kinds.sweep import CHARACTERS, documents
from playground.experiments.questions import Question
from playground.experiments.record import Record
from playground.lane import Lane, Request, label, together
from playground.presets import Pair
from playground.results import STANDARD, DepthResult, LaneDepths, SuiteResult
from playground.settings import PRESET
from playground.trace import Trace

ASKED = "A part of a manual:\n\n{}\n\nSay in a few sentences what this part is about, and quote one sentence of it."
SAMPLE = 400  # characters that are tokenised to find their number per token
LEAST = 64  # tokens that a turn grows by


def run(
    baseline: Lane,
    lane: Lane,
    request: Request,
    until: int,
    turns: int,
    backends: Mapping[str, Backend],
    watch: Watch,
    *,
    runs: int = 1,
    record: Record | None = None,
) -> DepthResult | None:
    """Runs one question with many turns through both lanes; otherwise like `suite.run`.

    Args:
        request: how each turn is answered; its prompt is not used.
        until: tokens of context at the end, answers included.
        turns: in how many turns the context grows to its end.

    Raises:
        PlaygroundError: the documents are too short, the turns are too many, or the conversation does not fit the
            context; and see `suite.run`.
    """
    try:
        backends[baseline.backend].load(baseline, watch.progress)
    except Stopped:
        return None
    asked = conversation(request, until, turns, backends[baseline.backend], baseline)
    found = suite.run(baseline, [lane], [asked], backends, watch, runs=runs, record=record)
    if found is None:
        return None
    suite.check_ran(found)
    return depth_result(found, until, turns)


def conversation(request: Request, until: int, turns: int, backend: Backend, lane: Lane) -> Question:
    """Returns a question whose turns bring so many tokens of documents that the context ends near `until`.

    Raises:
        PlaygroundError: see `run`.
    """
    text = documents()

    def tokens(part: str) -> int:
        prompt = ASKED.format(part)
        ids = backend.run(lane, replace(request, prompt=prompt)).prompt_ids
        return len(prompt) // CHARACTERS if ids is None else len(ids)

    asked = tokens("")
    step = until // turns - request.max_new_tokens - asked
    check(
        step >= LEAST,
        f"{turns} turns with answers of {request.max_new_tokens:,} tokens leave no room for text in {until:,} tokens. "
        "Ask for a deeper context, fewer turns or shorter answers.",
    )
    each = step * SAMPLE // max(1, tokens(text[:SAMPLE]) - asked)
    check(
        each * turns <= len(text),
        f"There is not enough text for {until:,} tokens: about {until * len(text) // (each * turns):,} are here.",
    )
    parts = [ASKED.format(text[i * each : (i + 1) * each]) for i in range(turns)]
    return Question("depth", replace(request, prompt=parts[0]), tuple(parts[1:]))


def depth_result(found: SuiteResult, until: int, turns: int) -> DepthResult:
    """Groups the rounds of a long conversation by depth, in as many spans as it has turns."""
    edges = [i * until // turns for i in range(turns + 1)]
    lanes: dict[str, list[Trace]] = {STANDARD: [], **{label(lane): [] for lane in found.lanes}}
    for trace in found.traces:
        lanes[label(trace.lane) if trace.lane in found.lanes else STANDARD].append(trace)
    depths = tuple(LaneDepths(name, tuple(metrics.by_depth(traces, edges))) for name, traces in lanes.items())
    base, ours = (each.figures for each in depths)
    return DepthResult(found, depths, until, metrics.stops_paying(base, ours))


@dataclass(frozen=True)
class DepthOptions(RunsOptions, AnswerOptions, DraftingOptions):
    drafter: str | None = option(None, "Drafter", "the drafting method", group="drafting")
    until: int = option(2048, "Context", "tokens of context at the end", low=256, high=2**20)
    steps: int = option(8, "Turns", "turns in which the context grows to its end", low=2, high=64)
    runs: int = option(1, "Runs", "runs of each turn in each lane", low=1, high=100, folded=True)


@dataclass(frozen=True)
class Depth(OfPrompts):
    """The work of a Depth experiment. `request`: how each turn is answered; the documents are its prompts."""

    pair: Pair | None
    lane: Lane
    request: Request
    until: int
    steps: int
    runs: int = 1
    record: str = ""
    baseline: Lane | None = None

    @property
    def questions(self) -> tuple[Question, ...]:  # type: ignore[override]
        """One question with as many turns as `steps`. Their texts are found when it runs."""
        return (Question("depth", self.request, (self.request.prompt,) * (self.steps - 1)),)

    @property
    def lanes(self) -> Sequence[Lane]:
        return (self.lane,)

    @property
    def tokens(self) -> int:
        return 2 * self.runs * self.answer_tokens

    def run(self, baseline: Lane, backends: Mapping[str, Backend], watch: Watch) -> DepthResult | None:
        return run(
            baseline, self.lane, self.request, self.until, self.steps, backends, watch,
            runs=self.runs, record=record_at(self.record),
        )  # fmt: skip

    def so_far(self) -> DepthResult | None:
        found = on_record(self.record)
        return depth_result(found, self.until, self.steps) if found and found.rows else None


def _work(options: DepthOptions, on: Decoders) -> tuple[Depth, str]:
    drafter = (options.drafter,) if options.drafter else ((on.pair.drafter,) if on.pair else ())
    (lane,) = on.lanes(drafter, **{name: getattr(options, name) for name in PRESET})
    settings: dict[str, Any] = {name: getattr(options, name) for name in ANSWER}
    request = replace(Request("…", **settings), prefix_cache=True)
    work = Depth(on.pair, lane, request, options.until, options.steps, options.runs, baseline=on.baseline)
    return work, f"{together([lane])} to {options.until:,} tokens of context on {on.title}"


KIND = Kind(
    name="depth",
    label="Depth of a conversation",
    does="Measures a drafter over the depth of the context, in one conversation that grows, and says where it stops "
    "paying.",
    intro="Does speculation still pay deep in a context? One conversation grows turn by turn; acceptance, tokens per "
    "pass, the cost of a pass and the speed-up are shown against the tokens before them.",
    hint="Press Run. All depths together cost one conversation: the cache of the earlier turns is kept.",
    exits="0: it ran to the end",
    options=DepthOptions,
    work=_work,
    experiment=Depth,
    servers=True,
)
