"""Estimates how many tokens a drafter would have had accepted over an existing text, without decoding it (`counts`).

One pass of the target over the text gives its choice at every position, and the drafts after many positions are made at
once: lookups and assistants read tokens alone, networks the hidden states that this pass has left. A draft's position
is judged where all of the draft before it is both the text and the target's choice, so that the target's choice there
is known.

Tokens per check come from the rounds that decoding would have: each starts after the token that the target added to the
one before. Drafts at all positions give acceptance by depth, from more drafts, and not tokens per check: the more of a
draft is accepted, the fewer of its positions start a round (prompt lookup on the starter: 2.41 and 1.63).

The `of_…` functions make the greedy drafts. Each draft sees the text before its position and itself: all drafts are
rows of the same passes, and a mask hides them from each other. `starts` are the positions of the drafts' first tokens,
`hidden` the target's hidden states over the text, (positions, layers x width). Each returns a draft for each start.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from playground.decoding.drafters.hidden import TextVocabulary
from playground.decoding.drafters.lookup import NgramDrafter, SuffixDrafter
from playground.decoding.runners.buffers import additive
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.sampling import Sampler
from playground.decoding.transfer import to_device
from playground.lane import Lane
from playground.metrics.drafts import Counts
from playground.models.attention import context_of
from playground.models.networks.dflash import DFlash
from playground.models.networks.dspark import Walked
from playground.models.networks.eagle3 import Eagle3Head
from playground.models.networks.heads import ParallelHeads
from playground.models.networks.mtp import MtpLayer
from playground.models.networks.readings import Reading, read_as, readings, undo
from playground.models.store import LoadedPair

Drafts = list[list[int]]


def of_heads(heads: ParallelHeads, ids: Sequence[int], hidden: Tensor, starts: Sequence[int], k: int) -> Drafts:
    """Drafts with parallel heads."""
    vocabulary = TextVocabulary(heads)
    draft_ids = vocabulary.read(ids)
    last = to_device([ids[start - 1] for start in starts], hidden.device)
    states = hidden.index_select(0, to_device([start - 2 for start in starts], hidden.device))
    return draft_ids[vocabulary.logits(heads(last, states)).argmax(-1)][:, :k].tolist()


def of_layer(layer: MtpLayer | Eagle3Head, ids: Sequence[int], hidden: Tensor, starts: Sequence[int], k: int) -> Drafts:
    """Drafts with an MTP layer or an EAGLE-3 head. Entry i of the layer's cache is for the token at i + 1."""
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
    """Drafts with an assistant that has full attention in each layer. `vocab_size`: the target's. Nothing is drafted if
    the text has an id that the model lacks."""
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
    """Drafts with DFlash or a network over it. A block begins with the token before its draft, and reads the hidden
    states before that token."""
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
    for index, states in enumerate(slots):
        slot = network.slot(index, network.logits(states), states, before, memory)
        before, memory = network.draft_ids[slot.logits.argmax(-1)], slot.memory
        drafted.append(before)
    return torch.stack(drafted, dim=1).tolist()


def _with_own(text: Tensor, depth: int) -> Tensor:
    """Returns a mask, (drafts, text + depth x drafts) bool: each draft sees its part of the text, and its own token of
    each depth. `text`: (drafts, text) bool."""
    return torch.cat([text, *[torch.eye(len(text), dtype=torch.bool)] * depth], dim=1)


ROWS = 256  # the most drafts that are made at once
LOOKUPS = {"ngram": NgramDrafter, "suffix": SuffixDrafter}
CHAINS = (MtpLayer, Eagle3Head, ParallelHeads, DFlash)
# The methods of the chains. Not DFlash 2, whose convolutions would join blocks.
METHODS = ("mtp", "eagle3", "heads", "dflash", "dspark", "domino")


def possible(models: LoadedPair, lane: Lane) -> bool:
    """True where this lane's drafts can be made at all positions at once."""
    module = models.drafting.module if models.drafting else None
    if lane.drafter in LOOKUPS:
        return True
    if lane.drafter == "assistant":
        return isinstance(module, PreTrainedModel) and not EagerRunner(module).discards_old
    window = getattr(getattr(module, "config", None), "sliding_window", None)
    return lane.drafter in METHODS and isinstance(module, CHAINS) and (isinstance(module, DFlash) or not window)


@torch.inference_mode()
def counts(
    models: LoadedPair, lane: Lane, sampler: Sampler, prompt_ids: Sequence[int], answer_ids: Sequence[int]
) -> Counts:
    """Judges the drafts of a lane, one that is `possible`, over a logged answer. `sampler`: a greedy request's."""
    module = models.drafting.module if models.drafting else None
    text = _read(models, sampler, prompt_ids, answer_ids, module.layers if isinstance(module, CHAINS) else ())
    return _counted(text, lane, module, sampler)


