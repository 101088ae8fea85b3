"""What a drafter would have had accepted over a text that is there already, without decoding it.

One pass of the target over the text gives its choice at every position, and the drafts after all positions are made at
once (`drafts_at`): lookups and assistants read tokens alone, networks the hidden states that this pass has left. A
draft's position is judged where all of the draft before it is both the text and the target's choice, so that the
target's choice there is known. Decoding starts its drafts elsewhere, after the tokens that were accepted; how far the
two differ is measured on a sample.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from playground.decoding import drafts_at
from playground.decoding.drafters.ngram import NgramDrafter
from playground.decoding.drafters.suffix import SuffixDrafter
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.sampling import Sampler
from playground.lane import Lane
from playground.metrics.estimate import Counts
from playground.models.decoder import context_of
from playground.models.networks.dflash import DFlash
from playground.models.networks.eagle3 import Eagle3Head
from playground.models.networks.heads import ParallelHeads
from playground.models.networks.mtp import MtpLayer
from playground.models.store import LoadedPair

ROWS = 256  # positions of a text that drafts begin at, evenly over it
LOOKUPS = {"ngram": NgramDrafter, "suffix": SuffixDrafter}
CHAINS = (MtpLayer, Eagle3Head, ParallelHeads, DFlash)
METHODS = (
    "mtp",
    "eagle3",
    "heads",
    "dflash",
    "dspark",
)  # of the chains; the convolutions of DFlash 2 would join blocks


def possible(models: LoadedPair, lane: Lane) -> bool:
    """Whether this lane's drafts can be made at all positions at once."""
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
    """The drafts of a lane over a logged answer. The lane is one of those that are `possible`. `sampler`: of a greedy
    request."""
    ids = [*prompt_ids, *answer_ids]
    target = EagerRunner(models.target.model)
    module = models.drafting.module if models.drafting else None
    if lane.drafter in METHODS:
        target.watch(module.layers if isinstance(module, (Eagle3Head, DFlash)) else (-1,))
    first = len(prompt_ids)
    logits = target.forward(ids, keep=len(answer_ids) + 1)
    chosen = sampler.scores(logits, lambda row: ids[: first + row]).argmax(-1).tolist()
    choice = {first + i: id_ for i, id_ in enumerate(chosen)}  # the target's, of the token at each position
    starts = list(range(first + 1, len(ids)))
    starts = starts if len(starts) <= ROWS else [starts[i * len(starts) // ROWS] for i in range(ROWS)]
    config = getattr(module, "config", None)  # heads have no positions
    context = context_of(config) if config else sys.maxsize
    within = [start for start in starts if start < context]
    drafts = [*_drafts(lane, module, target, sampler, ids, within)] if within else []
    drafts = [draft[: context - start] for draft, start in zip(drafts, within, strict=True)]
    drafts += [[]] * (len(starts) - len(within))  # past its context a drafter drafts nothing
    agreed = sum(choice[at] == ids[at] for at in range(first, len(ids)))
    return _judged(drafts, starts, ids, choice, lane.lookahead, agreed, len(answer_ids))


def _drafts(
    lane: Lane,
    module: nn.Module | None,
    target: EagerRunner,
    sampler: Sampler,
    ids: Sequence[int],
    starts: Sequence[int],
) -> Sequence[Sequence[int]]:
    k = lane.lookahead
    if lane.drafter in LOOKUPS:
        lookup = LOOKUPS[lane.drafter]()
        return [lookup.propose(ids[:start], k, 0.0, sampler).ids for start in starts]
    if isinstance(module, PreTrainedModel):
        return drafts_at.of_assistant(module, target.vocab_size, ids, starts, k)
    if isinstance(module, ParallelHeads):
        return drafts_at.of_heads(module, ids, target.hidden, starts, k)
    if isinstance(module, DFlash):
        return drafts_at.of_block(module, ids, target.hidden, starts, k)
    assert isinstance(module, (MtpLayer, Eagle3Head))
    return drafts_at.of_layer(module, ids, target.hidden, starts, k)


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
