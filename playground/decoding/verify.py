"""Verification: decides which draft tokens are accepted and which token the target adds (`decide`).

`annotate` then describes the tokens for the trace.

The target chooses as it would alone, by argmax or by sampling from its distribution p, and as long as its choice was
drafted, the draft token is accepted. That is exact. A sample depends only on the seed, the prompt and the position in
the text: so all rows are sampled at once, and under one seed the text does not depend on the drafts.

Where the draft was itself sampled, from a distribution q, a rule that knows q accepts more and leaves p unchanged as
well. Such rules are in chain_rules.py and tree_rules.py; the lane's `verification` selects one. For draft tokens that
were chosen (argmax, lookup) q is one-hot, and those rules would accept no more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from playground.decoding import tree_rules
from playground.decoding.chain_rules import Chain, block_of, block_verification, kept_by_tokens, speculative_sampling
from playground.decoding.drafters.base import Draft, rank_among
from playground.decoding.sampling import Sampler, noise_of, whole
from playground.decoding.text import Detokenizer
from playground.decoding.transfer import to_device
from playground.decoding.tree_rules import Tree
from playground.lane import OTHER_RULE
from playground.trace import Decision, DraftToken, TargetToken


@dataclass(frozen=True)
class Verdict:
    """The outcome of verifying a draft of k tokens.

    Attributes:
        path: indices of the accepted draft tokens, in the order of the text.
        token: the target's own token, which follows them.
        decisions: one for each draft token.
        draws: a uniform number for each token of a draft that was sampled; empty for others.
        bounds: the chance with which each of those tokens was accepted; None where none was computed. Empty for other
            drafts, and where that of every token is min(1, p / q).
        rule: the exact rule that judged a draft that was sampled; "" for others.
    """

    path: list[int]
    token: int
    decisions: list[Decision]
    draws: Sequence[float] = ()
    bounds: Sequence[float | None] = ()
    rule: str = ""

    def ended(self, draft: Draft, n: int) -> Verdict:
        """Returns the verdict for an answer that ends with the n-th accepted token: tokens after it are not judged, and
        the target's own token is not part of the output."""
        path = self.path[:n]
        decided = decisions(draft, path, judged=path[:-1])
        bounds = [bound if it != "unverified" else None for bound, it in zip(self.bounds, decided, strict=False)]
        return replace(self, path=path, decisions=decided, bounds=bounds)

    def draw(self, i: int) -> float | None:
        """Returns the uniform number that decided draft token i; None if none did."""
        tried = self.bounds[i] is not None if self.bounds else self.decisions[i] != "unverified"
        return self.draws[i] if self.draws and tried else None

    def bound(self, i: int) -> float | None:
        """Returns the chance with which draft token i was accepted; None if it is min(1, p / q) or was not computed."""
        return self.bounds[i] if self.bounds else None


Rule = Callable[[Draft, torch.Tensor, Sampler, int], Verdict]  # the first four arguments of `decide`


def decide(draft: Draft, scores: torch.Tensor, sampler: Sampler, length: int, verification: str = "token") -> Verdict:
    """Accepts draft tokens and chooses the target's own.

    Args:
        scores: the target's, (k + 1, vocabulary). Row 0 follows the text, row i + 1 follows draft token i.
        length: tokens of the text.
        verification: the lane's setting, for drafts that were sampled.

    Raises:
        FloatingPointError: scores contain NaN.
    """
    if sampler.greedy:
        path, token = follow(draft, _highest(scores, sampler).__getitem__)
    elif draft.probabilities is None:
        path, token = follow(draft, sampler.choices(scores, [length + depth for depth in draft.depths]))
    else:
        return sampled(draft, scores, sampler, rule_for(draft, verification))
    return Verdict(path, token, decisions(draft, path))


def rule_for(draft: Draft, verification: str) -> str:
    """Returns the rule for a sampled draft. A chain with a setting that is meant for trees gets "token"."""
    if draft.tree is not None:
        return verification
    return "block" if verification == "block" else "token"


