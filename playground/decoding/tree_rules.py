"""Verification of a tree of sampled tokens: after each token, several were drawn from q without replacement.

Both rules take siblings in the order in which they were drawn, and leave p unchanged.

Recursive rejection sampling without replacement (Jeon et al. 2024, Yang et al. 2024), from the root: a child x is
accepted with probability min(1, p(x) / q(x)). After a rejection p becomes norm(max(0, p - q)), and q loses x. Where all
children are rejected, the target's own token is sampled from this p.

Traversal (Weng et al. 2025, arXiv 2505.12398), from the leaves: a token has the chance α of the branch that ends in it,
1 at the root and min(1, α p(x) / q(x)) in a child. The first leaf is accepted, with its branch, with probability α.
After a rejection its parent's p becomes norm(max(0, α p - q)), of mass S, the parent's α becomes S / (S + 1 - α), and q
loses x. A parent without further children is judged as a leaf. For a tree with one branch it is block verification.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from playground.decoding.chain_rules import outcome_of
from playground.decoding.drafters.base import Draft
from playground.decoding.runners.buffers import ancestry
from playground.decoding.sampling import Noise
from playground.lane import JOINT

Rescale = Callable[[Tensor, Tensor, Tensor], Tensor]


class Tree(NamedTuple):
    """A sampled tree of k tokens on the device.

    Attributes:
        ids: (k,).
        probabilities: (k, vocabulary), the distributions that they were sampled from.
        families: (steps, n, 1 + m) int64: in each step n parents, -1 for the text, each with its m children, -1 for
            none. Children have a later step than their parent where its α depends on its own parent's.
        needs: (2, k, k) bool: token i is accepted where all tokens of needs[0, i] pass their test and none of those of
            needs[1, i] does.
    """

    ids: Tensor
    probabilities: Tensor
    families: Tensor
    needs: Tensor

    def accepted(self, passes: Tensor) -> Tensor:
        """Returns the row of p that follows the last accepted token, (1,); 0 if none is. `passes`: (k,) bool."""
        kept = ~((self.needs[0] & ~passes) | (self.needs[1] & passes)).any(dim=1)
        rows = torch.arange(1, len(passes) + 1, device=passes.device)
        return (kept * rows).amax(dim=0, keepdim=True)


def laid_out(draft: Draft, rule: str) -> tuple[Tensor, Tensor]:
    """Returns the `families` and `needs` of a `Tree` for a rule, on the host. Their shapes are powers of two, so that
    few are captured: rows repeat, which changes nothing."""
    children = {at: found for at, found in children_of(draft).items() if found}
    levels: dict[int, list[int]] = {}
    for at in children:
        levels.setdefault(draft.depths[at + 1] if rule in JOINT else 0, []).append(at)
    n, m = _power_of_two(max(map(len, levels.values()))), _power_of_two(max(map(len, children.values())))
    families = []
    for _, parents in sorted(levels.items()):
        rows = [[at, *children[at], *[-1] * (m - len(children[at]))] for at in parents]
        families.append(rows + rows[:1] * (n - len(rows)))
    k = len(draft.ids)
    parent, place = np.array(draft.parents), np.arange(k)
    if rule in JOINT:
        place = np.argsort(from_the_leaves(draft))
        needs = np.eye(k, dtype=bool), place < place[:, None]
    else:
        branch, elder = ancestry(draft.parents), (parent == parent[:, None]) & (place < place[:, None])
        needs = branch, branch @ elder
    return torch.from_numpy(np.array(families)), torch.from_numpy(np.stack(needs))


def rescaled(mass: Tensor, alpha: Tensor, q_left: Tensor) -> Tensor:
    """Returns a parent's α after the rejection of a child, from the mass S. `q_left`: the rest of q, for rules that use
    it. All are (n,)."""
    return torch.where(alpha == 1, 1.0, mass / (mass + 1 - alpha))


def verify_tree(
    tree: Tree, p: Tensor, noise: Noise, complete: Tensor | None = None, rescale: Rescale | None = None
) -> Tensor:
    """Verifies a tree; arguments and result are those of `chain_rules.speculative_sampling`. `rescale`: for traversal,
    what returns a parent's α after the rejection of a child; None for recursive rejection."""
    u = noise.uniform(len(tree.ids))
    bounds, left = tested(tree, p, rescale)
    row = tree.accepted(u < bounds)
    rest = left.index_select(0, row)
    return outcome_of(row, rest, rest, noise, complete, torch.cat([u, bounds]))


def tested(tree: Tree, p: Tensor, rescale: Rescale | None) -> tuple[Tensor, Tensor]:
    """Computes what the tests of a tree's tokens compare with the random numbers.

    Args:
        p: (k + 1, vocabulary), the target's distributions.
        rescale: that of `verify_tree`; without it every α is 1.

    Returns:
        The chance with which each token passes its test, (k,); and what is left of p after all children of a token were
        rejected, (k + 1, vocabulary).
    """
    left_of, alphas = p.clone(), p.new_ones(len(p) + 1)  # by row; the last is that of children that are none
    for family in tree.families.unbind():
        rows, children = family[:, 0] + 1, family[:, 1:].unbind(1)
        left, q = p.index_select(0, rows), tree.probabilities.index_select(0, children[0])
        alpha = alphas.index_select(0, rows) if rescale else torch.ones_like(rows, dtype=p.dtype)
        for i, child in enumerate(children):
            there, x = child >= 0, tree.ids.index_select(0, child.clamp(min=0))[:, None]
            q_x = q.gather(1, x)
            passes = (alpha * (left.gather(1, x) / q_x)[:, 0]).clamp(max=1)
            alphas.index_copy_(0, torch.where(there, child + 1, len(p)), passes)
            rest = (alpha[:, None] * left - q).clamp(min=0)
            mass = rest.sum(dim=1)
            left = torch.where((there & (mass > 0))[:, None], rest / mass[:, None], left)  # rounding may leave none
            if rescale:
                alpha = torch.where(there, rescale(mass, alpha, 1 - q_x[:, 0]), alpha)
            if i + 1 < len(children):
                q = q.scatter(1, x, 0.0)  # it is drawn once
                q = q / q.sum(dim=1, keepdim=True)
        left_of.index_copy_(0, rows, left)
        if rescale:
            alphas.index_copy_(0, rows, alpha)
    return alphas[1:-1], left_of


RULES: dict[str, Callable[..., Tensor]] = {
    "recursive": verify_tree,
    "traversal": partial(verify_tree, rescale=rescaled),
}


def children_of(draft: Draft) -> dict[int, list[int]]:
    """Returns the children of each token, and of the text, which is -1, in the order in which they were drawn."""
    children: dict[int, list[int]] = {i: [] for i in range(-1, len(draft.ids))}
    for i, parent in enumerate(draft.parents):
        children[parent].append(i)
    return children


def from_the_leaves(draft: Draft) -> list[int]:
    """Returns all tokens, each after its children, in the order in which joint rules test them."""
    children, order, waiting = children_of(draft), [], [-1]
    while waiting:
        order.append(waiting.pop())
        waiting += children[order[-1]]
    return order[:0:-1]


def tried(draft: Draft, path: Sequence[int], rule: str) -> Collection[int]:
    """Returns the tokens that a rule tested before it accepted `path`."""
    if rule in JOINT:
        order = from_the_leaves(draft)
        return order[: order.index(path[-1]) + 1] if path else order
    taken = dict(zip([-1, *path], [*path, len(draft.ids)], strict=True))
    return [i for i, parent in enumerate(draft.parents) if i <= taken.get(parent, -1)]


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
