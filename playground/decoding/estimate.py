"""What a drafter would have had accepted over a text that is there already, without decoding it.

One pass of the target over the text gives its choice at every position, and the drafts after all positions are made at
once: a lookup reads tokens alone, heads and layers read hidden states that this pass has left. A draft's position is
judged where all of the draft before it is both the text and the target's choice, so that the target's choice there is
known. Decoding starts its drafts elsewhere, after the tokens that were accepted; how far the two differ is measured on
a sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from playground.decoding.drafters.hidden import TextVocabulary
from playground.decoding.drafters.ngram import NgramDrafter
from playground.decoding.drafters.suffix import SuffixDrafter
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.masks import additive
from playground.decoding.transfer import to_device
from playground.lane import Lane
from playground.metrics.estimate import Counts
from playground.models.load import LoadedDrafter
from playground.models.networks.eagle3 import Eagle3Head
from playground.models.networks.heads import ParallelHeads
from playground.models.networks.mtp import MtpLayer
from playground.models.store import LoadedPair

ROWS = 256  # positions of a text that drafts begin at, evenly over it
LOOKUPS = {"ngram": NgramDrafter, "suffix": SuffixDrafter}
CHAINS = (MtpLayer, Eagle3Head, ParallelHeads)
METHODS = ("mtp", "eagle3", "heads")  # of the chains


def possible(models: LoadedPair, lane: Lane) -> bool:
    """Whether this lane's drafts can be made at all positions at once."""
    if lane.drafter in LOOKUPS:
        return True
    network = models.drafting.network if isinstance(models.drafting, LoadedDrafter) else None
    window = getattr(getattr(network, "config", None), "sliding_window", None)
    return lane.drafter in METHODS and isinstance(network, CHAINS) and not window


@torch.inference_mode()
def counts(models: LoadedPair, lane: Lane, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Counts:
    """The drafts of a lane over a logged answer. The lane is one of those that are `possible`."""
    ids = [*prompt_ids, *answer_ids]
    target = EagerRunner(models.target.model)
    network = models.drafting.network if isinstance(models.drafting, LoadedDrafter) else None
    if network is not None and lane.drafter not in LOOKUPS:
        target.watch(network.layers if isinstance(network, Eagle3Head) else (-1,))
    chosen = target.forward(ids, keep=len(answer_ids) + 1).argmax(-1).tolist()
    first = len(prompt_ids)
    choice = {first + i: id_ for i, id_ in enumerate(chosen)}  # the target's, of the token at each position
    starts = list(range(first + 1, len(ids)))
    starts = starts if len(starts) <= ROWS else [starts[i * len(starts) // ROWS] for i in range(ROWS)]
    if not starts:
        drafts: list[list[int]] = []
    elif lane.drafter in LOOKUPS:
        drafter = LOOKUPS[lane.drafter]()
        drafts = [list(drafter.propose(ids[:start], lane.lookahead, 0.0).ids) for start in starts]
    elif isinstance(network, ParallelHeads):
        drafts = _of_heads(network, ids, target.hidden, starts, lane.lookahead)
    else:
        assert isinstance(network, (MtpLayer, Eagle3Head))
        drafts = _of_layer(network, ids, target.hidden, starts, lane.lookahead)
    agreed = sum(choice[at] == ids[at] for at in range(first, len(ids)))
    return _judged(drafts, starts, ids, choice, lane.lookahead, agreed, len(answer_ids))


def _judged(
    drafts: Sequence[Sequence[int]],
    starts: Sequence[int],
    ids: Sequence[int],
    choice: dict[int, int],
    lookahead: int,
    agreed: int,
    tokens: int,
) -> Counts:
    reached, accepted = [0] * lookahead, [0] * lookahead
    for draft, start in zip(drafts, starts, strict=True):
        for j in range(lookahead):
            at = start + j
            if at not in choice:
                break
            reached[j] += 1
            if j >= len(draft) or draft[j] != choice[at]:
                break
            accepted[j] += 1
            if at >= len(ids) or draft[j] != ids[at]:  # the target would go on otherwise than the text
                break
    return Counts(tuple(reached), tuple(accepted), agreed, tokens)


def _of_heads(
    heads: ParallelHeads, ids: Sequence[int], hidden: torch.Tensor, starts: Sequence[int], k: int
) -> list[list[int]]:
    vocabulary = TextVocabulary(heads)
    draft_ids = vocabulary.read(ids)
    last = to_device([ids[start - 1] for start in starts], hidden.device)
    states = hidden.index_select(0, to_device([start - 2 for start in starts], hidden.device))
    return draft_ids[vocabulary.logits(heads(last, states)).argmax(-1)][:, :k].tolist()


def _of_layer(
    layer: MtpLayer | Eagle3Head, ids: Sequence[int], hidden: torch.Tensor, starts: Sequence[int], k: int
) -> list[list[int]]:
    """Entry i of the layer's cache is of the token at i + 1. Each draft sees the entries of its text, and its own."""
    device, n, rows = hidden.device, len(ids) - 1, to_device([start - 2 for start in starts], hidden.device)
    vocabulary = TextVocabulary(layer) if isinstance(layer, MtpLayer) else None
    draft_ids = vocabulary.read(ids) if vocabulary else layer.draft_ids
    cache = layer.new_cache()
    out = layer(to_device([ids[1:]], device), hidden[None, :n], cache).index_select(1, rows)
    text = torch.arange(n)[None] <= torch.tensor(starts)[:, None] - 2
    own = torch.eye(len(starts), dtype=torch.bool)
    drafted: list[torch.Tensor] = []
    for depth in range(1, k + 1):
        logits = layer.logits(out[0])
        logits = vocabulary.extended(logits, out[0]) if vocabulary else logits
        drafted.append(draft_ids[logits.argmax(-1)])
        if depth < k:
            mask = additive(torch.cat([text, *[own] * depth], dim=1), out.dtype)
            out = layer(drafted[-1][None], out, cache, (rows + depth)[None], to_device(mask, device))
    return torch.stack(drafted, dim=1).tolist()