RULES: dict[str, Callable[..., Tensor]] = {
    "token": speculative_sampling,
    "block": block_verification,
    **tree_rules.RULES,
}


def sampled(draft: Draft, scores: Tensor, sampler: Sampler, rule: str) -> Verdict:
    """Verifies a sampled draft by the named rule. `scores` are those of `decide`."""
    given = scores, _q(draft), sampler.numbers(2, *draft.ids), *_layout(draft, rule)
    (outcome,) = sampler.run(("draft", rule), partial(_judged, RULES[rule], sampler), *given)
    verdict = verdict_of(outcome, draft, rule)
    if verdict is None:
        p = sampler.completed(sampler.distributions(scores), scores)
        verdict = verdict_of(RULES[rule](on_device(draft, rule, p.device), p, sampler), draft, rule)
        assert verdict, "these are complete"
    return verdict


def verdict_of(outcome: Tensor, draft: Draft, rule: str) -> Verdict | None:
    """Reads the outcome of a rule in one transfer; None if a distribution was not complete.

    Raises:
        FloatingPointError: p contains NaN.
    """
    row, token, damaged, known, *numbers = outcome.tolist()
    if damaged:
        raise FloatingPointError
    if not known:
        return None
    path, k = draft.path(int(row) - 1), len(draft.ids)
    tried = tree_rules.tried(draft, path, rule)
    bounds = [bound if i in tried else None for i, bound in enumerate(numbers[k:])]
    return Verdict(path, int(token), decisions(draft, path), numbers[:k], bounds, rule)


def on_device(draft: Draft, rule: str, device: torch.device) -> Chain | Tree:
    """Returns a sampled draft as its rule takes it."""
    return _sampled_from(to_device(draft.ids, device), _q(draft), *(to_device(x, device) for x in _layout(draft, rule)))


def _sampled_from(ids: Tensor, q: Tensor, *layout: Tensor) -> Chain | Tree:
    return Tree(ids, q, *layout) if layout else Chain(ids, q)


def _layout(draft: Draft, rule: str) -> tuple[Tensor, ...]:
    return () if draft.tree is None else tree_rules.laid_out(draft, rule)


def _q(draft: Draft) -> Tensor:
    assert draft.probabilities is not None, "the draft was sampled"
    return draft.probabilities


def _judged(
    rule: Callable[..., Tensor], sampler: Sampler, scores: Tensor, q: Tensor, numbers: Tensor, *layout: Tensor
) -> tuple[Tensor]:
    """Returns a rule's outcome. `numbers`: those of `Sampler.numbers`, then the (k,) ids of the draft."""
    quick = sampler.distributions(scores)
    drafted = _sampled_from(numbers[2:], q, *layout)
    return (rule(drafted, quick.spread(scores.shape[1]), noise_of(numbers), quick.complete),)


def _highest(scores: Tensor, sampler: Sampler) -> list[int]:
    """Returns the highest column of each row, which the runner may have found.

    Raises:
        FloatingPointError: scores contain NaN.
    """
    known: list[int] | None = scores.__dict__.get("highest")
    if known is None:
        (read,) = sampler.run("argmax", _argmax, scores)
        *known, damaged = read.tolist()
    else:
        damaged = -1 in known
    if damaged:
        raise FloatingPointError
    return known


def _argmax(scores: Tensor) -> tuple[Tensor]:
    """Returns the highest column of each row, then whether one of them is NaN, which argmax treats as the highest."""
    best = scores.argmax(dim=-1)
    return (torch.cat([best, scores.gather(-1, best[:, None]).isnan().any()[None]]),)


def follow(draft: Draft, choose: Callable[[int], int]) -> tuple[list[int], int]:
    """Follows the draft for as long as it contains the target's choice.

    Args:
        choose: returns the target's choice in row i of its scores. It is called once for each row on the path.

    Returns:
        The indices of the accepted draft tokens, and the choice that follows them.
    """
    drafted = {(parent, id_): i for i, (parent, id_) in enumerate(zip(draft.parents, draft.ids, strict=True))}
    path: list[int] = []
    at = -1
    while True:
        token = choose(at + 1)
        if (at, token) not in drafted:
            return path, token
        at = drafted[at, token]
        path.append(at)


