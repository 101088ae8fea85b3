"""Draft trees: several tokens a place, verified in one pass, of which the target can take any one.

EAGLE-2 (Li et al. 2024): the likeliest branches grow first, and of all tokens the likeliest make the tree; how likely a
token is to be kept is told by the product of the drafter's probabilities along its branch. Over places drafted in
parallel the same makes the tree of Medusa (Cai et al. 2024), but one made for each text, and that of DDTree (Ringel and
Romano 2026, arXiv 2604.12989), but for the limit of WIDTH branches a place. How many tokens are worth their
verification depends on the machine, as Sequoia (Chen et al. 2024) has it, and here on the text, too.

What grows the branches is the affair of mtp.py, heads.py and their like.
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
from playground.decoding.pass_cost import PassCost, time_passes
from playground.errors import PlaygroundError
from playground.models.networks.native_mtp import NativeLayers

WIDTH = 8  # branches that grow at a place, and tokens that each is continued with


@dataclass(frozen=True)
class Node:
    """A token of a tree. `parent`: its index, -1 for the text. `chance`: the product of the q along its branch.
    `candidates`: the logits that it was taken from."""

    id: int
    parent: int
    q: float
    chance: float
    candidates: torch.Tensor


class TreeDrafter(BranchesDrafter):
    """Args:
    nodes: the most tokens that a tree may have; its depth is the lookahead.
    lookahead: the depth to which so many belong, or what the branches have of it; a tree that is asked to be shallower
        has fewer, in proportion.
    cost: of the target's pass over a number of tokens, in passes over one.
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

    def _grown(self, ids: Sequence[int], k: int, stop_below: float, logits: torch.Tensor) -> Draft:
        """It grows no deeper where the chance that the text gets there, of all branches together, is under
        `stop_below`."""
        size = math.ceil(self._nodes * min(1, k / self._lookahead))
        nodes: list[Node] = []
        tips = [-1]  # the nodes behind which the logits' rows stand
        for depth in range(1, k + 1):
            start = len(nodes)
            nodes += self._continued(nodes, tips, logits)
            best = self._worth(nodes, sorted(range(len(nodes)), key=lambda i: -nodes[i].chance)[:size])
            growing = [i for i in best if i >= start and nodes[i].id not in self._eos_ids][:WIDTH]
            if depth == k or not growing or sum(nodes[i].chance for i in growing) < stop_below:
                break
            rows = [tips.index(nodes[i].parent) for i in growing]
            logits = self._branches.grow([nodes[i].id for i in growing], rows)
            tips = growing
        return _draft(nodes, best, self._branches.draft_ids) if best else NOTHING

    def _worth(self, nodes: Sequence[Node], best: Sequence[int]) -> Sequence[int]:
        """As many of the likeliest nodes, which `best` begins with, as promise the most tokens for what a pass costs:
        the target's own token, and each node's chance."""
        tokens = list(accumulate((nodes[i].chance for i in best), initial=1.0))
        return best[: max(range(len(tokens)), key=lambda n: tokens[n] / self._cost(n + 1))]

    def _continued(self, nodes: Sequence[Node], tips: Sequence[int], logits: torch.Tensor) -> list[Node]:
        """The likeliest tokens behind each of the tips."""
        top = logits.float().softmax(dim=-1).topk(min(WIDTH, logits.shape[-1]))
        ids = self._branches.draft_ids[top.indices]
        return [
            Node(id_, tip, q, q * (nodes[tip].chance if tip >= 0 else 1.0), row)
            for tip, tip_ids, qs, row in zip(tips, ids.tolist(), top.values.tolist(), logits, strict=True)
            for id_, q in zip(tip_ids, qs, strict=True)
        ]


def _draft(nodes: Sequence[Node], best: Sequence[int], draft_ids: torch.Tensor) -> Draft:
    """The nodes `best`, likeliest first, branch by branch: a node's own likeliest branch comes right behind it, so that
    the likeliest branch of all lies in the cache as a chain would."""
    children: dict[int, list[int]] = {}
    for i in best:
        children.setdefault(nodes[i].parent, []).append(i)
    order: list[int] = []
    waiting = children.get(-1, [])[::-1]
    while waiting:
        i = waiting.pop()
        order.append(i)
        waiting += children.get(i, [])[::-1]
    place = {i: at for at, i in enumerate(order)} | {-1: -1}
    return Draft(
        [nodes[i].id for i in order],
        [nodes[i].q for i in order],
        tree=[place[nodes[i].parent] for i in order],
        candidates=[nodes[i].candidates for i in order],
        draft_ids=draft_ids,
    )


def build(setup: Setup) -> TreeDrafter:
    model = setup.models.target
    if type(setup.network) is NativeLayers:
        raise PlaygroundError(
            f"{model.name} has several MTP layers, each of which drafts one position. They grow no trees. Choose the "
            "drafter mtp, which drafts a chain."
        )
    refuse_recurrent(setup.target, model.name)
    if not model.pass_times:
        model.pass_times = time_passes(model.model)
    cost = PassCost(model.pass_times)
    return TreeDrafter(branches_of(setup), setup.lane.nodes, setup.eos_ids, setup.lane.lookahead, cost)
