"""A grammar that constrains an answer: a JSON schema, a regular expression or a Lark grammar, followed by llguidance.

The target's distribution p is its own, masked: tokens that cannot continue the text have probability 0, in every row of
a pass. A matcher follows each branch of the draft and is rolled back. It is never given a token that the grammar
refuses, from which it would not recover.

So a draft ends before the first token that is refused. But where tokens were sampled from q, that token stays as the
last one, to be rejected: the token in its place must then come from norm(max(0, p - q)), which makes up for what the
drafter proposes. Dropping it and sampling from p would change the distribution.

Once the grammar is complete, only the end of text is allowed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from transformers import PreTrainedTokenizerFast

from playground.constraint import brief, compiled, matcher_of
from playground.decoding.drafters.base import Draft, shared
from playground.decoding.transfer import to_device
from playground.errors import PlaygroundError, check
from playground.lane import Request
from playground.models.load import LoadedModel

KEPT = 5  # entries cached with a target: its tokenizer and grammars, each as large as `constraint.try_out` allows
PASS_S = 10.0  # limit for the masks of one pass, which can be many: a run can be stopped only between two passes
EVERYTHING = b""  # a mask that refuses nothing, for rows that are never read: after a refused token or an end of text


class Grammar:
    """Follows one answer. This base allows everything, for requests without a grammar.

    Attributes:
        seconds: the time spent on masks since `limited` was last called; None without a grammar.
    """

    seconds: float | None = None

    def forced(self) -> list[int]:
        """Returns the tokens that must come next, as the tokenizer writes them; empty where there is a choice."""
        return []

    def limited(self, draft: Draft) -> Draft:
        """Returns the part of the draft that the grammar allows. The next call of `masked` is for its rows."""
        return draft

    def masked(self, scores: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Returns the scores with -inf where the grammar refuses. Where that leaves nothing, since the scores refuse
        all that the grammar allows, `logits`, from which the scores were made, take their place.

        Args:
            scores, logits: (k + 1, vocabulary), after the text and after each token of the limited draft.
        """
        return scores

    def commit(self, ids: Sequence[int]) -> None:
        """Adds tokens to the text."""
        return None


class Constraint(Grammar):
    """Follows a grammar with llguidance.

    Args:
        matcher: a matcher at the start of the answer, for this use alone.
        eos_ids: the tokens that may end the text.
    """

    seconds: float

    def __init__(self, matcher: LLMatcher, eos_ids: Sequence[int]) -> None:
        self._matcher, self._eos_ids = matcher, list(eos_ids)
        self._late = 0.0  # the deadline for the masks of the next pass
        self._masks: list[bytes] = []  # for each row of the next pass a bit for each token
        self.seconds = 0.0

    def forced(self) -> list[int]:
        return self._eos_ids[:1] if self._matcher.is_stopped() else self._matcher.compute_ff_tokens()

    def limited(self, draft: Draft) -> Draft:
        start = time.perf_counter()
        self._late = start + PASS_S
        self._masks = [self._mask()]
        rows = {-1: 0}  # index of the draft token before a row -> index of the row's mask
        path: list[int] = []  # the tokens that the matcher has read
        kept: list[int] = []
        for i, (id_, parent) in enumerate(zip(draft.ids, draft.parents, strict=True)):
            if parent not in rows:
                continue
            if not _allows(self._masks[rows[parent]], id_):
                if draft.probabilities is not None:
                    kept.append(i)
                    self._masks.append(EVERYTHING)
                continue
            kept.append(i)
            if id_ in self._eos_ids:
                self._masks.append(EVERYTHING)
                continue
            self._move(draft, path, draft.path(parent))
            self._read([id_])
            path.append(i)
            rows[i] = len(self._masks)
            self._masks.append(self._mask())
        self._move(draft, path, [])
        self.seconds = time.perf_counter() - start
        return draft.only(kept)

    def masked(self, scores: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        start = time.perf_counter()
        size = max(map(len, self._masks))
        packed = np.frombuffer(b"".join(mask or b"\xff" * size for mask in self._masks), np.uint8)
        bits = np.unpackbits(~packed.reshape(-1, size), axis=1, count=scores.shape[1], bitorder="little")
        refused = to_device(torch.from_numpy(bits).view(torch.bool), scores.device)
        masked = scores.masked_fill(refused, -torch.inf)
        if scores is not logits:
            nothing = masked.isneginf().all(dim=-1, keepdim=True)
            masked = torch.where(nothing, logits.masked_fill(refused, -torch.inf), masked)
        self.seconds += time.perf_counter() - start
        return masked

    def commit(self, ids: Sequence[int]) -> None:
        self._read([id_ for id_ in ids if id_ not in self._eos_ids])

    def _mask(self) -> bytes:
        mask = self._matcher.compute_bitmask()
        self._check()
        check(
            time.perf_counter() < self._late,
            f"The grammar could not be followed: its masks for one pass took more than {PASS_S:g} s. Make it simpler.",
        )
        return mask

    def _move(self, draft: Draft, path: list[int], to: Sequence[int]) -> None:
        """Moves the matcher from one branch to another, by way of their common ancestor. `path` becomes `to`."""
        same = shared(path, to)
        self._matcher.rollback(len(path) - same)
        self._read([draft.ids[i] for i in to[same:]])
        path[same:] = to[same:]

    def _read(self, ids: Sequence[int]) -> None:
        self._matcher.consume_tokens(list(ids))
        self._check()

    def _check(self) -> None:
        """Raises the matcher's error, if it has one.

        Raises:
            PlaygroundError: the matcher gave up, as on a text that can be read in too many ways.
        """
        if error := self._matcher.get_error():
            raise PlaygroundError(f"The grammar could not be followed: {brief(error)} Make it simpler.")


def _allows(mask: bytes, id_: int) -> bool:
    return id_ < 8 * len(mask) and bool(mask[id_ >> 3] >> (id_ & 7) & 1)


def grammar_for(request: Request, target: LoadedModel) -> Grammar:
    """Returns the grammar of a request, at the start of its answer. It is compiled once and cached with the target.

    Raises:
        PlaygroundError: the grammar is broken, no text satisfies it, or the target's tokenizer is not supported.
    """
    if not request.constraint:
        return Grammar()
    source = compiled(request)
    if source not in target.grammars:
        target.grammars[source] = matcher_of(request, _tokenizer(target))
        if len(target.grammars) > KEPT:
            del target.grammars[list(target.grammars)[1]]  # the oldest; the tokenizer comes first
    return Constraint(target.grammars[source].deep_copy(), sorted(target.eos_ids))


def _tokenizer(target: LoadedModel) -> LLTokenizer:
    """Returns the target's tokenizer in llguidance's form, which takes seconds to make for a large vocabulary."""
    if not isinstance(target.tokenizer, PreTrainedTokenizerFast) or not target.eos_ids:
        raise PlaygroundError(
            f"{target.name} cannot be held to a grammar: its tokenizer is of the slow kind, or it has no token that "
            "ends a text. Choose another model, or leave the grammar out."
        )
    if "" not in target.grammars:
        size = max(len(target.tokenizer), target.model.config.get_text_config(decoder=True).vocab_size)
        target.grammars[""] = from_tokenizer(target.tokenizer, n_vocab=size, eos_token=sorted(target.eos_ids))
    return target.grammars[""]