def decisions(draft: Draft, path: Sequence[int], judged: Sequence[int] | None = None) -> list[Decision]:
    """Returns a decision for each draft token. A token whose parent was accepted was compared with the target's choice;
    tokens after a rejection were not. `judged`: those after which tokens were compared, by default the whole path."""
    accepted, compared = {*path}, {-1, *(path if judged is None else judged)}
    return [
        "accepted" if i in accepted else "rejected" if parent in compared else "unverified"
        for i, parent in enumerate(draft.parents)
    ]


def annotate(
    draft: Draft,
    verdict: Verdict,
    scores: torch.Tensor,
    sampler: Sampler,
    detokenizer: Detokenizer,
    with_own: bool,
) -> tuple[tuple[DraftToken, ...], TargetToken | None, int | None]:
    """Returns the round's tokens for the trace, and `Round.other_rule`. It does not affect the output.

    Args:
        scores: (k + 1, vocabulary), those that `decide` was given.
        detokenizer: advances by the accepted tokens and the target's own.
        with_own: whether the target's own token is part of the output.
    """
    row_after = {-1: 0} | {i: row for row, i in enumerate(verdict.path, 1)}
    decided = [i for i, decision in enumerate(verdict.decisions) if decision != "unverified"]
    judged = {i: row_after[draft.parents[i]] for i in decided}
    last = verdict.path[-1] if verdict.path else -1
    rejected = next((i for i, parent in enumerate(draft.parents) if parent == last), None)
    pairs = [*((row, draft.ids[i]) for i, row in judged.items()), (len(verdict.path), verdict.token)]
    p, margins, rank, other_rule = _shown(draft, verdict, scores, sampler, pairs, rejected)
    p_of = dict(zip(judged, p, strict=False))

    pieces = detokenizer.branch(draft.ids, draft.parents, last)
    drafted = tuple(
        DraftToken(
            id=id_,
            text=pieces[i],
            special=id_ in detokenizer.special_ids,
            q=draft.q[i],
            p=p_of.get(i),
            margin=margins[judged[i]] if i in judged else None,
            decision=verdict.decisions[i],
            parent=None if draft.tree is None else draft.parents[i],
            draw=verdict.draw(i),
            bound=verdict.bound(i),
            confidence=None if draft.confidences is None else draft.confidences[i],
            forced=i < draft.forced,
        )
        for i, id_ in enumerate(draft.ids)
    )
    if not with_own:  # the other rule would have accepted nothing after the end either
        return drafted, None, other_rule if other_rule is None else min(other_rule, len(verdict.path))
    own = TargetToken(
        id=verdict.token,
        text=detokenizer.commit([verdict.token])[0],
        special=verdict.token in detokenizer.special_ids,
        p=p[len(judged)],
        margin=margins[len(verdict.path)],
        reason="plain" if not draft.ids else "bonus" if rejected is None else "correction",
        rank=rank,
    )
    return drafted, own, other_rule


