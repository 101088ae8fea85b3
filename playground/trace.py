"""The trace: what one lane did on one request, round by round.

Everything that is displayed is drawn from these dataclasses; `export` writes them to files and reads them. A field that
a server does not report is None, which means unknown, never zero.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, Field

from playground.errors import check
from playground.lane import STANDARD, Lane, Request

Decision = Literal["accepted", "rejected", "unverified"]
Reason = Literal["plain", "correction", "bonus"]
Schedule = Literal["alone", "by turns"]
Finish = Literal["eos", "stop string", "length", "context", "stopped"]
Seconds = Annotated[float, Field(ge=0, lt=1e15)]
Number = Annotated[float, Field(gt=-1e15, lt=1e15)]  # whose sums and squares are finite
Margin = Annotated[float, Field(allow_inf_nan=False)]
Size = Annotated[int, Field(ge=0, lt=2**63)]  # also a token's id
Of = TypeVar("Of")
Figure = TypeVar("Figure")


def once(compute: Callable[[Of], Figure]) -> Callable[[Of], Figure]:
    """Make a function of one frozen dataclass compute its figure once for each instance, which then holds it: a trace
    is measured once, however many views show it. The figure is no field: it is neither compared nor saved."""
    name = f"{compute.__module__}.{compute.__qualname__}"

    @wraps(compute)
    def figure(of: Of) -> Figure:
        held = vars(of)
        if name not in held:
            held[name] = compute(of)
        return held[name]

    return figure


@dataclass(frozen=True)
class DraftToken:
    """A token that the drafter proposed.

    `decision`: "rejected" means that the target chose another token here; "unverified" that the token follows a
    rejected one or the end of the answer, so the target never judged it on an accepted prefix. `p` and `margin` are
    then None.

    `q`: the drafter's probability of the token (1 for a lookup). `p`: the target's probability of it given all tokens
    before it, from the distribution that was sampled or, in greedy decoding, the softmax of the logits. `margin`: the
    gap between the target's two highest logits at this position; None where a grammar allows only one.

    `text`: what the token adds to the visible text, in whole characters. A token that ends inside a character has the
    text ""; the token that completes the character carries it. Nothing of a stop string is visible: the text of the
    token in which it begins ends there, and the output's tokens after that one have the text "". `id` is None, and
    `text` "", where a server does not report rejected tokens.

    `parent`: in a tree, the index of the token's parent among the round's drafted tokens, -1 for the sequence itself.
    None in a chain, where each token follows the one before.

    `draw`: the uniform number in [0, 1) that decided a sampled token; it is accepted where draw < bound. None where no
    number did. `bound`: the chance that the lane's verification accepted it with; None for p / q. Block verification
    and traversal judge a draft from its end: the tokens before the last accepted one have no draw, those after it may.
    `confidence`: the predicted chance that the token is accepted, from a head trained for that, before the token was
    chosen. None where the drafter has no such head. `forced`: it was drafted because the request's grammar forces it.
    """

    id: Size | None
    text: str
    special: bool
    q: Number | None
    p: Number | None
    margin: Margin | None
    decision: Decision
    parent: Annotated[int, Field(ge=-1)] | None = None
    draw: Number | None = None
    confidence: Number | None = None
    forced: bool = False
    bound: Number | None = None


@dataclass(frozen=True)
class TargetToken:
    """The token that the target adds at the end of a round.

    `reason`: "plain" if nothing was drafted, "correction" if the token replaces the first rejected draft token, "bonus"
    if the draft was accepted to the end of a branch. `id`, `p`, `margin`, `text`: see DraftToken.

    `rank`: for a correction, its rank among the drafter's candidates for that position, 1 being the best. 0 if the
    drafter cannot propose it. None if the drafter scores no candidates (lookup) or does not report them.
    """

    id: Size | None
    text: str
    special: bool
    p: Number | None
    margin: Margin | None
    reason: Reason
    rank: Size | None = None


@dataclass(frozen=True)
class Round:
    """One step of decoding: a draft, the target pass that verifies it, and the tokens that come out.

    Times are in seconds, and are times of decoding: `start_s` and `end_s` count from the moment the lane was given the
    prompt's token ids, by a clock that stops while a round is annotated. The round's tokens exist from `end_s` on. All
    durations are read with the device synchronised:

    - `draft_s`: proposing the draft.
    - `verify_s`: the target pass and the decision.
    - `commit_s`: rolling both KV caches back to what was accepted. It comes after `end_s`.
    - `annotate_s`: computing what only the trace shows (p, margins, text). No other time includes it; it is
      None where a server decodes, whose times are those at which its answer arrived.

    `lookahead`: the draft length that the policy asked for; the drafter may propose fewer. `target` is None if an
    accepted draft token ended the answer: an end of text, or one that completed a stop string; draft tokens after it
    are "unverified", whether or not the target would have accepted them. `mask_s`: the part of `verify_s` that
    following the grammar took and masking by it; None without a grammar. `capped`: a shortage of memory cut the
    lookahead. `passes`: forward passes of the target: one, unless a recurrent target had to be fed again after a
    rejection.

    `other_rule`: how many tokens of the same draft the other exact rule would have accepted with the same random
    numbers: block verification where the lane verifies token by token, and the reverse; for a sampled tree, traversal
    and recursive rejection. None where no draft was sampled.

    `past_context`: the length of the drafter's context in tokens of its own, where the text had reached it, so that
    nothing was drafted; else None.
    """

    lookahead: Size | None
    drafted: tuple[DraftToken, ...]
    target: TargetToken | None
    start_s: Seconds
    draft_s: Seconds | None
    verify_s: Seconds | None
    end_s: Seconds
    capped: bool = False
    passes: Annotated[int, Field(ge=1, lt=2**63)] = 1
    commit_s: Seconds | None = None
    annotate_s: Seconds | None = None
    mask_s: Seconds | None = None
    # "kept_otherwise" in files of earlier releases.
    other_rule: Annotated[Size | None, Field(validation_alias=AliasChoices("other_rule", "kept_otherwise"))] = None
    past_context: Size | None = None

    @property
    def is_tree(self) -> bool:
        return any(token.parent is not None for token in self.drafted)

    @cached_property
    def accepted(self) -> tuple[DraftToken, ...]:
        return tuple([token for token in self.drafted if token.decision == "accepted"])

    @cached_property
    def tokens(self) -> tuple[DraftToken | TargetToken, ...]:
        """The tokens that the round adds to the output, in order."""
        return self.accepted + ((self.target,) if self.target else ())


@dataclass(frozen=True)
class PassTime:
    """The seconds that a target pass over `tokens` tokens takes after a short sequence."""

    tokens: Size
    seconds: Annotated[float, Field(gt=0, lt=1e15)]


@dataclass(frozen=True)
class Shape:
    """The work of a pass of a model: `values` of weights that are multiplied, of which an embedding is
    none, in so many `products` of a matrix; and the keys and values (`cache`) that it keeps of each token."""

    values: Size
    products: Size
    cache: Size


@dataclass(frozen=True)
class Environment:
    """The machine and software that a lane ran on: enough to know which other times its times compare with.

    `versions`: of the software that decoded, such as {"playground": …, "torch": …} or {"vllm": …}. `device`: "cpu",
    "cuda", … ; `device_name`: its maker's name for it. `weights`: where the weights came from, the target's first.
    `created`: ISO 8601, UTC. `pass_times`: the measured cost of a target pass by its width, which limits draft trees;
    empty before the first tree. `notes`: what limits the figures of this run, as sentences. `bandwidth`: bytes per
    second that a copy in the device's memory reads and writes, the best of several readings, and `bandwidth_spread` the
    best over their median (None in older traces). `runner`: how the target's passes are run, such as
    "eager" or "compiled (CUDA graphs)". `compile_s`: the seconds that compiling took, before the lanes ran; None if
    nothing was compiled. `shapes`: of the target, and of the drafter or, in a suite, of each lane's by its label; none
    of a mixture of experts, a server or in older traces. `obeyed`, `not_obeyed`: entries of the target's
    generation_config.json, other than sampling settings, that the lane follows or not; None where a server decodes,
    which has its own, and in older traces.
    """

    versions: dict[str, str]
    platform: str | None
    device: str | None
    device_name: str | None
    dtype: str | None
    threads: Size | None
    weights: tuple[str, ...]
    created: str
    pass_times: tuple[PassTime, ...] = ()
    notes: tuple[str, ...] = ()
    bandwidth: Number | None = None
    bandwidth_spread: Number | None = None
    runner: str | None = None
    compile_s: Number | None = None
    obeyed: dict[str, Any] | None = None
    not_obeyed: dict[str, Any] | None = None
    shapes: dict[str, Shape] = field(default_factory=dict)


@dataclass(frozen=True)
class Experts:
    """The routed experts of a mixture: each of its layers has `count`, of which a token passes through `per_token`.
    `weights`: bytes of all of them, in all layers, without shared experts."""

    count: Size
    per_token: Size
    weights: Size


@dataclass(frozen=True)
class Memory:
    """Bytes that a lane held on the device when it ended. Weights that drafter and target share count as the target's;
    a pass's activations and a lookup's index are not counted. `experts`: those of the target, if it is a mixture."""

    target_weights: Size
    target_cache: Size
    drafter_weights: Size
    drafter_cache: Size
    experts: Experts | None = None

    @property
    def total(self) -> int:
        return self.target_weights + self.target_cache + self.drafter_weights + self.drafter_cache


@dataclass(frozen=True)
class Reused:
    """The part of a later turn's prompt that came from the cache of earlier turns: `tokens` that were not computed
    again, and the `bytes` of the caches that held them, the drafter's included (None where a server does not report
    it)."""

    tokens: Size
    bytes: Size | None = None


@dataclass(frozen=True)
class Totals:
    """A server's counts for a whole answer, where it does not report the verify steps. None where it does not report
    one.

    `tokens`: of the answer. `passes`: verify passes. `drafted`, `accepted`: draft tokens.
    """

    tokens: Size | None = None
    passes: Size | None = None
    drafted: Size | None = None
    accepted: Size | None = None


@dataclass(frozen=True)
class Trace:
    """One lane on one request.

    `prompt_ids`: the token ids that the target was given; None if a server does not report them. `finish`: what ended
    the output; a "stop string" ends it with the token that completes one. `memory` is None where it was not measured.
    `schedule`: whether the lane ran alone or took turns with those that it is compared with: a few rounds each time,
    always of the lane whose own clock was behind, so that equal times of two lanes were about the same moment.
    `markers`: id and text of the target's special tokens that begin and end segments of an output; see
    `metrics.segments`. `reused`: None where nothing is known of it. `totals`: None where the rounds tell everything.
    Otherwise the rounds are the pieces of the answer as they arrived: texts of one token or more, each after one verify
    pass or more.
    """

    lane: Lane
    request: Request
    environment: Environment
    prompt_ids: tuple[Size, ...] | None
    rounds: tuple[Round, ...]
    finish: Finish
    memory: Memory | None = None
    markers: tuple[tuple[int, str], ...] = ()
    reused: Reused | None = None
    totals: Totals | None = None
    schedule: Schedule = "alone"

    @cached_property
    def tokens(self) -> tuple[DraftToken | TargetToken, ...]:
        """The output's tokens, in order."""
        return tuple(token for round_ in self.rounds for token in round_.tokens)

    @property
    def token_ids(self) -> tuple[int | None, ...]:
        return tuple(token.id for token in self.tokens)

    @property
    def text(self) -> str:
        """The output without its special tokens."""
        return "".join(token.text for token in self.tokens if not token.special)


