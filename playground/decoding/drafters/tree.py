"""Draft trees: several candidates per position, verified in one pass; the target accepts at most one of them.

EAGLE-2 (Li et al. 2024): the likeliest branches grow first, and the likeliest tokens of all make the tree. The
probability that a token is accepted is estimated by the product of the drafter's probabilities along its branch. With
positions drafted in parallel this gives Medusa's tree (Cai et al. 2024), built anew for each draft, and that of DDTree
(Ringel and Romano 2026, arXiv 2604.12989), limited to WIDTH branches per position. How many tokens are worth verifying
depends on the machine, as in Sequoia (Chen et al. 2024), and here on the draft as well.

The logits come from `Branches`: mtp.py, heads.py and others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from playground.decoding.drafters.base import NOTHING, Draft
from playground.decoding.drafters.branches import Branches, BranchesDrafter, branches_of
from playground.decoding.drafters.build import Setup, refuse_recurrent
from playground.decoding.drafters.hidden import without
from playground.decoding.drafters.parallel import ParallelBranches
from playground.decoding.pass_cost import PassCost, sizes_for, time_passes
from playground.decoding.sampling import Sampler
from playground.errors import PlaygroundError
from playground.lane import samples_drafts
from playground.models.load import LoadedDrafter
from playground.models.networks.native_mtp import NativeLayers

WIDTH = 8  # branches that grow per position, and candidates after each


@dataclass(frozen=True)
class Node:
    """A token of a tree. `parent`: the index of its parent, -1 at the root. `chance`: the product of the q along its
    branch. `candidates`: the logits that it was chosen from. `probabilities`: the distribution that it was sampled
    from, if it was."""

    id: int
    parent: int
    q: float
    chance: float
    candidates: torch.Tensor
    probabilities: torch.Tensor | None = None


class TreeDrafter(BranchesDrafter):
    """Args:
    nodes: the most tokens of a tree; its depth is the lookahead.
    lookahead: the depth of a tree with that many tokens, limited to what the branches can draft. A shallower tree has
        proportionally fewer.
    cost: of a target pass over a number of tokens, in passes over one token.
    """

    def __init__(
        self,
        branches: Branches,
        nodes: int,
        eos_ids: Collection[int],
        lookahead: int = 1,
        cost: Callable[[int], float] = lambda tokens: 1.0,
    ) -> None:
        super().__init__(branches, eos_ids)
        self._nodes, self._lookahead, self._cost = nodes, min(lookahead, branches.deepest), cost

    def _grown(self, ids: Sequence[int], k: int, stop_below: float, logits: torch.Tensor, sampler: Sampler) -> Draft:
        """Grows no deeper once the path probability of all branches together is below `stop_below`."""
        size = math.ceil(self._nodes * min(1, k / self._lookahead))
        # Positions that are drafted in parallel are read at once, others one after the other.
        parallel = self._branches if isinstance(self._branches, ParallelBranches) else None
        known = self._likeliest(parallel.positions, sampler) if parallel else []
        nodes: list[Node] = []
        tips = [-1]  # the nodes that the rows of the logits follow
        for depth in range(1, k + 1):
            start = len(nodes)
            likeliest = known[depth - 1 : depth] * len(tips) or self._likeliest(logits, sampler)
            nodes += _continued(nodes, tips, logits, likeliest)
            best = self._worth(nodes, sorted(range(len(nodes)), key=lambda i: -nodes[i].chance)[:size])
            growing = [i for i in best if i >= start and nodes[i].id not in self._eos_ids][:WIDTH]
            if depth == k or not growing or sum(nodes[i].chance for i in growing) < stop_below:
                break
            rows = [tips.index(nodes[i].parent) for i in growing]
            logits = self._branches.grow([nodes[i].id for i in growing], rows)
            tips = growing
        return draft_of(nodes, best, self._branches.draft_ids) if best else NOTHING

    def _worth(self, nodes: Sequence[Node], best: Sequence[int]) -> Sequence[int]:
        """As many of the nodes `best`, likeliest first, as maximise expected tokens per pass cost. Expected are the
        target's own token and each node with its path probability."""
        tokens = list(accumulate((nodes[i].chance for i in best), initial=1.0))
        return best[: max(range(len(tokens)), key=lambda n: tokens[n] / self._cost(n + 1))]

    def _likeliest(self, logits: torch.Tensor, sampler: Sampler) -> list[list[tuple[float, float]]]:
        """The ids that are likeliest in each row, with their q. Refused tokens are not worth drafting."""
        logits = without(logits, sampler.refused, self._branches.draft_ids)
        top = logits.float().softmax(dim=-1).topk(min(WIDTH, logits.shape[-1]))
        ids = self._branches.draft_ids[top.indices].float()  # which holds every id below 2^24
        return torch.stack([ids, top.values], dim=-1).tolist()  # one transfer


