"""The greedy drafts of a drafter after many positions of a text, made at once.

Each draft sees the text before its position and itself: all drafts are rows of the same passes, and a mask keeps them
from each other. `starts` are the positions of the drafts' first tokens, `hidden` the target's hidden states over the
text, (positions, layers x width). Every function returns a draft for each start.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from playground.decoding.drafters.hidden import TextVocabulary
from playground.decoding.runners.masks import additive
from playground.decoding.transfer import to_device
from playground.models.networks.dflash import DFlash
from playground.models.networks.eagle3 import Eagle3Head
from playground.models.networks.heads import ParallelHeads
from playground.models.networks.mtp import MtpLayer
from playground.models.networks.walked import Walked

Drafts = list[list[int]]


def of_heads(heads: ParallelHeads, ids: Sequence[int], hidden: Tensor, starts: Sequence[int], k: int) -> Drafts:
    vocabulary = TextVocabulary(heads)
    draft_ids = vocabulary.read(ids)
    last = to_device([ids[start - 1] for start in starts], hidden.device)
    states = hidden.index_select(0, to_device([start - 2 for start in starts], hidden.device))
    return draft_ids[vocabulary.logits(heads(last, states)).argmax(-1)][:, :k].tolist()


def of_layer(layer: MtpLayer | Eagle3Head, ids: Sequence[int], hidden: Tensor, starts: Sequence[int], k: int) -> Drafts:
    """Entry i of the layer's cache is of the token at i + 1."""
    device, n, rows = hidden.device, len(ids) - 1, to_device([start - 2 for start in starts], hidden.device)
    vocabulary = TextVocabulary(layer) if isinstance(layer, MtpLayer) else None
    draft_ids = vocabulary.read(ids) if vocabulary else layer.draft_ids
    cache = layer.new_cache()
    out = layer(to_device([ids[1:]], device), hidden[None, :n], cache).index_select(1, rows)
    text = torch.arange(n)[None] <= torch.tensor(starts)[:, None] - 2
    drafted: list[Tensor] = []
    for depth in range(1, k + 1):
        logits = layer.logits(out[0])
        logits = vocabulary.extended(logits, out[0]) if vocabulary else logits
        drafted.append(draft_ids[logits.argmax(-1)])
        if depth < k:
            mask = additive(_with_own(text, depth), out.dtype)
            out = layer(drafted[-1][None], out, cache, (rows + depth)[None], to_device(mask, device))
    return torch.stack(drafted, dim=1).tolist()


def of_assistant(model: PreTrainedModel, vocab_size: int, ids: Sequence[int], starts: Sequence[int], k: int) -> Drafts:
    """`model`: full attention in each layer. `vocab_size`: the target's. After an id that the model lacks, nothing can
    be drafted."""
    rows, n, cache = to_device([start - 1 for start in starts], model.device), max(starts), DynamicCache()
    if max(ids[:n]) >= model.config.get_text_config(decoder=True).vocab_size:
        return [[] for _ in starts]
    text = torch.arange(n)[None] < torch.tensor(starts)[:, None]
    tokens = to_device([list(ids[:n])], model.device)
    out = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=rows)
    drafted: list[Tensor] = []
    for depth in range(1, k + 1):
        drafted.append(out.logits[0, :, :vocab_size].argmax(-1))
        if depth < k:
            mask = to_device(additive(_with_own(text, depth), model.dtype), model.device)
            out = model(
                input_ids=drafted[-1][None], position_ids=(rows + depth)[None], attention_mask=mask,
                past_key_values=cache, use_cache=True,
            )  # fmt: skip
    return torch.stack(drafted, dim=1).tolist()


def of_block(network: DFlash, ids: Sequence[int], hidden: Tensor, starts: Sequence[int], k: int) -> Drafts:
    """A block begins with the token before its draft, and reads the hidden states before that token."""
    n, size, count = len(ids), network.block_size, len(starts)
    last = to_device([ids[start - 1] for start in starts], hidden.device)
    at = torch.tensor(starts)[:, None] - 1 + torch.arange(size)  # (blocks, size), positions
    positions = torch.cat([torch.arange(n), at.flatten()])
    text = (torch.arange(n) < at[:, :1]).repeat_interleave(size, dim=0)
    own = torch.eye(count, dtype=torch.bool).repeat_interleave(size, dim=0).repeat_interleave(size, dim=1)
    sees = torch.cat([text, own], dim=1)
    masks: dict[str, Tensor | None] = {}
    for kind in set(network.config.layer_types):
        near = network.sees(kind, positions[n:], positions)
        masks[kind] = to_device(sees[None, None] if near is None else sees & near, hidden.device)
    states = network.states(last, hidden, network.new_cache(), to_device(positions, hidden.device), masks)
    slots = states.view(count, network.drafts, -1)[:, :k].transpose(0, 1)  # (drafts, blocks, width)
    if isinstance(network, Walked):
        return _walked(network, slots, last)
    return network.draft_ids[network.logits(slots).argmax(-1)].T.tolist()


def _walked(network: Walked, slots: Tensor, last: Tensor) -> Drafts:
    memory, before, drafted = network.no_memory(slots[0]).expand(len(last), -1), last, list[Tensor]()
    for states in slots:
        slot = network.slot(network.logits(states), states, before, memory)
        before, memory = network.draft_ids[slot.logits.argmax(-1)], slot.memory
        drafted.append(before)
    return torch.stack(drafted, dim=1).tolist()


def _with_own(text: Tensor, depth: int) -> Tensor:
    """(drafts, text + depth x drafts): `text`, what each draft sees of it, and the draft's own token of each depth."""
    return torch.cat([text, *[torch.eye(len(text), dtype=torch.bool)] * depth], dim=1)