@torch.inference_mode()
def under_readings(
    models: LoadedPair, lane: Lane, sampler: Sampler, prompt_ids: Sequence[int], answer_ids: Sequence[int]
) -> tuple[dict[str, tuple[Reading, Counts]], Counter[int]]:
    """Judges the drafts of a lane, one that is `possible`, over an answer: as they are, under "", and under each of
    `readings`. The target reads the answer once. Returns its choices, too, counted."""
    module = models.drafting.module if models.drafting else None
    tried: dict[str, Reading] = {"": {}} | (readings(module, models.target) if module else {})
    own = module.layers if isinstance(module, CHAINS) else ()
    layers = dict.fromkeys([*own, *(layer for reading in tried.values() for layer in reading.get("layers", ()))])
    text, found = _read(models, sampler, prompt_ids, answer_ids, [*layers]), dict[str, tuple[Reading, Counts]]()
    for name, reading in tried.items():
        changed = read_as(module, reading) if module else []
        try:
            found[name] = reading, _counted(text, lane, module, sampler)
        finally:
            undo(changed)
    return found, Counter(text.choice.values())


@dataclass(frozen=True)
class _Read:
    """A text that the target has read. `first`: the answer's first position. `choice`: the target's, of the token at
    each position from there on. `hidden`: its hidden states by layer, (positions, width). `vocab_size`: its own."""

    ids: list[int]
    first: int
    choice: dict[int, int]
    hidden: Mapping[int, Tensor]
    vocab_size: int


def _read(
    models: LoadedPair,
    sampler: Sampler,
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    layers: Sequence[int],
) -> _Read:
    ids, first, target = [*prompt_ids, *answer_ids], len(prompt_ids), EagerRunner(models.target.model)
    if layers:
        target.watch(layers)
    logits = target.forward(ids, keep=len(answer_ids) + 1)
    chosen = sampler.scores(logits, lambda row: ids[: first + row]).argmax(-1).tolist()
    hidden = dict(zip(layers, target.hidden.chunk(len(layers), dim=-1), strict=True)) if layers else {}
    return _Read(ids, first, {first + i: id_ for i, id_ in enumerate(chosen)}, hidden, target.vocab_size)


def _counted(text: _Read, lane: Lane, module: nn.Module | None, sampler: Sampler) -> Counts:
    ids, first, end = text.ids, text.first, len(text.ids)
    drafts = _all_drafts(text, lane, module, sampler)
    verdicts = [_judged(text, draft, start) for start, draft in drafts.items()]
    rounds, at = list[_Verdict](), first
    while at < end:
        # A round leaves room for the token that the target adds.
        rounds.append(_judged(text, drafts.get(at, ())[: end - 1 - at], at))
        at += rounds[-1].accepted + (not rounds[-1].cut)
    agreed = sum(text.choice[at] == ids[at] for at in range(first, end))
    return Counts(*_by_depth(verdicts, lane.lookahead), *_by_depth(rounds, lane.lookahead), agreed, end - first)


def _all_drafts(text: _Read, lane: Lane, module: nn.Module | None, sampler: Sampler) -> dict[int, Sequence[int]]:
    """Returns the draft of each position at which one can start. Past its context a drafter drafts nothing."""
    first = text.first + (lane.drafter in METHODS)  # whose networks have nothing to read before the prefill
    config = getattr(module, "config", None)  # heads have no positions
    context = context_of(config) if config else sys.maxsize
    found: dict[int, Sequence[int]] = {}
    for low in range(first, len(text.ids), ROWS):
        starts = range(low, min(low + ROWS, len(text.ids)))
        within = [start for start in starts if start < context]
        found |= dict.fromkeys(starts, ())
        if within:
            found |= zip(within, _drafts(text, lane, module, sampler, within), strict=True)
    return {start: draft[: max(0, context - start)] for start, draft in found.items()}


@dataclass(frozen=True)
class _Verdict:
    """How many tokens of a draft are accepted. `cut`: the text is not the target's choice at the last of them, so that
    nothing is known of the next."""

    accepted: int
    cut: bool = False


def _judged(text: _Read, draft: Sequence[int], start: int) -> _Verdict:
    for i, id_ in enumerate(draft):
        at = start + i
        if id_ != text.choice[at]:
            return _Verdict(i)
        if at == len(text.ids) or id_ != text.ids[at]:
            return _Verdict(i + 1, cut=True)
    return _Verdict(len(draft))


def _by_depth(verdicts: Sequence[_Verdict], lookahead: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns how many drafts reached each of their positions, and how many had it accepted."""
    reached = (sum(it.accepted - it.cut >= depth for it in verdicts) for depth in range(lookahead))
    accepted = (sum(it.accepted > depth for it in verdicts) for depth in range(lookahead))
    return tuple(reached), tuple(accepted)


def _drafts(
    text: _Read, lane: Lane, module: nn.Module | None, sampler: Sampler, starts: Sequence[int]
) -> Sequence[Sequence[int]]:
    ids, k = text.ids, lane.lookahead
    if lane.drafter in LOOKUPS:
        lookup = LOOKUPS[lane.drafter]()
        return [lookup.propose(ids[:start], k, 0.0, sampler).ids for start in starts]
    if isinstance(module, PreTrainedModel):
        return of_assistant(module, text.vocab_size, ids, starts, k)
    assert isinstance(module, CHAINS)
    hidden = torch.cat([text.hidden[layer] for layer in module.layers], dim=-1)
    if isinstance(module, ParallelHeads):
        return of_heads(module, ids, hidden, starts, k)
    if isinstance(module, DFlash):
        return of_block(module, ids, hidden, starts, k)
    return of_layer(module, ids, hidden, starts, k)
