"""Draft trees whose tokens are sampled: after each token, several are drawn from the drafter's q without replacement.

decoding/tree_rules.py accepts them. That is exact only where the shape of the tree does not depend on the tokens that
it holds, so none may be dropped for being unlikely. The shape is chosen first, as in Sequoia (Chen et al. 2024): of all
trees the one with the most expected tokens, where the first, second, … child of a token has a fixed chance.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from functools import cache

import torch

from playground.decoding.drafters.base import NOTHING, Draft
from playground.decoding.drafters.branches import Branches
from playground.decoding.drafters.hidden import DraftChoice
from playground.decoding.drafters.tree import WIDTH, Node, TreeDrafter, draft_of
from playground.decoding.sampling import Sampler

FIRST, NEXT = 0.6, 0.25  # the chance of a first child, and of each further one relative to the one before
Place = tuple[int, ...]  # which child is taken at each step from the root: (0, 1) is the first child's second


class SampledTreeDrafter(TreeDrafter):
    """Where the request is greedy, the tree is that of `TreeDrafter`.

    Args:
        vocab_size: the target's.
    """

    def __init__(
        self,
        branches: Branches,
        nodes: int,
        eos_ids: Collection[int],
        lookahead: int = 1,
        cost: Callable[[int], float] = lambda tokens: 1.0,
        *,
        vocab_size: int,
    ) -> None:
        super().__init__(branches, nodes, eos_ids, lookahead, cost)
        self._vocab_size = vocab_size

    def _grown(self, ids: Sequence[int], k: int, stop_below: float, logits: torch.Tensor, sampler: Sampler) -> Draft:
        if sampler.greedy:
            return super()._grown(ids, k, stop_below, logits, sampler)
        choose = DraftChoice(self._vocab_size, sampler)
        wanted = shape(math.ceil(self._nodes * min(1, k / self._lookahead)), k)
        tokens = [1.0, *(1 + sum(map(chance, wanted[:n])) for n in range(1, len(wanted) + 1))]
        wanted = wanted[: max(range(len(tokens)), key=lambda n: tokens[n] / self._cost(n + 1))]
        children: dict[Place, int] = {}  # of each place, how many
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
    """That the token at this place is accepted, as assumed."""
    return math.prod(FIRST * NEXT**child for child in place)


@cache
def shape(size: int, depth: int) -> tuple[Place, ...]:
    """The `size` likeliest places of all trees of this depth, likeliest first. Each follows its parent. At each depth
    at most WIDTH places have children."""
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
    """The tokens of the branch that ends at a node."""
    ids: list[int] = []
    while tip >= 0:
        ids.append(nodes[tip].id)
        tip = nodes[tip].parent
    return ids[::-1]
