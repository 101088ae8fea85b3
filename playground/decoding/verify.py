"""Which draft tokens the target keeps, and the token it adds by itself.

The target chooses as it would alone, by argmax or by a draw from its distribution p, and where its choice was drafted
it goes on from there. That is exact by itself, and under one seed a sampled text is the same whatever was drafted.

Where the drafter drew its tokens, from a distribution q, speculative sampling (Leviathan et al. 2023, "Fast Inference
from Transformers via Speculative Decoding", algorithm 1) keeps more of them and leaves p unchanged, too: a draft token
x is kept with probability min(1, p(x) / q(x)), and the first one that is not is replaced by a draw from
norm(max(0, p - q)). Of tokens that were chosen, by argmax or by a lookup, q is one-hot: then, and where a tree's
alternatives are rejected one after the other (Miao et al. 2024, SpecInfer), it keeps as many as the first rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from playground.decoding.drafters.base import Draft
from playground.decoding.sampling import Sampler


@dataclass(frozen=True)
class Verdict:
    """What the target made of a draft of k tokens.

    Attributes:
        path: the indices of the draft tokens that are kept, in the order of the text.
        token: the target's own token behind them.
        p: the target's probability of each draft token; None where it stands behind one that is not kept.
        margins: the gap between the target's two highest scores at the place of each draft token; None as for p.
        token_p, token_margin: the same of its own token.
    """

    path: list[int]
    token: int
    p: list[float | None]
    margins: list[float | None]
    token_p: float
    token_margin: float


def verify(draft: Draft, scores: torch.Tensor, sampler: Sampler) -> Verdict:
    """Args:
    scores: the target's, of shape (k + 1, vocabulary): row 0 is behind the text, row i + 1 behind draft token i.
    """
    if sampler.greedy:
        path, token = follow(draft, lambda row: int(scores[row].argmax()))
    elif draft.probabilities is None:
        path, token = follow(draft, lambda row: sampler.draw(sampler.probabilities(scores[row : row + 1])[0]))
    else:
        accepted, token = speculative_sampling(draft, sampler.probabilities(scores), sampler)
        path = list(range(accepted))

    # What is told of the tokens stands in the rows along the path alone; the others are many in a tree.
    rows = {-1: 0} | {i: row for row, i in enumerate(path, 1)}  # behind which token
    along = scores[[i + 1 for i in rows]]
    probabilities = along.softmax(dim=-1) if sampler.greedy else sampler.probabilities(along)
    best = along.topk(2, dim=-1).values
    margins = (best[:, 0] - best[:, 1]).tolist()
    judged = {i: rows[parent] for i, parent in enumerate(draft.parents) if parent in rows}
    p = probabilities[[*judged.values(), len(path)], [*(draft.ids[i] for i in judged), token]].tolist()
    p_of = dict(zip(judged, p, strict=False))
    k = len(draft.ids)
    return Verdict(
        path,
        token,
        p=[p_of.get(i) for i in range(k)],
        margins=[margins[judged[i]] if i in judged else None for i in range(k)],
        token_p=p[-1],
        token_margin=margins[-1],
    )


def follow(draft: Draft, choose: Callable[[int], int]) -> tuple[list[int], int]:
    """Goes along the draft while it holds what is chosen.

    Args:
        choose: the token that belongs behind the text (0) or behind draft token i (i + 1); asked once a place.

    Returns:
        The indices of the draft tokens gone along, and the token chosen behind them.
    """
    drafted = {(parent, id_): i for i, (parent, id_) in enumerate(zip(draft.parents, draft.ids, strict=True))}
    path, at = [], -1
    while True:
        token = choose(at + 1)
        if (at, token) not in drafted:
            return path, token
        at = drafted[at, token]
        path.append(at)


def speculative_sampling(draft: Draft, p: torch.Tensor, sampler: Sampler) -> tuple[int, int]:
    """Accepts a prefix of a chain of tokens that were drawn, and draws the token behind it.

    Args:
        p: (k + 1, vocabulary), the target's distributions.

    Returns:
        The number of accepted draft tokens n, and the target's token.
    """
    k = len(draft.ids)
    q = draft.probabilities
    u = torch.rand(k, generator=sampler.generator, device=p.device)
    kept = (u * q[range(k), draft.ids] < p[range(k), draft.ids]).tolist()
    n = kept.index(False) if False in kept else k
    if n == k:
        return n, sampler.draw(p[k])
    residual = (p[n] - q[n]).clamp(min=0)
    # Where p and q are equal up to rounding, a rejection can leave nothing over; p itself is then the right draw.
    return n, sampler.draw(residual if residual.sum() > 0 else p[n])
