"""Draft trees: several tokens a place, verified in one pass, of which the target can take any one.

EAGLE-2 (Li et al. 2024): the likeliest branches grow first, and of all tokens the `nodes` likeliest make the tree; how
likely a token is to be kept is told by the product of the drafter's probabilities along its branch. Over places drafted
in parallel the same makes the tree of Medusa (Cai et al. 2024), but one made for each text, and that of DDTree (Ringel
and Romano 2026, arXiv 2604.12989), but for the limit of WIDTH branches a place.

What grows the branches is the affair of mtp.py, heads.py and their like.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from playground.decoding.drafters.base import Draft
from playground.decoding.drafters.branches import Branches, BranchesDrafter

WIDTH = 8  # branches that grow at a place, and tokens that each is continued with
SHARE = 0.05  # of the threshold, for one token: to verify one more costs so much less than to draft a place more


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
    """

    def __init__(self, branches: Branches, nodes: int, eos_ids: Collection[int], lookahead: int = 1) -> None:
        super().__init__(branches, eos_ids)
        self._nodes, self._lookahead = nodes, min(lookahead, branches.deepest)

    def _grown(self, ids: Sequence[int], k: int, stop_below: float, logits: torch.Tensor) -> Draft:
        """It grows no deeper where the chance that the text gets there, of all branches together, is under
        `stop_below`, and has no token but its likeliest whose own chance is under a SHARE of that."""
        size = math.ceil(self._nodes * min(1, k / self._lookahead))
        nodes: list[Node] = []
        tips = [-1]  # the nodes behind which the logits' rows stand
        for depth in range(1, k + 1):
            start = len(nodes)
            nodes += self._continued(nodes, tips, logits)
            best = sorted(range(len(nodes)), key=lambda i: -nodes[i].chance)[:size]
            best = [i for i in best if nodes[i].chance >= SHARE * stop_below] or best[:1]
            growing = [i for i in best if i >= start and nodes[i].id not in self._eos_ids][:WIDTH]
            if depth == k or not growing or sum(nodes[i].chance for i in growing) < stop_below:
                break
            rows = [tips.index(nodes[i].parent) for i in growing]
            logits = self._branches.grow([nodes[i].id for i in growing], rows)
            tips = growing
        return _draft(nodes, best, self._branches.draft_ids)

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
        branches=[place[nodes[i].parent] for i in order],
        candidates=[nodes[i].candidates for i in order],
        draft_ids=draft_ids,
    )