def _continued(
    nodes: Sequence[Node], tips: Sequence[int], logits: torch.Tensor, likeliest: Sequence[Sequence[tuple[float, float]]]
) -> list[Node]:
    """The likeliest tokens after each of the tips."""
    return [
        Node(int(id_), tip, q, q * (nodes[tip].chance if tip >= 0 else 1.0), row)
        for tip, pairs, row in zip(tips, likeliest, logits, strict=True)
        for id_, q in pairs
    ]


def draft_of(nodes: Sequence[Node], best: Sequence[int], draft_ids: torch.Tensor) -> Draft:
    """The nodes `best`, likeliest first, in depth-first order: a node's likeliest branch directly follows it, so that
    the likeliest branch of the tree lies in the cache in the order of a chain."""
    children: dict[int, list[int]] = {}
    for i in best:
        children.setdefault(nodes[i].parent, []).append(i)
    order: list[int] = []
    waiting = children.get(-1, [])[::-1]
    while waiting:
        i = waiting.pop()
        order.append(i)
        waiting += children.get(i, [])[::-1]
    index = {i: at for at, i in enumerate(order)} | {-1: -1}
    sampled_from = [probabilities for i in order if (probabilities := nodes[i].probabilities) is not None]
    return Draft(
        [nodes[i].id for i in order],
        [nodes[i].q for i in order],
        torch.stack(sampled_from) if sampled_from else None,
        tree=[index[nodes[i].parent] for i in order],
        candidates=[nodes[i].candidates for i in order],
        draft_ids=draft_ids,
    )


def build(setup: Setup) -> TreeDrafter:
    model, drafting = setup.models.target, setup.models.drafting
    if isinstance(drafting, LoadedDrafter) and type(drafting.network) is NativeLayers:
        raise PlaygroundError(
            f"{model.name} has several MTP layers, each of which drafts one position. They grow no trees. Choose the "
            "drafter mtp, which drafts a chain."
        )
    refuse_recurrent(setup.target, model.name)
    if not setup.target.takes_trees:
        raise PlaygroundError(
            f"In {model.name}, the branches of a draft tree cannot be kept apart: it has chunked attention, as Llama 4 "
            "has, or attention to selected tokens, or takes no positions. Choose a drafter that drafts a chain, such "
            "as mtp or ngram."
        )
    how, most = setup.runners.describe(model), setup.lane.nodes + 1
    timed = model.pass_times.get(how)
    if not timed or timed[-1].tokens < max(sizes_for(setup.target, most)):
        model.pass_times[how] = timed = time_passes(setup.runners(model), most)
    shape = branches_of(setup), setup.lane.nodes, setup.eos_ids, setup.lane.lookahead
    cost = PassCost(timed, setup.target.computed)
    if samples_drafts(setup.lane):
        from playground.decoding.drafters.sampled_tree import SampledTreeDrafter

        return SampledTreeDrafter(*shape, cost, vocab_size=setup.target.vocab_size)
    return TreeDrafter(*shape, cost)
