"""Verification: decides which draft tokens are accepted and which token the target adds (`decide`).

`annotate` then describes the tokens for the trace.

The target chooses as it would alone, by argmax or by sampling from its distribution p, and as long as its choice was
drafted, the draft token is accepted. That is exact. A sample depends only on the seed and on the position in the text:
so all rows are sampled at once, and under one seed the text does not depend on the drafts.

Where the draft was itself sampled, from a distribution q, a rule that knows q accepts more and leaves p unchanged as
well. Such rules are in chain_rules.py and tree_rules.py; the lane's `verification` selects one. For draft tokens that
were chosen (argmax, lookup) q is one-hot, and those rules would accept no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from playground.decoding import chain_rules, tree_rules
from playground.decoding.chain_rules import Kept, block_verification, speculative_sampling
from playground.decoding.drafters.base import Draft
from playground.decoding.sampling import Sampler, read_choices, whole
from playground.decoding.text import Detokenizer
from playground.decoding.transfer import to_device
from playground.trace import Decision, DraftToken, TargetToken


@dataclass(frozen=True)
class Verdict:
    """The outcome of verifying a draft of k tokens.

    Attributes:
        path: indices of the accepted draft tokens, in the order of the text.
        token: the target's own token, which follows them.
        decisions: one for each draft token.
        draws, bounds: those of `Kept`, for a draft that was sampled; empty for others.
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
        judged = {-1, *path[:-1]}
        decisions: list[Decision] = [
            "accepted" if i in path else "rejected" if parent in judged else "unverified"
            for i, parent in enumerate(draft.parents)
        ]
        kept = [bound if it != "unverified" else None for bound, it in zip(self.bounds, decisions, strict=False)]
        return replace(self, path=path, decisions=decisions, bounds=kept)

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
        best = scores.argmax(dim=-1)
        choices = read_choices(best, scores.gather(-1, best[:, None]))
        path, token = follow(draft, choices.__getitem__)
    elif draft.probabilities is None:
        path, token = follow(draft, sampler.choices(scores, [length + depth for depth in draft.depths]))
    else:
        rule = rule_for(draft, verification)
        kept = sampled(draft, scores, sampler, rule)
        return Verdict(kept.path, kept.token, decisions(draft, kept.path), kept.draws, kept.bounds, rule)
    return Verdict(path, token, decisions(draft, path))


def rule_for(draft: Draft, verification: str) -> str:
    """Returns the rule for a sampled draft. A chain with a setting that is meant for trees gets "token"."""
    if draft.tree is not None:
        return verification
    return "block" if verification == "block" else "token"


def sampled(draft: Draft, scores: torch.Tensor, sampler: Sampler, rule: str) -> Kept:
    """Verifies a sampled draft by the named rule. `scores` are those of `decide`."""
    quick = sampler.distributions(scores)
    if draft.tree is not None:
        return tree_rules.verify_tree(draft, sampler.all_of(quick, scores), sampler, tree_rules.RULES[rule])
    of_chain = block_verification if rule == "block" else speculative_sampling
    kept = of_chain(draft, quick.spread(scores.shape[1]), sampler, quick.complete)
    if kept is None:
        kept = of_chain(draft, sampler.completed(quick, scores), sampler, None)
        assert kept, "these are complete"
    return kept


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