def _shown(
    draft: Draft,
    verdict: Verdict,
    scores: Tensor,
    sampler: Sampler,
    pairs: list[tuple[int, int]],
    rejected: int | None,
) -> tuple[list[float], list[float | None], int | None, int | None]:
    """Reads in one transfer: the probability of each of `pairs`, a row of the path and a token; the gap between the two
    highest scores in each row of the path (None where only one is allowed); the rank of the target's own token among
    the candidates of the draft token `rejected`; and `Round.other_rule`."""
    path, k = [0, *(i + 1 for i in verdict.path)], len(draft.ids)
    # Of a tree few rows are shown, unless the other rule needs all. All sizes depend on the draft alone, so that few
    # are captured.
    other = OTHER_RULE[verdict.rule] if verdict.rule and k else ""
    if draft.tree is None or other:
        rows, size, at = scores, k + 1, path
    else:
        rows = scores.index_select(0, to_device(_padded(path, 1 << draft.depth.bit_length()), scores.device))
        size, at = 1 << len(pairs).bit_length(), list(range(len(path)))
    pairs = [(at[row], id_) for row, id_ in pairs]
    given = [rows, torch.tensor([*itertools.chain(*_padded(pairs, size)), verdict.token, *draft.ids])]
    ranked = draft.candidates is not None and draft.draft_ids is not None and k > 0
    if ranked:
        assert draft.candidates is not None and draft.draft_ids is not None
        given += [draft.candidates[rejected or 0], draft.draft_ids]
    if other:
        given += [_q(draft), torch.tensor(verdict.draws), *_layout(draft, other)]
    (read,) = sampler.run(("shown", size, ranked, other), partial(_described, sampler, size, ranked, other), *given)
    rank, last, known, complete, *values = read.tolist()
    kept = draft.depths[int(last)] if other else None
    if other and not known:
        kept = accepted_by_other_rule(draft, verdict, sampler.all_of(sampler.distributions(scores), scores))
    chances = values[: len(pairs)]
    if not complete:
        row, id_ = to_device(pairs, scores.device).T
        chances = sampler.probabilities(rows.index_select(0, row)).gather(1, id_[:, None])[:, 0].tolist()
    gaps = [gap if gap < math.inf else None for gap in (values[size + row] for row in at)]
    return chances, gaps, int(rank) if ranked and rejected is not None else None, kept


def _padded(values: list[Any], size: int) -> list[Any]:
    return values + values[-1:] * (size - len(values))


def _described(
    sampler: Sampler, size: int, ranked: bool, other: str, scores: Tensor, numbers: Tensor, *more: Tensor
) -> tuple[Tensor]:
    """Returns what `_shown` reads: the rank, the row after the last token that the other rule would have accepted,
    whether it knows, whether the probabilities are complete, the `size` probabilities, and the gap of each row.

    Args:
        numbers: `size` rows and tokens, the target's own token, the (k,) tokens of the draft.
        more: if `ranked`, the scores that the rank is among, and their ids; if there is an `other` rule, q, the uniform
            numbers, and the layout of a tree.
    """
    row, id_ = numbers[: 2 * size].view(-1, 2).unbind(1)
    own, ids = numbers[2 * size : 2 * size + 1], numbers[2 * size + 1 :]
    of = whole(scores.softmax(dim=-1)) if sampler.greedy else sampler.distributions(scores)
    p, best, yes = of.spread(scores.shape[1]), scores.topk(2, dim=-1).values, scores.new_ones(1)
    rank = rank_among(more[0], more[1], own) if ranked else yes
    q, u, *layout = more[2 * ranked :] if other else (yes, yes)
    kept = last_by(other, _sampled_from(ids, q, *layout), p, u) if other else yes
    whether = [yes, yes] if of.complete is None else [of.complete.all()[None], of.complete[row].all()[None]]
    parts = rank, kept, *whether, p[row, id_], best[:, 0] - best[:, 1]
    return (torch.cat([part.to(best.dtype) for part in parts]),)


def accepted_by_other_rule(draft: Draft, verdict: Verdict, p: Tensor) -> int:
    """Counts the tokens of a sampled draft that the other rule would have accepted with the same random numbers: block
    or token by token for a chain, traversal or recursive rejection for a tree."""
    other = OTHER_RULE[verdict.rule]
    drafted = on_device(draft, other, p.device)
    return draft.depths[int(last_by(other, drafted, p, to_device(verdict.draws, p.device)))]


def last_by(rule: str, drafted: Chain | Tree, p: Tensor, u: Tensor) -> Tensor:
    """Returns the row of p after the last token that a rule accepts, (1,). `u`: (k,), uniform numbers."""
    if isinstance(drafted, Tree):
        rescale = tree_rules.rescaled if rule == "traversal" else None
        return drafted.accepted(u < tree_rules.tested(drafted, p, rescale)[0])
    return block_of(drafted, p).kept(u) if rule == "block" else kept_by_tokens(drafted, p, u)
