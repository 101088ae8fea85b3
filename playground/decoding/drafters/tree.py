"""Draft trees: several candidates per position, verified in one pass; the target accepts at most one of them.

EAGLE-2 (Li et al. 2024): the likeliest branches grow first, and the likeliest tokens of all make the tree. The
probability that a token is accepted is estimated by the product of the drafter's probabilities along its branch. With
positions drafted in parallel this gives Medusa's tree (Cai et al. 2024), built anew for each draft, and that of DDTree
(Ringel and Romano 2026, arXiv 2604.12989), limited to WIDTH branches per position. How many tokens are worth verifying
depends on the machine, as in Sequoia (Chen et al. 2024), and here on the draft as well.

`SampledTreeDrafter` samples instead: after each token, several are drawn from the drafter's q without replacement, and
decoding/tree_rules.py accepts them. That is exact only if the shape of the tree does not depend on the tokens in it, so
none may be dropped for being unlikely. The shape is chosen first, as in Sequoia: of all trees the one with the most
expected tokens, where the first, second, … child of a token has a fixed chance.

The logits come from `Branches`: mtp.py, parallel.py and others.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from playground.decoding.drafters.base import NOTHING, Branches, Draft
from playground.decoding.drafters.branches import BranchesDrafter, branches_of
from playground.decoding.drafters.build import Setup, refuse_recurrent
from playground.decoding.drafters.hidden import DraftChoice, without
from playground.decoding.drafters.parallel import ParallelBranches
from playground.decoding.lookahead import worthwhile
from playground.decoding.runners.native import Wanted
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
    """Drafts the tree of the likeliest tokens.

    Args:
        nodes: the largest number of tokens in a tree; its depth is the lookahead.
        lookahead: the depth of a tree with that many tokens, limited to what the branches can draft. A shallower tree
            has proportionally fewer.
        cost: returns the cost of a target pass over a number of tokens, in passes over one token.
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
        self._costs: dict[int, torch.Tensor] = {}  # of a target pass over 0, 1, 2, … tokens, by the size of the tree

    def _wanted(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Wanted | None:
        size = self._size(k)
        if size not in self._costs:
            self._costs[size] = torch.tensor([self._cost(tokens) for tokens in range(size + 2)])
        return Wanted(k, WIDTH, size, stop_below, self._costs[size], sampler.refused, self._ends_at)

    def _size(self, k: int) -> int:
        """Returns the most tokens of a tree of this depth."""
        return math.ceil(self._nodes * min(1, k / self._lookahead))

    def _grown(self, ids: Sequence[int], k: int, stop_below: float, logits: torch.Tensor, sampler: Sampler) -> Draft:
        """Drafts a tree. It grows no deeper once the path probabilities of all branches sum to less than
        `stop_below`."""
        size = self._size(k)
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
        """Returns the first of the nodes `best`, which are sorted with the likeliest first: so many that the expected
        tokens exceed the cost of the pass by most. Expected is each node with its path probability."""
        return best[: worthwhile((nodes[i].chance for i in best), self._cost)]

    def _likeliest(self, logits: torch.Tensor, sampler: Sampler) -> list[list[tuple[float, float]]]:
        """Returns the likeliest ids of each row, with their q. Refused tokens come last."""
        logits = without(logits, sampler.refused, self._branches.draft_ids)
        top = logits.float().softmax(dim=-1).topk(min(WIDTH, logits.shape[-1]))
        ids = self._branches.draft_ids[top.indices].float()  # float32 holds every id below 2^24
        return torch.stack([ids, top.values], dim=-1).tolist()  # one transfer


def _continued(
    nodes: Sequence[Node], tips: Sequence[int], logits: torch.Tensor, likeliest: Sequence[Sequence[tuple[float, float]]]
) -> list[Node]:
    """Returns the likeliest tokens after each of the tips as nodes."""
    return [
        Node(int(id_), tip, q, q * (nodes[tip].chance if tip >= 0 else 1.0), row)
        for tip, pairs, row in zip(tips, likeliest, logits, strict=True)
        for id_, q in pairs
    ]


def draft_of(nodes: Sequence[Node], best: Sequence[int], draft_ids: torch.Tensor) -> Draft:
    """Makes a draft of the nodes `best`, given with the likeliest first, in depth-first order: a node's likeliest
    branch directly follows it, so that the tree's likeliest branch lies in the cache in the order of a chain."""
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
            f"In {model.name}, the branches of a draft tree cannot be masked from each other: it has chunked "
            "attention, as Llama 4 has, or attention to selected tokens, or takes no positions. Choose a drafter that "
            "drafts a chain, such as mtp or ngram."
        )
    shape = branches_of(setup), setup.lane.nodes, setup.eos_ids, setup.lane.lookahead, setup.cost
    if samples_drafts(setup.lane):
        return SampledTreeDrafter(*shape, vocab_size=setup.target.vocab_size)
    return TreeDrafter(*shape)


