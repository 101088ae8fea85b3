"""Models with known distributions, for tests that need to know what must come out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache

import torch

from playground.decoding.drafters.base import NOTHING, Draft, Drafter
from playground.decoding.sampling import Sampler
from playground.lane import Request

GREEDY = Sampler(Request("x"), torch.device("cpu"))

Law = Callable[[Sequence[int]], torch.Tensor]  # text -> (vocabulary,) logits


def random_law(seed: int, vocab_size: int, spread: float = 1.5) -> Law:
    """Logits that depend on the last two tokens only, the same on every call."""

    @cache
    def after(last: tuple[int, ...]) -> torch.Tensor:
        rng = random.Random(f"{seed} {list(last)}")
        return torch.tensor([rng.gauss(0, spread) for _ in range(vocab_size)])

    return lambda ids: after(tuple(ids[-2:]))


def counting_law(vocab_size: int) -> Law:
    """Always continues n with n + 1, round and round, with a clear margin."""

    def law(ids: Sequence[int]) -> torch.Tensor:
        logits = torch.zeros(vocab_size)
        logits[(ids[-1] + 1) % vocab_size] = 5.0
        return logits

    return law


class FakeModel:
    """A runner of a law. Counts its passes and refuses to be fed tokens that do not follow its cache."""

    device = torch.device("cpu")
    recurrent, takes_trees, discards_old = False, True, False

    def __init__(self, law: Law, vocab_size: int, context_limit: int = 10_000) -> None:
        self.law, self.vocab_size, self.context_limit = law, vocab_size, context_limit
        self.text: list[int] = []
        self.length = 0
        self.passes = 0
        self.fed = 0

    def first_layers(self, law: Law) -> FakeModel:
        """On the same cache, under another law."""
        view = FakeModel(law, self.vocab_size, self.context_limit)
        view.text, view.length = self.text, self.length
        return view

    def prepare(self) -> None:
        pass

    def computed(self, tokens: int) -> int:
        return tokens

    def forward(self, ids: Sequence[int] | torch.Tensor, keep: int, tree: Sequence[int] | None = None) -> torch.Tensor:
        ids = ids.tolist() if isinstance(ids, torch.Tensor) else ids
        assert 1 <= keep <= len(ids)
        assert len(self.text) == self.length
        self.passes += 1
        self.fed += len(ids)
        self.text += ids
        self.length += len(ids)
        if tree is not None:
            draft = Draft(list(ids[-len(tree) :]), [1.0] * len(tree), tree=list(tree))
            text = self.text[: -len(tree)]
            paths = [draft.path(i) for i in range(-1, len(tree))]
            return torch.stack([self.law(text + [draft.ids[i] for i in path]) for path in paths])
        ends = range(len(self.text) - keep + 1, len(self.text) + 1)
        return torch.stack([self.law(self.text[:end]) for end in ends])

    def commit(self, length: int, path: Sequence[int] = ()) -> None:
        assert length + len(path) <= self.length
        self.text[length:] = [self.text[length + i] for i in path]
        self.length = len(self.text)


class ScriptedDrafter(Drafter):
    """Drafts what a function of the text says, as a lookup would (q is one-hot)."""

    def __init__(self, script: Callable[[Sequence[int], int], list[int]]) -> None:
        self.script = script
        self.committed: list[int] = []

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        draft = self.script(ids, k)
        return Draft(draft, [1.0] * len(draft)) if draft else NOTHING

    def commit(self, length: int) -> None:
        self.committed.append(length)


class NumberTokenizer:
    """Token n is the text "n "; just what Detokenizer needs."""

    all_special_ids = ()
    eos_token_id = None

    def __init__(self) -> None:
        self.added_tokens_decoder = {}

    def decode(self, ids: Sequence[int], **_: object) -> str:
        return "".join(f"{id_} " for id_ in ids)
