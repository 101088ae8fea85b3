"""DSpark, and the base of networks that draft slots in one pass and then walk them (`Walked`).

In such a walk a slot's logits depend on the tokens chosen before it.

DeepSeek-AI 2026, "DSpark": DFlash's block with a Markov head, which makes a slot depend on the token before it, and a
confidence head. A pass over the block gives states h_1 … h_γ and logits as in DFlash. From left to right, the Markov
head adds W2 f(W1[x_k-1], h_k) to the logits of slot k, where x_0 is the last token of the sequence:

    vanilla  f = W1[x_k-1]
    gated    f = g ⊙ W1[x_k-1],  g = σ(W_g [h_k; W1[x_k-1]])
    rnn      f = tanh(o),  [z; c; o] = W [s_k-1; W1[x_k-1]; h_k],  s_k = σ(z) ⊙ s_k-1 + (1 - σ(z)) ⊙ tanh(c),  s_0 = 0

The confidence head gives σ(w [h_k; W1[x_k-1]] + b), the probability that the token of slot k is accepted. It does not
read x_k: a draft that ends by it stays exact.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.errors import PlaygroundError
from playground.models.networks.dflash import DFlash, load_block
from playground.models.networks.dflash_files import BlockFiles, under


class Slot(NamedTuple):
    """The output for a slot once the tokens before it are chosen, with a row for each branch.

    `logits`: (rows, draft vocabulary); `confidence`: (rows,), None without a head for it; `memory`: (rows, values), the
    network's state for each branch.
    """

    logits: Tensor
    confidence: Tensor | None
    memory: Tensor


class Walked(DFlash):
    """The base of networks that are walked. The arguments are those of `DFlash`."""

    def output(self, states: Tensor) -> Tensor:
        return states

    def no_memory(self, states: Tensor) -> Tensor:
        """Returns the memory before the first slot, (1, values)."""
        return states.new_zeros(1, 0)

    @abstractmethod
    def slot(self, index: int, base: Tensor, state: Tensor, ids: Tensor, memory: Tensor) -> Slot:
        """Computes a slot for several branches.

        Args:
            index: the slot's, from 0.
            base: (draft vocabulary,), the slot's logits before any token is chosen.
            state: (width,), the slot's.
            ids: (rows,), the token before the slot in each branch.
            memory: (rows, values), the memory of each branch.
        """


PARTS = r"|markov_head\.(markov_w1|markov_w2|gate_proj|joint_proj)\.(weight|bias)|confidence_head\.proj\.(weight|bias)"
GATED, RNN = "markov_head.gate_proj.weight", "markov_head.joint_proj.weight"


class MarkovHead(nn.Module):
    """The Markov head.

    Args:
        kind: vanilla, gated or rnn.
        vocabulary, drafted: the sizes of the target's vocabulary and of the draft vocabulary.
    """

    def __init__(self, kind: str, vocabulary: int, drafted: int, rank: int, width: int, **like: Any) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocabulary, rank, **like)
        self.markov_w2 = nn.Linear(rank, drafted, bias=False, **like)
        self.gate_proj = nn.Linear(width + rank, rank, **like) if kind == "gated" else None
        self.joint_proj = nn.Linear(2 * rank + width, 3 * rank, **like) if kind == "rnn" else None

    def forward(self, before: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the head for slot k.

        Args:
            before: (rows, rank), W1[x_k-1].
            state: (rows, width), h_k.
            memory: (rows, rank), s_k-1.

        Returns:
            (rows, draft vocabulary), to be added to the logits; and s_k, (rows, rank).
        """
        if self.gate_proj is not None:
            before = torch.sigmoid(self.gate_proj(torch.cat([state, before], dim=-1))) * before
        elif self.joint_proj is not None:
            z, c, o = self.joint_proj(torch.cat([memory, before, state], dim=-1)).chunk(3, dim=-1)
            z = torch.sigmoid(z)
            memory, before = z * memory + (1 - z) * torch.tanh(c), torch.tanh(o)
        return self.markov_w2(before), memory


