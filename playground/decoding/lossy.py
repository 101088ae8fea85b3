"""Verification rules that change the output, to show that `experiments/kinds/lossless.py` finds such a change; no
preset, page or default uses them, and the name of a lane that does says so.

Each keeps what it changes small, as engines do: the text still reads well, and only the distribution is another.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from playground.decoding.drafters.base import Draft
from playground.decoding.sampling import Sampler
from playground.decoding.verify import Rule, Verdict, decide, decisions
from playground.lane import Lane

EPSILON, DELTA = 0.09, 0.3  # Medusa's own defaults; δ = √ε


def wrong_q(draft: Draft, scores: torch.Tensor, sampler: Sampler, length: int) -> Verdict:
    """Takes q for half of what it is. transformers' Gemma 4 path does the like: it drafts by argmax, where q is 1, and
    reports a softmax. Greedy decoding does not use q and stays exact."""
    if sampler.greedy:
        return decide(draft, scores, sampler, length)
    p = sampler.probabilities(scores)
    q = p.new_zeros(len(draft.ids), p.shape[1])  # as reported
    q[range(len(draft.ids)), draft.ids] = 1.0
    if draft.probabilities is not None:
        q = draft.probabilities.clone()
    q /= 2

    def accepts(row: int, i: int) -> bool:
        u = torch.rand((), generator=sampler.generator, device=p.device)
        return bool(u * q[i, draft.ids[i]] < p[row, draft.ids[i]])

    path = _walk(draft, accepts)
    row = path[-1] + 1 if path else 0
    rejected = [i for i, parent in enumerate(draft.parents) if parent + 1 == row]
    residual = (p[row] - q[rejected].sum(0)).clamp(min=0)
    token = sampler.draw(residual if residual.sum() > 0 else p[row])
    return Verdict(path, token, decisions(draft, path))


def top_2(draft: Draft, scores: torch.Tensor, sampler: Sampler, length: int) -> Verdict:
    """Accepts a draft token that is one of the target's two likeliest."""
    best = scores.topk(2, dim=-1).indices.tolist()
    path = _walk(draft, lambda row, i: draft.ids[i] in best[row] and not scores[row, draft.ids[i]].isneginf())
    return _ended(draft, path, scores, sampler)


def typical(draft: Draft, scores: torch.Tensor, sampler: Sampler, length: int) -> Verdict:
    """Medusa's typical acceptance (Cai et al. 2024, section 2.3.1): accepts a draft token x where p(x) is above
    min(ε, δ exp(-H(p))). In greedy decoding p is the softmax of the scores."""
    p = scores.softmax(dim=-1) if sampler.greedy else sampler.probabilities(scores)
    entropy = torch.special.entr(p).sum(dim=-1)
    bound = (DELTA * torch.exp(-entropy)).clamp(max=EPSILON)
    path = _walk(draft, lambda row, i: bool(p[row, draft.ids[i]] > bound[row]))
    return _ended(draft, path, scores, sampler)


RULES: dict[str, Rule] = {"exact": decide, "wrong-q": wrong_q, "top-2": top_2, "typical": typical}


def rule_of(lane: Lane) -> Rule:
    return RULES[lane.rule]


def _walk(draft: Draft, accepts: Callable[[int, int], bool]) -> list[int]:
    """The branch that takes the first accepted token at each position. `accepts` is asked with a row of the scores and
    a draft token after it."""
    path: list[int] = []
    for i, parent in enumerate(draft.parents):
        at = path[-1] if path else -1
        if parent == at and accepts(at + 1, i):
            path.append(i)
    return path


def _ended(draft: Draft, path: list[int], scores: torch.Tensor, sampler: Sampler) -> Verdict:
    """The target's own token is chosen as usual."""
    row = scores[path[-1] + 1 if path else 0]
    token = int(row.argmax()) if sampler.greedy else sampler.draw(sampler.probabilities(row[None])[0])
    return Verdict(path, token, decisions(draft, path))