@dataclass(frozen=True)
class Comparison:
    """Two or more lanes on one request.

    `baseline` is the name of the lane that the others are compared with. `repeats`: further passes through the lanes,
    which show how far the speed-up varies. Each holds the baseline and as many of the others as ran again, in the order
    of `lanes`.
    """

    lanes: tuple[Trace, ...]
    baseline: str = STANDARD
    repeats: tuple[tuple[Trace, ...], ...] = ()

    def __post_init__(self) -> None:
        lanes = [trace.lane for trace in self.lanes]
        check_lanes(lanes, self.baseline)
        for traces in self.repeats:
            again = [trace.lane for trace in traces]
            check(again == [lane for lane in lanes if lane in again], "A repeat of a comparison has other lanes.")
            check(self.baseline in [lane.name for lane in again], "A repeat of a comparison lacks the baseline.")

    @property
    def standard(self) -> Trace:
        """The baseline lane."""
        return next(trace for trace in self.lanes if trace.lane.name == self.baseline)

    @property
    def others(self) -> tuple[Trace, ...]:
        """The lanes that are compared with the baseline."""
        return tuple(trace for trace in self.lanes if trace.lane.name != self.baseline)


def check_lanes(lanes: Sequence[Lane], baseline: str) -> None:
    """Check that these lanes make a comparison.

    Raises:
        PlaygroundError: they do not.
    """
    check(len(lanes) >= 2, "A comparison needs two lanes or more.")
    names = Counter(lane.name for lane in lanes)
    name, count = names.most_common(1)[0]
    check(count == 1, f"Two lanes of a comparison are named {reprlib.repr(name)}. Give each a name of its own.")
    check(baseline in names, f"No lane is named {reprlib.repr(baseline)}, which should be the baseline.")
