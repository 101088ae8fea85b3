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

from collections.abc import Callable, Sequence

import torch

from playground.decoding.chain_rules import Kept
from playground.decoding.drafters.base import Draft
from playground.decoding.sampling import Sampler

TreeRule = Callable[[Draft, torch.Tensor, Sequence[float]], tuple[list[int], torch.Tensor, list[float | None]]]


def recursive_rejection(
    draft: Draft, p: torch.Tensor, u: Sequence[float]
) -> tuple[list[int], torch.Tensor, list[float | None]]:
    """Verifies a tree from its root.

    Args:
        p: (k + 1, vocabulary), the target's distributions.
        u: k uniform numbers, one for each draft token.

    Returns:
        The indices of the accepted tokens; the (vocabulary,) distribution to sample the target's own token from; the
        chance with which each token was accepted, None where it was not tested.
    """
    children = children_of(draft)
    path: list[int] = []
    bounds: list[float | None] = [None] * len(draft.ids)
    while True:
        at = path[-1] if path else -1
        left, q = p[at + 1], _sampled_from(draft, children[at])
        for i in children[at]:
            x = draft.ids[i]
            bounds[i] = bound = min(1.0, float(left[x] / q[x]))
            if u[i] < bound:
                path.append(i)
                break
            left, q = _normed((left - q).clamp(min=0), left), _without(q, x)
        else:
            return path, left, bounds


def rescaled(mass: float, alpha: float, q_left: float) -> float:
    """Returns a parent's α after the rejection of a child, from the mass S. `q_left`: the rest of q, for rules that use
    it."""
    return 1.0 if alpha == 1 else mass / (mass + 1 - alpha)


def traversal(
    draft: Draft,
    p: torch.Tensor,
    u: Sequence[float],
    rescale: Callable[[float, float, float], float] = rescaled,
) -> tuple[list[int], torch.Tensor, list[float | None]]:
    """Verifies a tree from its leaves; arguments and result are those of `recursive_rejection`. `rescale`: returns a
    parent's α after the rejection of a child."""
    children = children_of(draft)
    bounds: list[float | None] = [None] * len(draft.ids)

    def visit(at: int, alpha: float) -> tuple[list[int], torch.Tensor] | None:
        """Returns the branch that is accepted after token `at`, and the rest of p at its end; None if `at` is
        rejected."""
        left, q = p[at + 1], _sampled_from(draft, children[at])
        for i in children[at]:
            x = draft.ids[i]
            branch = visit(i, min(1.0, alpha * float(left[x] / q[x])))
            if branch:
                return [i, *branch[0]], branch[1]
            rest = (alpha * left - q).clamp(min=0)
            alpha = rescale(float(rest.sum()), alpha, 1 - float(q[x]))
            left, q = _normed(rest, left), _without(q, x)
        if at < 0:
            return [], left
        bounds[at] = alpha
        return ([], left) if u[at] < alpha else None

    branch = visit(-1, 1.0)
    assert branch, "nothing rejects the root"
    return *branch, bounds


RULES: dict[str, TreeRule] = {"recursive": recursive_rejection, "traversal": traversal}


def verify_tree(draft: Draft, p: torch.Tensor, sampler: Sampler, rule: TreeRule) -> Kept:
    """Verifies a sampled tree by a rule. `p`: (k + 1, vocabulary), the target's distributions.

    Raises:
        FloatingPointError: p contains NaN.
    """
    if bool(p.isnan().any()):
        raise FloatingPointError
    u = sampler.uniform(len(draft.ids)).tolist()
    path, left, bounds = rule(draft, p, u)
    return Kept(path, sampler.draw(left), u, bounds)


def children_of(draft: Draft) -> dict[int, list[int]]:
    """Returns the children of each token, and of the text, which is -1, in the order in which they were drawn."""
    children: dict[int, list[int]] = {i: [] for i in range(-1, len(draft.ids))}
    for i, parent in enumerate(draft.parents):
        children[parent].append(i)
    return children


def _sampled_from(draft: Draft, siblings: Sequence[int]) -> torch.Tensor:
    """Returns the q that siblings were drawn from, (vocabulary,)."""
    assert draft.probabilities is not None, "the draft was sampled"
    return draft.probabilities[siblings[0]] if siblings else draft.probabilities[0]


def _without(q: torch.Tensor, x: int) -> torch.Tensor:
    left = q.clone()
    left[x] = 0
    return _normed(left, left)


def _normed(weights: torch.Tensor, fallback: torch.Tensor) -> torch.Tensor:
    """Normalises weights; returns `fallback` where rounding leaves none."""
    total = weights.sum()
    return weights / total if total > 0 else fallback
