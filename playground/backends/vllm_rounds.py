"""The rounds of a vLLM answer, from the sizes of its chunks and the steps that drafted."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from playground.backends.server import Piece, round_of
from playground.trace import Round


class Chunk(NamedTuple):
    """What arrived together: the output of one step, or of more where the server or the network was slow."""

    pieces: list[Piece]
    end_s: float


class Step(NamedTuple):
    """A verify step that had a draft. vLLM also counts tokens past the end of the answer."""

    accepted: int
    drafted: int


PLAIN = Step(0, 0)


class _Part:
    """The output of one step."""

    def __init__(self, pieces: list[Piece], step: Step, end_s: float) -> None:
        self.pieces, self.step, self.end_s = pieces, step, end_s


def rounds_of(chunks: Sequence[Chunk], steps: Sequence[Step], lookahead: int | None) -> list[Round]:
    """The rounds of a whole answer.

    A step that accepted nothing looks like one that drafted nothing, and vLLM lists only the former. Where several
    one-token chunks come before the next accepted draft, the last of them are taken for those that drafted.
    """
    left, parts = deque(steps), []
    single: list[_Part] = []  # one-token parts since the last accepted draft

    def assign(steps: list[Step]) -> None:
        for part, step in zip(single[len(single) - len(steps) :], steps, strict=True):
            part.step = step
        single.clear()

    for pieces, end_s in chunks:
        at = 0
        while at < len(pieces):
            step = PLAIN
            if len(pieces) - at > 1:
                assign([left.popleft() for _ in single if left and not left[0].accepted])
                step = left.popleft() if left else Step(len(pieces) - at - 1, len(pieces) - at - 1)
            part = _Part(pieces[at : at + step.accepted + 1], step, end_s)
            if len(pieces) == 1:
                single.append(part)
            parts.append(part)
            at += len(part.pieces)
    assign(list(left)[: len(single)])
    starts = [0.0, *(part.end_s for part in parts)]
    return [
        round_of(part.pieces, part.step.drafted, part.step.accepted, start_s, part.end_s, lookahead)
        for part, start_s in zip(parts, starts, strict=False)
    ]


def estimated(chunks: Sequence[Chunk], drafts: int, drafted: int) -> list[Step]:
    """The steps that fit the counts of a request: `drafts` steps that drafted `drafted` tokens, equally many each. The
    prefill drafts nothing."""
    accepted = [len(chunk.pieces) - 1 for chunk in chunks]
    ones = [i for i, n in enumerate(accepted) if n == 0 and i > 0]
    zero = set(ones[len(ones) - max(0, drafts - sum(n > 0 for n in accepted)) :]) if drafts else set()
    drafting = [n for i, n in enumerate(accepted) if n > 0 or i in zero]
    each, more = divmod(drafted, max(1, len(drafting)))
    return [Step(n, max(n, each + (i < more))) for i, n in enumerate(drafting)]
