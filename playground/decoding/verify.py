"""Verification: which draft tokens are accepted and which token the target adds (`decide`), then what the trace says
about them (`annotate`).

The target chooses as it would alone, by argmax or by sampling from its distribution p, and while its choice was drafted
it goes on from there. That is exact. What is sampled depends on the seed and on the position in the text: so all rows
are sampled at once, and under one seed the text is the same whatever was drafted.

Where the draft was itself sampled, from a distribution q, speculative sampling (Leviathan et al. 2023, "Fast Inference
from Transformers via Speculative Decoding", algorithm 1) accepts more and leaves p unchanged as well: draft token x is
accepted with probability min(1, p(x) / q(x)), and the first rejected one is replaced by a sample from
norm(max(0, p - q)). For draft tokens that were chosen (argmax, lookup) q is one-hot. Then, and where a tree's
alternatives are rejected one after the other (Miao et al. 2024, SpecInfer), it accepts as many as the first rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

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
        draws: the uniform numbers that decided, one for each verified token of a chain; empty for other rules.
    """

    path: list[int]
    token: int
    decisions: list[Decision]
    draws: Sequence[float] = ()


Rule = Callable[[Draft, torch.Tensor, Sampler, int], Verdict]  # as `decide`


def decide(draft: Draft, scores: torch.Tensor, sampler: Sampler, length: int) -> Verdict:
    """Accepts draft tokens and chooses the target's own.

    Args:
        scores: the target's, (k + 1, vocabulary). Row 0 follows the text, row i + 1 follows draft token i.
        length: tokens of the text.

    Raises:
        FloatingPointError: scores are not numbers.
    """
    draws: Sequence[float] = ()
    if sampler.greedy:
        best = scores.argmax(dim=-1)
        choices = read_choices(best, scores.gather(-1, best[:, None]))
        path, token = follow(draft, choices.__getitem__)
    elif draft.probabilities is None:
        path, token = follow(draft, sampler.choices(scores, [length + depth for depth in draft.depths]))
    else:
        quick = sampler.distributions(scores)
        sampled = speculative_sampling(draft, quick.spread(scores.shape[1]), sampler, quick.complete)
        if sampled is None:
            sampled = speculative_sampling(draft, sampler.completed(quick, scores), sampler)
            assert sampled, "these are complete"
        n, token, draws = sampled
        path = list(range(n))
    return Verdict(path, token, decisions(draft, path), draws)


def follow(draft: Draft, choose: Callable[[int], int]) -> tuple[list[int], int]:
    """Follows the draft for as long as it contains the target's choice.

    Args:
        choose: the target's choice in row i of its scores, as in `decide`. Asked once for each row on the path.

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


def speculative_sampling(
    draft: Draft, p: torch.Tensor, sampler: Sampler, complete: torch.Tensor | None = None
) -> tuple[int, int, list[float]] | None:
    """Accepts a prefix of a chain of sampled tokens, and samples the token that follows it.

    Args:
        p: (k + 1, vocabulary), the target's distributions.
        complete: (k + 1,), which of them are; None if all are.

    Returns:
        The number of accepted draft tokens n, the target's token, and the uniform numbers that decided, at most n + 1.
        None if a distribution is not complete.

    Raises:
        FloatingPointError: p is not numbers.
    """
    assert draft.probabilities is not None, "the draft was sampled"
    k = len(draft.ids)
    q = torch.nn.functional.pad(draft.probabilities, (0, 0, 0, 1))  # nothing was drafted in the last row
    ids = to_device(draft.ids, p.device)[:, None]
    u = torch.rand(k, generator=sampler.generator, device=p.device)
    accepted = u * q[:k].gather(1, ids)[:, 0] < p[:k].gather(1, ids)[:, 0]
    n = accepted.long().cumprod(0).sum()[None]
    p_n, q_n = p.index_select(0, n), q.index_select(0, n)
    residual = (p_n - q_n).clamp(min=0)
    # Where p and q are equal up to rounding, a rejection can leave nothing over; p itself is then the right choice.
    chosen = sampler.choose(whole(torch.where(residual.sum() > 0, residual, p_n)))
    found = n.new_ones(1) if complete is None else complete.all()[None]
    outcome = torch.cat([n, chosen, p_n.isnan().any()[None], found]).float()  # on the device till here
    count, token, damaged, known, *decided = torch.cat([outcome, u.float()]).tolist()
    if damaged:
        raise FloatingPointError
    return (int(count), int(token), decided[: int(count) + 1]) if known else None


def decisions(draft: Draft, path: Sequence[int]) -> list[Decision]:
    """One for each draft token. A token whose parent was accepted was compared with the target's choice; after a
    rejection none is."""
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
) -> tuple[tuple[DraftToken, ...], TargetToken | None]:
    """The round's tokens as the trace holds them. Decodes nothing: it may be left out without changing the output.

    Args:
        scores: as `decide` was given them.
        detokenizer: moves on by the accepted tokens and the target's own.
        with_own: whether the target's own token is part of the output.
    """
    # Only rows on the path are shown; a tree has many others.
    row_after = {-1: 0} | {i: row for row, i in enumerate(verdict.path, 1)}
    judged = {i: row_after[parent] for i, parent in enumerate(draft.parents) if parent in row_after}
    last = verdict.path[-1] if verdict.path else -1
    rejected = next((i for i, parent in enumerate(draft.parents) if parent == last), None)
    shown = [i + 1 for i in row_after]
    in_order = shown == list(range(len(shown)))  # a chain, and a tree's first branch
    p, margins, rank = _shown(
        scores[: len(shown)] if in_order else scores.index_select(0, to_device(shown, scores.device)),
        rows=[*judged.values(), len(verdict.path)],
        ids=[*(draft.ids[i] for i in judged), verdict.token],
        rank=None if rejected is None else draft.rank(rejected, verdict.token),
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
            draw=verdict.draws[i] if i < len(verdict.draws) else None,
            confidence=None if draft.confidences is None else draft.confidences[i],
            forced=i < draft.forced,
        )
        for i, id_ in enumerate(draft.ids)
    )
    if not with_own:
        return drafted, None
    own = TargetToken(
        id=verdict.token,
        text=detokenizer.commit([verdict.token])[0],
        special=verdict.token in detokenizer.special_ids,
        p=p[-1],
        margin=margins[-1],
        reason="plain" if not draft.ids else "bonus" if rejected is None else "correction",
        rank=rank,
    )
    return drafted, own


def _shown(
    scores: torch.Tensor, rows: Sequence[int], ids: Sequence[int], rank: torch.Tensor | None, sampler: Sampler
) -> tuple[list[float], list[float | None], int | None]:
    """The probability of each of `ids` in its row, the gap between the two highest scores of every row (None where only
    one is allowed), and the rank; read in one transfer."""
    p = whole(scores.softmax(dim=-1)) if sampler.greedy else sampler.distributions(scores)
    best = scores.topk(2, dim=-1).values
    row, id_ = to_device([list(rows), list(ids)], scores.device)
    parts = [p.spread(scores.shape[1])[row, id_], best[:, 0] - best[:, 1]]
    if rank is not None:
        parts.append(rank[None].to(best.dtype))
    if p.complete is not None:
        parts.append(p.complete.all()[None].to(best.dtype))
    shown = torch.cat(parts).tolist()
    complete = p.complete is None or shown.pop()
    ranked = None if rank is None else int(shown.pop())
    chances = shown[: len(ids)] if complete else sampler.completed(p, scores)[row, id_].tolist()
    return chances, [gap if gap < math.inf else None for gap in shown[len(ids) :]], ranked
