"""Drafters that draft all positions in one pass: a position's logits do not depend on the tokens chosen before it.

Verification is exact for all of them; Medusa's lossy "typical acceptance" is not used.

- Parallel heads on one hidden state of the target: Gloeckle et al. 2024; models/networks/heads.py.
- Medusa's heads: Cai et al. 2024 (arXiv 2401.10774); models/networks/heads.py. The target's own head chose the last
  token from the hidden state before it; from the same state head k, counted from 0, proposes the token k + 1 positions
  after it.
- DFlash, one pass over mask tokens that attend to the target's hidden states: Chen et al. 2026 (arXiv 2602.06036);
  models/networks/dflash.py. A tree over its positions is DDTree (Ringel and Romano 2026, arXiv 2604.12989).
- P-EAGLE, one pass of an EAGLE-3 head over slots of a mask token after the text: models/networks/eagle3.py.
- PARD, a small causal language model trained to draft from mask tokens after the text: An et al. 2025 (arXiv
  2504.18583). It reads nothing of the target. The last token predicts the next one as usual, and each mask token after
  it the one after that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F

from playground.decoding.drafters.base import Branches, ModelBranches
from playground.decoding.drafters.build import Setup
from playground.decoding.drafters.hidden import BlockBranches, HiddenBranches, TextVocabulary
from playground.decoding.runners.base import Runner
from playground.decoding.runners.static import StaticRunner
from playground.decoding.transfer import to_device
from playground.models.attention import context_of
from playground.models.networks.eagle3 import PEagleHead
from playground.models.networks.heads import MedusaHeads, ParallelHeads
from playground.models.sizing import cache_bytes


class ParallelBranches(Branches, ABC):
    """The base of these drafters: `Branches` as deep as the positions of the pass. A text of any length is allowed,
    unless a subclass sets `context`.

    `positions`: (deepest, draft vocabulary), the logits of all positions of the draft.
    """

    positions: torch.Tensor
    _position = 0

    @abstractmethod
    def _drafted(self, ids: Sequence[int]) -> torch.Tensor | None:
        """Returns the logits of all positions after the sequence `ids`, (deepest, draft vocabulary); None if nothing
        can be drafted yet."""

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        positions = self._drafted(ids)
        if positions is None:
            return None
        self.positions = positions
        self._position = 0
        return self.positions[:1]

    def grow(self, ids: Sequence[int] | torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        self._position += 1
        return self.positions[self._position].expand(len(ids), -1)


class HiddenParallelBranches(HiddenBranches, ParallelBranches):
    """The base of those that read the target's hidden states. `target` and `layers` are those of `HiddenBranches`."""

    def __init__(self, draft_ids: torch.Tensor, deepest: int, target: Runner, layers: Sequence[int] = (-1,)) -> None:
        super().__init__(target, layers)
        self.draft_ids, self.deepest = draft_ids, deepest

    @abstractmethod
    def _all(self, ids: Sequence[int], hidden: torch.Tensor) -> torch.Tensor:
        """Returns the logits of all positions, (deepest, draft vocabulary).

        Args:
            ids: the sequence.
            hidden: (positions, layers x width), at the positions not read yet, up to the one before the last token.
        """

    def _drafted(self, ids: Sequence[int]) -> torch.Tensor | None:
        hidden = self._hidden()
        return None if hidden is None else self._all(ids, hidden)


class HeadsBranches(HiddenParallelBranches):
    """Drafts with parallel heads that were trained for the target and have a reduced vocabulary."""

    def __init__(self, heads: ParallelHeads, target: Runner) -> None:
        super().__init__(heads.draft_ids, heads.count, target, heads.layers)
        self._heads = heads
        self._vocabulary = TextVocabulary(heads)

    def rewind(self, length: int) -> int:
        self._vocabulary.clear()
        return super().rewind(length)

    def _all(self, ids: Sequence[int], hidden: torch.Tensor) -> torch.Tensor:
        self.draft_ids = self._vocabulary.read(ids)
        if not isinstance(self._target, StaticRunner):
            return self._vocabulary.logits(self._heads(to_device(ids[-1:], hidden.device)[0], hidden[-1]))
        numbers = torch.cat([torch.tensor(ids[-1:]), self._vocabulary.further])
        return self._target.run(self._heads, partial(_logits, self._heads), hidden[-1], numbers)[0]


