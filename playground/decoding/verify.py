"""Which draft tokens the target keeps, and the token it adds by itself.

Greedy: a draft token is kept while it is the target's own choice. Sampled: speculative sampling (Leviathan et al. 2023,
"Fast Inference from Transformers via Speculative Decoding", algorithm 1), which leaves the target's distribution
unchanged whatever the drafter proposes. With p the target's distribution and q the drafter's, a draft token x is kept
with probability min(1, p(x) / q(x)); the first one that is not is replaced by a draw from norm(max(0, p - q)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from playground.decoding.drafters.base import Draft
from playground.decoding.sampling import Sampler


@dataclass(frozen=True)
class Verdict:
    """What the target made of a draft of k tokens.

    Attributes:
        accepted: how many draft tokens, from the first on, are kept.
        token: the target's own token behind them.
        p: the target's probabilities of the k draft tokens.
        token_p: of its own token.
        margins: gap between the two highest scores at each of the k + 1 places.
    """

    accepted: int
    token: int
    p: list[float]
    token_p: float
    margins: list[float]


def verify(draft: Draft, scores: torch.Tensor, sampler: Sampler) -> Verdict:
    """Args:
    scores: the target's, of shape (k + 1, vocabulary): row i is behind i draft tokens.
    """
    k = len(draft.ids)
    probabilities = scores.softmax(dim=-1) if sampler.greedy else sampler.probabilities(scores)
    drafted = torch.tensor(draft.ids, dtype=torch.long, device=scores.device)
    p_drafted = probabilities[:k].gather(1, drafted[:, None])[:, 0]

    if sampler.greedy:
        choices = scores.argmax(dim=-1).tolist()
        accepted = greedy_match(draft.ids, choices)
        token = choices[accepted]
    else:
        accepted, token = speculative_sampling(draft, probabilities, p_drafted, sampler)

    best = scores.topk(2, dim=-1).values
    *p, token_p = torch.cat([p_drafted, probabilities[accepted, token][None]]).tolist()
    return Verdict(accepted, token, p, token_p, margins=(best[:, 0] - best[:, 1]).tolist())


def greedy_match(draft: Sequence[int], choices: Sequence[int]) -> int:
    """The length of the longest prefix of `draft` that equals `choices`."""
    n = 0
    while n < len(draft) and draft[n] == choices[n]:
        n += 1
    return n


def speculative_sampling(draft: Draft, p: torch.Tensor, p_drafted: torch.Tensor, sampler: Sampler) -> tuple[int, int]:
    """Accepts a prefix of the draft and draws the token behind it.

    Args:
        p: (k + 1, vocabulary), the target's distributions.
        p_drafted: (k,), the probabilities in them of the draft tokens.

    Returns:
        The number of accepted draft tokens n, and the target's token.
    """
    k = len(draft.ids)
    if draft.probabilities is None:  # one-hot q: q(x) is 1 for the token that was drafted
        q_drafted = torch.ones_like(p_drafted)
    else:
        q_drafted = draft.probabilities[range(k), draft.ids]
    u = torch.rand(k, generator=sampler.generator, device=p.device)
    kept = (u * q_drafted < p_drafted).tolist()
    n = kept.index(False) if False in kept else k
    if n == k:
        return n, sampler.draw(p[k])
    if draft.probabilities is None:
        residual = p[n].clone()
        residual[draft.ids[n]] = 0
    else:
        residual = (p[n] - draft.probabilities[n]).clamp(min=0)
    # Where p and q are equal up to rounding, a rejection can leave nothing over; p itself is then the right draw.
    return n, sampler.draw(residual if residual.sum() > 0 else p[n])
