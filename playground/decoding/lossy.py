"""Verification rules that change the output, and verification with given acceptance rates.

No preset, page or default uses either, and the name of a lane that does says so.

The lossy rules show that `experiments/kinds/lossless.py` finds such a change. Each change is small, as in engines: the
text still reads well, and only its distribution differs. A rule takes the arguments of `verify.decide`.

`Forced` answers the question how fast a drafter with given acceptance rates would be. Drafting and verification run and
are timed as usual, but the number of tokens that a round accepts is drawn from the rates. So that the text stays the
target's, the accepted tokens are those of standard decoding's answer, which is decoded beforehand and replaces the
drafter's proposals. Acceptance, q and all figures made of them are synthetic; only the times are measured.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from playground.decoding.drafters.base import Draft, Drafter
from playground.decoding.sampling import Sampler
from playground.decoding.tree_rules import Tree, verify_tree
from playground.decoding.verify import Rule, Verdict, decide, decisions, on_device, verdict_of
from playground.lane import Lane

EPSILON, DELTA = 0.09, 0.3  # Medusa's own defaults; δ = √ε


def wrong_q(draft: Draft, scores: torch.Tensor, sampler: Sampler, length: int) -> Verdict:
    """Uses half of the actual q. transformers' Gemma 4 path has a similar fault: it drafts by argmax, where q is 1, and
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
        u = sampler.uniform(1)
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


def block_residual(draft: Draft, scores: torch.Tensor, sampler: Sampler, length: int) -> Verdict:
    """vllm-ascend's first block verification: accepts the longest prefix whose product of min(1, p / q) is at least the
    product of its uniform numbers, and samples the target's own token from norm(max(0, p - q)), without p_τ."""
    if draft.probabilities is None or draft.tree is not None:
        return decide(draft, scores, sampler, length)
    p, q, k = sampler.probabilities(scores), draft.probabilities, len(draft.ids)
    ratios = torch.stack([(p[i, x] / q[i, x]).clamp(max=1) for i, x in enumerate(draft.ids)])
    u = sampler.uniform(k)
    kept = (ratios.cumprod(0) >= u.cumprod(0)).nonzero()
    n = int(kept[-1]) + 1 if len(kept) else 0
    rest = p[n] if n == k else (p[n] - q[n]).clamp(min=0)
    path = list(range(n))
    return Verdict(path, sampler.draw(rest if rest.sum() > 0 else p[n]), decisions(draft, path))


def traversal_alpha(draft: Draft, scores: torch.Tensor, sampler: Sampler, length: int) -> Verdict:
    """Traversal verification with a wrong divisor: the rest of q instead of S + 1 - α."""
    if draft.probabilities is None or draft.tree is None:
        return decide(draft, scores, sampler, length)
    p, tree = sampler.probabilities(scores), on_device(draft, "traversal", scores.device)
    assert isinstance(tree, Tree), "the draft is one"
    outcome = verify_tree(
        tree, p, sampler, rescale=lambda mass, alpha, left: (mass / left).nan_to_num(1.0).clamp(max=1)
    )
    verdict = verdict_of(outcome, draft, "traversal")
    assert verdict, "p is complete"
    return replace(verdict, rule="")


RULES: dict[str, Rule] = {
    "wrong-q": wrong_q,
    "top-2": top_2,
    "typical": typical,
    "block-residual": block_residual,
    "traversal-alpha": traversal_alpha,
}


def rule_of(lane: Lane) -> Rule:
    return RULES[lane.rule] if lane.rule != "exact" else partial(decide, verification=lane.verification)


def _walk(draft: Draft, accepts: Callable[[int, int], bool]) -> list[int]:
    """Returns the branch that takes the first accepted token at each position. `accepts` is called with a row of the
    scores and the index of a draft token after it."""
    path: list[int] = []
    for i, parent in enumerate(draft.parents):
        at = path[-1] if path else -1
        if parent == at and accepts(at + 1, i):
            path.append(i)
    return path


def _ended(draft: Draft, path: list[int], scores: torch.Tensor, sampler: Sampler) -> Verdict:
    """Returns the verdict for a path, with the target's own token chosen as usual."""
    row = scores[path[-1] + 1 if path else 0]
    token = int(row.argmax()) if sampler.greedy else sampler.draw(sampler.probabilities(row[None])[0])
    return Verdict(path, token, decisions(draft, path))


class Forced(Drafter):
    """A drafter whose first branch begins with tokens of the answer, as many as are to be accepted.

    Args:
        rates: the acceptance rate at each position, `Lane.forced_rates`; the last one holds for all further positions.
        prompt: the length of the prompt in tokens.
        answer: the token ids of standard decoding's answer.
        seed: the seed of the verdicts.
    """

    def __init__(self, drafter: Drafter, rates: Sequence[float], prompt: int, answer: Sequence[int], seed: int) -> None:
        self._drafter, self._rates, self._prompt, self._answer = drafter, rates, prompt, answer
        self._random = random.Random(seed)

    @property
    def cache_bytes(self) -> int:
        return self._drafter.cache_bytes

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        draft = self._drafter.propose(ids, k, stop_below, sampler)
        ahead = self._answer[len(ids) - self._prompt : -1]  # the last one is the target's own
        drafted, q = list(draft.ids), list(draft.q)
        for i, id_, depth in zip(_first_branch(draft), ahead, range(len(ahead)), strict=False):
            if self._random.random() >= self._rates[min(depth, len(self._rates) - 1)]:
                break
            drafted[i], q[i] = id_, None
        return replace(draft, ids=drafted, q=q, probabilities=None)

    def commit(self, length: int) -> None:
        self._drafter.commit(length)

    def prepare(self) -> None:
        self._drafter.prepare()

    def decide(self, draft: Draft, scores: torch.Tensor, sampler: Sampler, length: int) -> Verdict:
        """Returns the verdict that `propose` drew. `scores` are not read: the pass runs for its time alone."""
        path = [i for i in _first_branch(draft) if draft.q[i] is None]  # of what the policy has left of it
        return Verdict(path, self._answer[length - self._prompt + len(path)], decisions(draft, path))


def _first_branch(draft: Draft) -> list[int]:
    """Returns the branch that follows the first child of each token, from the root on."""
    return _walk(draft, lambda row, i: True)