FIRST, NEXT = 0.6, 0.25  # the chance of a first child, and of each further one relative to the one before
Place = tuple[int, ...]  # which child is taken at each step from the root: (0, 1) is the first child's second


class SampledTreeDrafter(TreeDrafter):
    """Drafts a tree of sampled tokens; for greedy requests the tree of `TreeDrafter`.

    Args:
        shape: the arguments of `TreeDrafter`.
        vocab_size: the target's.
    """

    def __init__(self, *shape: Any, vocab_size: int) -> None:
        super().__init__(*shape)
        self._vocab_size = vocab_size

    def _wanted(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Wanted | None:
        return super()._wanted(ids, k, stop_below, sampler) if sampler.greedy else None

    def _grown(self, ids: Sequence[int], k: int, stop_below: float, logits: torch.Tensor, sampler: Sampler) -> Draft:
        if sampler.greedy:
            return super()._grown(ids, k, stop_below, logits, sampler)
        choose = DraftChoice(self._vocab_size, sampler)
        wanted = shape(self._size(k), k)
        wanted = wanted[: worthwhile(map(chance, wanted), self._cost)]
        children: dict[Place, int] = {}  # place -> its number of children
        for place in wanted:
            children[place[:-1]] = children.get(place[:-1], 0) + 1
        nodes: list[Node] = []
        at: dict[int, Place] = {-1: ()}
        tips = [-1] if wanted else []
        while tips:
            start = len(nodes)
            for tip, row in zip(tips, logits, strict=True):
                text = [*ids, *_branch(nodes, tip)]
                drawn = choose.several(text, row, self._branches.draft_ids, children[at[tip]])
                before = nodes[tip].chance if tip >= 0 else 1.0
                for i, (id_, q) in enumerate(zip(drawn.ids, drawn.q, strict=True)):
                    at[len(nodes)] = (*at[tip], i)
                    nodes.append(Node(id_, tip, q, q * before, drawn.candidates, drawn.probabilities))
            growing = [i for i in range(start, len(nodes)) if at[i] in children and nodes[i].id not in self._eos_ids]
            if not growing or sum(nodes[i].chance for i in growing) < stop_below:
                break
            rows = [tips.index(nodes[i].parent) for i in growing]
            logits = self._branches.grow([nodes[i].id for i in growing], rows)
            tips = growing
        return draft_of(nodes, range(len(nodes)), self._branches.draft_ids) if nodes else NOTHING


def chance(place: Place) -> float:
    """Returns the assumed chance that the token at this place is accepted."""
    return math.prod(FIRST * NEXT**child for child in place)


@cache
def shape(size: int, depth: int) -> tuple[Place, ...]:
    """Returns the `size` likeliest places of all trees of this depth, likeliest first. Each follows its parent. At each
    depth at most WIDTH places have children."""
    places: list[Place] = []
    growing: dict[int, set[Place]] = {}
    waiting: list[tuple[float, Place]] = [(-chance((0,)), (0,))]
    while waiting and len(places) < size:
        _, place = heapq.heappop(waiting)
        parent = place[:-1]
        parents = growing.setdefault(len(place), set())
        if parent not in parents and len(parents) == WIDTH:
            continue
        parents.add(parent)
        places.append(place)
        following: list[Place] = [(*parent, place[-1] + 1)] if place[-1] + 1 < WIDTH else []
        if len(place) < depth:
            following.append((*place, 0))
        for each in following:
            heapq.heappush(waiting, (-chance(each), each))
    return tuple(places)


def _branch(nodes: Sequence[Node], tip: int) -> list[int]:
    """Returns the tokens of the branch that ends at a node."""
    ids: list[int] = []
    while tip >= 0:
        ids.append(nodes[tip].id)
        tip = nodes[tip].parent
    return ids[::-1]
