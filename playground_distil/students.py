"""Drafters in training: the loss of each kind on a batch, and which of its draft tokens would be accepted.

A student is trained on the target's own distribution after every token (its CHOICES most likely tokens), at several
positions ahead, because a drafter reads its own drafts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.models.attention import decoder_of
from playground.models.networks.heads import ParallelHeads
from playground.models.networks.mtp import MtpLayer
from playground_distil.data import Batch

RECURSIVE_FROM = 0.7  # progress up to which a recursive drafter learns its first position alone, which is quicker
FEATURES = 2.0  # weight of the loss on the target's hidden states, relative to that on its choices, for an MTP layer
DECAY = 0.8  # weight of a position's loss, relative to the position before it


@dataclass(frozen=True)
class Lesson:
    """The result for a batch. `agreed`: [drafts, positions] bool, true where a draft token is the target's choice; only
    drafts that fit into the answer are included."""

    loss: Tensor
    agreed: Tensor


class Student(Protocol):
    """A network in training."""

    @property
    def module(self) -> nn.Module:
        """The network that is trained."""

    def lesson(self, batch: Batch, progress: float = 1.0) -> Lesson:
        """Computes the loss on a batch. `progress`: the progress of training, from 0 to 1."""


class DraftVocabulary:
    """Compares logits over a draft vocabulary with the target's choices."""

    def __init__(self, draft_ids: Tensor, vocab_size: int) -> None:
        self.slot = torch.full((vocab_size,), -1, device=draft_ids.device)
        self.slot[draft_ids] = torch.arange(len(draft_ids), device=draft_ids.device)

    def compare(self, logits: Tensor, choices: Tensor, chances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the cross-entropy with the target's likeliest tokens; whether both have the same likeliest token; and
        the chance that a sampled draft token is accepted, as far as CHOICES determine it: the sum of min(p, q) over
        them. Each is [m].

        Args:
            logits: [m, draft vocabulary]. choices, chances: [m, CHOICES].
        """
        slots = self.slot[choices]
        there = slots >= 0
        log_q = logits.float().log_softmax(-1)
        found = log_q.gather(1, slots.clamp(min=0))
        overlap = (torch.minimum(found.exp(), chances) * there).sum(-1)
        return -(found * chances * there).sum(-1), log_q.max(-1).indices == slots[:, 0], overlap


class RecursiveStudent:
    """Trains a layer to draft recursively: position s is drafted from the layer's own output at position s - 1.

    In decoding an entry sees the real entries of the text and the drafted ones of its own draft. Here every place of
    the answer starts a draft, all at once: the entries of step 0 see each other causally, those of step s also the
    entry of each earlier step of their own draft ("training-time test", Li et al. 2025, EAGLE-3). Prompts take part in
    step 0 alone.
    """

    def __init__(self, layer: nn.Module, draft_ids: Tensor, vocab_size: int, steps: int) -> None:
        self.module: Any = layer.float()
        self._vocabulary = DraftVocabulary(draft_ids, vocab_size)
        self._steps = steps

    def start(self, batch: Batch, n: int) -> Tensor:
        """Returns the target's features that the layer reads, [rows, n, …]."""
        raise NotImplementedError

    def apart(self, hidden: Tensor, wanted: Tensor) -> Tensor:
        """Returns the loss on the layer's states, which is added to that on its choices. `hidden`, `wanted`: [entries,
        width]."""
        return hidden.new_zeros(())

    def lesson(self, batch: Batch, progress: float = 1.0) -> Lesson:
        steps = self._steps if progress >= RECURSIVE_FROM else 1
        rows, n = batch.ids.shape[0], batch.ids.shape[1] - steps
        cache = self.module.new_cache()
        hidden = self.start(batch, n)
        sees = torch.ones(n, n, dtype=torch.bool, device=hidden.device).tril()
        whole = _whole(batch, steps)
        first = int(whole.any(0).nonzero()[0])  # no draft that counts starts before
        losses, agreed = [], []
        for s in range(steps):
            if s == 1:
                hidden, sees, whole = hidden[:, first:], sees[first:], whole[:, first:]
            if s > 0:
                sees = torch.cat([sees, torch.eye(n - first, dtype=torch.bool, device=hidden.device)], dim=1)
            places = torch.arange(n - hidden.shape[1], n, device=hidden.device) + s
            ids, there, choices, chances, wanted = (
                tensor[:, places + 1]
                for tensor in (batch.ids, batch.there, batch.choices, batch.chances, batch.features[:, :, -1])
            )
            mask = torch.zeros(sees.shape, device=hidden.device).masked_fill(~sees, float("-inf"))
            hidden = self.module(ids, hidden, cache, places[None], mask.expand(rows, 1, *mask.shape))
            loss, agree, _ = self._vocabulary.compare(self.module.logits(hidden[whole]), choices[whole], chances[whole])
            losses.append(DECAY**s * (loss.mean() + self.apart(hidden[there].float(), wanted[there].float())))
            agreed.append(agree)
        return Lesson(torch.stack(losses).sum(), torch.stack(agreed, dim=1))


class MtpStudent(RecursiveStudent):
    """Trains an MTP layer. Its output also learns the target's hidden state at the next place, as in EAGLE (Li et al.
    2024): a state carries more information than a choice, and the next step reads it."""

    def __init__(self, layer: MtpLayer, steps: int) -> None:
        super().__init__(layer, layer.draft_ids, layer.vocab_size, steps)

    def start(self, batch: Batch, n: int) -> Tensor:
        return batch.features[:, :n, -1].float()

    def apart(self, hidden: Tensor, wanted: Tensor) -> Tensor:
        return FEATURES * F.smooth_l1_loss(hidden, wanted)


class HeadsStudent:
    """Trains parallel heads: each learns its position independently of the others."""

    def __init__(self, heads: ParallelHeads) -> None:
        self.module = heads.float()
        self._vocabulary = DraftVocabulary(heads.draft_ids, heads.vocab_size)
        self._steps = heads.count

    def lesson(self, batch: Batch, progress: float = 1.0) -> Lesson:
        n = batch.ids.shape[1] - self._steps
        whole = _whole(batch, self._steps)
        hidden = self.module(batch.ids[:, 1 : 1 + n][whole], batch.features[:, :n, -1][whole].float())
        logits = self.module.logits(hidden)
        losses, agreed = [], []
        for s in range(self._steps):
            ahead = slice(s + 1, s + 1 + n)
            choices, chances = batch.choices[:, ahead][whole], batch.chances[:, ahead][whole]
            loss, agree, _ = self._vocabulary.compare(logits[:, s], choices, chances)
            losses.append(DECAY**s * loss.mean())
            agreed.append(agree)
        return Lesson(torch.stack(losses).sum(), torch.stack(agreed, dim=1))


class AssistantStudent:
    """Trains a small causal language model that reads only tokens. Only the first position is trained and measured: the
    model reads its own drafts like any other text."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.module = model.float()
        vocab_size = model.config.vocab_size
        self._vocabulary = DraftVocabulary(torch.arange(vocab_size, device=model.device), vocab_size)

    def lesson(self, batch: Batch, progress: float = 1.0) -> Lesson:
        hidden = decoder_of(self.module)(input_ids=batch.ids, use_cache=False).last_hidden_state
        logits = self.module.get_output_embeddings()(hidden[batch.counts])
        loss, agree, _ = self._vocabulary.compare(logits, batch.choices[batch.counts], batch.chances[batch.counts])
        return Lesson(loss.mean(), agree[:, None])


def _whole(batch: Batch, steps: int) -> Tensor:
    """Returns [rows, n - steps] bool, true where the target wrote all positions of the draft that starts there."""
    n = batch.ids.shape[1] - steps
    return torch.stack([batch.counts[:, s + 1 : s + 1 + n] for s in range(steps)]).all(0)