def decisions(draft: Draft, path: Sequence[int]) -> list[Decision]:
    """Returns a decision for each draft token. A token whose parent was accepted was compared with the target's choice;
    tokens after a rejection were not."""
    verified = {-1, *path}
    return [
        "accepted" if i in verified else "rejected" if parent in verified else "unverified"
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
    """Returns the round's tokens for the trace, and `Round.kept_otherwise`. It does not affect the output.

    Args:
        scores: (k + 1, vocabulary), those that `decide` was given.
        detokenizer: advances by the accepted tokens and the target's own.
        with_own: whether the target's own token is part of the output.
    """
    # Only rows on the path are shown; a tree has many others.
    row_after = {-1: 0} | {i: row for row, i in enumerate(verdict.path, 1)}
    decided = [i for i, decision in enumerate(verdict.decisions) if decision != "unverified"]
    judged = {i: row_after[draft.parents[i]] for i in decided}
    last = verdict.path[-1] if verdict.path else -1
    rejected = next((i for i, parent in enumerate(draft.parents) if parent == last), None)
    shown = [i + 1 for i in row_after]
    in_order = shown == list(range(len(shown)))  # a chain, and a tree's first branch
    other = Otherwise(draft, verdict, scores, sampler) if verdict.rule and draft.ids else None
    p, margins, rank, otherwise = _shown(
        scores[: len(shown)] if in_order else scores.index_select(0, to_device(shown, scores.device)),
        rows=[*judged.values(), len(verdict.path)],
        ids=[*(draft.ids[i] for i in judged), verdict.token],
        rank=None if rejected is None else draft.rank(rejected, verdict.token),
        other=other,
        sampler=sampler,
    )
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
        return drafted, None, otherwise if otherwise is None else min(otherwise, len(verdict.path))
    own = TargetToken(
        id=verdict.token,
        text=detokenizer.commit([verdict.token])[0],
        special=verdict.token in detokenizer.special_ids,
        p=p[-1],
        margin=margins[-1],
        reason="plain" if not draft.ids else "bonus" if rejected is None else "correction",
        rank=rank,
    )
    return drafted, own, otherwise


def _shown(
    scores: torch.Tensor,
    rows: Sequence[int],
    ids: Sequence[int],
    rank: torch.Tensor | None,
    other: Otherwise | None,
    sampler: Sampler,
) -> tuple[list[float], list[float | None], int | None, int | None]:
    """Reads in one transfer: the probability of each of `ids` in its row, the gap between the two highest scores of
    every row (None where only one is allowed), the rank, and how many tokens the other rule would have accepted."""
    p = whole(scores.softmax(dim=-1)) if sampler.greedy else sampler.distributions(scores)
    best = scores.topk(2, dim=-1).values
    row, id_ = to_device([list(rows), list(ids)], scores.device)
    parts = [p.spread(scores.shape[1])[row, id_], best[:, 0] - best[:, 1]]
    if other is not None:
        parts.append(other.waiting.to(best.dtype))
    if rank is not None:
        parts.append(rank[None].to(best.dtype))
    if p.complete is not None:
        parts.append(p.complete.all()[None].to(best.dtype))
    shown = torch.cat(parts).tolist()
    complete = p.complete is None or shown.pop()
    ranked = None if rank is None else int(shown.pop())
    otherwise = None
    if other is not None:
        *shown, kept, known = shown
        otherwise = int(kept) if known else other.completed()
    chances = shown[: len(ids)] if complete else sampler.completed(p, scores)[row, id_].tolist()
    gaps = [gap if gap < math.inf else None for gap in shown[len(ids) :]]
    return chances, gaps, ranked, otherwise


class Otherwise:
    """Counts the tokens of a sampled draft that the other rule would have accepted with the same random numbers: block
    or token by token for a chain, traversal or recursive rejection for a tree.

    `waiting`: (2,), on the device: the count, and whether every distribution was complete, so that the count is valid.
    """

    def __init__(self, draft: Draft, verdict: Verdict, scores: torch.Tensor, sampler: Sampler) -> None:
        self._draft, self._rule, self._draws = draft, verdict.rule, verdict.draws
        self._scores, self._sampler = scores, sampler
        self._quick = sampler.distributions(scores)
        if draft.tree is not None:  # a tree is judged token by token
            self.waiting = torch.tensor([self.completed(), 1], device=scores.device)
        else:
            kept = self._of_chain(self._quick.spread(scores.shape[1]))
            complete = self._quick.complete
            self.waiting = torch.cat([kept, kept.new_ones(1) if complete is None else complete.all()[None]])

    def completed(self) -> int:
        """Returns the count over complete distributions."""
        p = self._sampler.all_of(self._quick, self._scores)
        if self._draft.tree is None:
            return int(self._of_chain(p))
        other = tree_rules.RULES["recursive" if self._rule == "traversal" else "traversal"]
        return len(other(self._draft, p, self._draws)[0])

    def _of_chain(self, p: torch.Tensor) -> torch.Tensor:
        u = to_device(self._draws, p.device)
        if self._rule == "block":
            return chain_rules.kept_by_tokens(self._draft, p, u)
        return chain_rules.block_of(self._draft, p).kept(u)