class DSpark(Walked):
    """The network.

    Args:
        markov: the Markov head; None for a drafter without one.
        confidence: the confidence head, which reads (…, width) or (…, width + rank); None for a drafter without one.
        others: the arguments of `DFlash`.
    """

    def __init__(self, markov: MarkovHead | None, confidence: nn.Linear | None, **others: Any) -> None:
        super().__init__(**others)
        self.markov_head = markov
        self.confidence_head = confidence

    def no_memory(self, states: Tensor) -> Tensor:
        """Returns s_0, (1, rank)."""
        return states.new_zeros(1, self.markov_head.markov_w1.embedding_dim if self.markov_head is not None else 0)

    def slot(self, index: int, base: Tensor, state: Tensor, ids: Tensor, memory: Tensor) -> Slot:
        states, logits = state.expand(len(ids), -1), base.expand(len(ids), -1)
        read = states
        if self.markov_head is not None:
            before = self.markov_head.markov_w1(ids).to(states.dtype)
            read = torch.cat([states, before], dim=-1)
            added, memory = self.markov_head(before, states, memory)
            logits = logits + added
        if self.confidence_head is None:
            return Slot(logits, None, memory)
        chance = self.confidence_head(read[:, : self.confidence_head.in_features])
        return Slot(logits, torch.sigmoid(chance[:, 0].float()), memory)


def _heads(files: BlockFiles, target: PreTrainedModel) -> tuple[MarkovHead | None, nn.Linear | None]:
    return _markov_head(files, target), _confidence_head(files, target)


def _markov_head(files: BlockFiles, target: PreTrainedModel) -> MarkovHead | None:
    """Returns the Markov head; its tensors decide its kind. None if there are none.

    Raises:
        PlaygroundError: the config names another kind of head, or the head's sizes or its state over the slots do not
            fit.
    """
    parts, given = files.parts, files.layout.given
    if "markov_head.markov_w1.weight" not in parts:
        return None
    kind = "gated" if GATED in parts else "rnn" if RNN in parts else "vanilla"
    named = str(given.get("markov_head_type") or kind).lower()
    if named != kind:
        raise PlaygroundError(
            f"The config.json of {files.weights.name} names a Markov head {named!r}, and its tensors are those of "
            f"{kind!r}. Only vanilla, gated and rnn are known. Choose another drafter."
        )
    if kind == "rnn" and not files.layout.from_anchor:
        raise PlaygroundError(
            f"{files.weights.name} has an rnn Markov head whose first slot drafts nothing (sample_from_anchor is "
            "false). What the head remembers of that slot is not known. Choose another drafter."
        )
    (vocabulary, rank), (drafted, _) = (parts[f"markov_head.markov_w{i}.weight"].shape for i in (1, 2))
    like: dict[str, Any] = {"dtype": target.dtype, "device": target.device}
    known = target.config.get_text_config(decoder=True).vocab_size
    if (vocabulary, drafted) != (known, known if files.draft_ids is None else len(files.draft_ids)):
        raise PlaygroundError(
            f"The Markov head of {files.weights.name} has {vocabulary:,} tokens before and {drafted:,} after, and the "
            f"target and the draft have others. Fetch it again, or choose another drafter."
        )
    head = MarkovHead(kind, vocabulary, drafted, rank, files.base.config.hidden_size, **like)
    head.load_state_dict(under("markov_head.", parts))
    return head


def _confidence_head(files: BlockFiles, target: PreTrainedModel) -> nn.Linear | None:
    """Returns the confidence head; None if there are no tensors for it.

    Raises:
        PlaygroundError: the head's input is not the state of a slot, with or without the Markov head's embedding.
    """
    state = under("confidence_head.proj.", files.parts)
    if not state:
        return None
    width, markov = files.base.config.hidden_size, files.parts.get("markov_head.markov_w1.weight")
    reads = state["weight"].shape[1]
    if reads not in (width, width + (0 if markov is None else markov.shape[1])):
        raise PlaygroundError(
            f"The confidence head of {files.weights.name} reads {reads:,} values, which are not the state of a slot "
            f"({width:,}) with or without the Markov head's. Choose another drafter."
        )
    head = nn.Linear(reads, 1, dtype=target.dtype, device=target.device)
    head.load_state_dict(state)
    return head


load_dspark = partial(load_block, "dspark", DSpark, PARTS, _heads)