def _logits(heads: ParallelHeads, hidden: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor]:
    """Returns the logits of all heads. `numbers`: the last token, then what `SharedHead.further` takes."""
    states = heads(numbers[0], hidden)
    return (torch.cat([heads.logits(states), F.linear(states, *heads.further(numbers[1:]))], dim=-1),)


class MedusaBranches(HiddenParallelBranches):
    """Drafts with published Medusa heads."""

    def __init__(self, heads: MedusaHeads, target: Runner) -> None:
        super().__init__(heads.draft_ids, heads.count, target)
        self._heads = heads

    def _all(self, ids: Sequence[int], hidden: torch.Tensor) -> torch.Tensor:
        return self._target.run(self._heads, lambda last: (self._heads(last),), hidden[-1])[0]


class DFlashBranches(BlockBranches, ParallelBranches):
    """Drafts a block with DFlash."""

    def _drafted(self, ids: Sequence[int]) -> torch.Tensor | None:
        hidden = self._hidden()
        return None if hidden is None else self._block.read(ids[-1], hidden)


class PEagleBranches(HiddenParallelBranches):
    """Drafts with a P-EAGLE head. The cache entries of the text last across rounds; those of the slots are dropped when
    their draft is done."""

    def __init__(self, head: PEagleHead, target: Runner) -> None:
        super().__init__(head.draft_ids, head.drafts, target, head.layers)
        self.context = context_of(head.config)
        self._head = head
        self._cache = head.new_cache()
        self._cache.activate_past_recording()
        self._entries = 0  # entries of the text in the head's cache

    @property
    def cache_bytes(self) -> int:
        return cache_bytes(self._cache)

    def _all(self, ids: Sequence[int], hidden: torch.Tensor) -> torch.Tensor:
        tokens = to_device(ids[self._entries + 1 :], hidden.device)
        self._entries = len(ids) - 1
        return self._head.drafted(tokens, hidden, self._cache)

    def end(self) -> None:
        self._cache.crop(1 - self._head.drafts)

    def rewind(self, length: int) -> int:
        """Implements `Drafter.rewind`. Entry i is for the token at i + 1, so there is none for the last token."""
        kept = min(self._entries, length - 1)
        if kept < 1 or any(getattr(layer, "sliding_window", None) for layer in self._cache.layers):
            return 0
        super().rewind(kept)
        self._cache.crop(kept - self._entries)
        self._entries = kept
        return kept


DRAFTS = 8  # tokens of a PARD pass: the paper trains so many


class PardBranches(ModelBranches, ParallelBranches):
    """Drafts with a PARD model. The mask tokens are dropped when their draft is done. `mask`: the id of the mask
    token."""

    deepest = DRAFTS

    def __init__(self, model: Runner, mask: int, vocab_size: int) -> None:
        super().__init__(model, vocab_size)
        self._mask = mask
        self._text = 0  # tokens of the text

    def _drafted(self, ids: Sequence[int]) -> torch.Tensor | None:
        """Returns the logits of DRAFTS positions, or of fewer near the end of the model's context; None where the text
        has a token that the model lacks."""
        text = ids[self._model.length :]
        if max(text) >= self._model.vocab_size:
            return None
        self._text = len(ids)
        drafts = min(DRAFTS, self.context - len(ids))
        return self._model.forward([*text, *[self._mask] * (drafts - 1)], keep=drafts)[:, : len(self.draft_ids)]

    def end(self) -> None:
        self._model.commit(self._text)


def branches(setup: Setup) -> PardBranches:
    mask = setup.assistant.model.config.pard_token
    return PardBranches(setup.runners(setup.assistant, "assistant"), mask, setup.target.vocab_size)
