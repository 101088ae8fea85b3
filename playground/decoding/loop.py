"""The decode loop. Standard and assisted decoding are this one generator; it yields a Round for each pass of the
target.

    drafter.propose -> target.forward -> verify -> roll both caches back to what stands

It knows neither how a drafter drafts nor who reads the rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from playground.decoding.cached import CachedModel
from playground.decoding.clock import Clock
from playground.decoding.drafters.base import Draft, Drafter
from playground.decoding.lookahead import Lookahead
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.decoding.verify import Verdict, verify
from playground.trace import DraftToken, Round, TargetToken


def decode(
    target: CachedModel,
    drafter: Drafter,
    lookahead: Lookahead,
    sampler: Sampler,
    detokenizer: Detokenizer,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    eos_ids: Collection[int],
) -> Iterator[Round]:
    """Decodes until an end-of-text token or `max_new_tokens`. The caches must be empty. Closing the generator stops it.

    The first pass is the prefill, and verifies a draft like any other where the drafter has one.
    """
    ids = list(prompt_ids)
    end = len(ids) + max_new_tokens
    clock = Clock(target.device)
    finished = False
    while not finished and len(ids) < end:
        # 1. Draft γ tokens, leaving room for the one that the target adds.
        gamma, capped, start_s = lookahead.tokens, lookahead.capped, clock()
        draft = _until_eos(drafter.propose(ids, min(gamma, end - len(ids) - 1), lookahead.stop_below), eos_ids)
        drafted_s = clock()

        # 2. Verify: one pass over what the cache lacks, which is the prompt or the last token, and the draft.
        logits = target.forward([*ids[target.length :], *draft.ids], keep=len(draft.ids) + 1, branches=draft.tree)
        verdict = verify(draft, sampler.scores(logits, partial(_text_before, ids, draft)), sampler)
        accepted = [draft.ids[i] for i in verdict.path]
        end_s = clock()

        # 3. Commit: both caches keep the text and the accepted draft, and lack the target's own token.
        target.keep_branch(len(ids), verdict.path)
        drafter.commit(len(ids) + len(accepted))
        lookahead.update(draft.depth, len(accepted), drafted_s - start_s, end_s - drafted_s)

        # 4. An end of text can only be the last token of a branch, or the target's own.
        ended_in_draft = accepted[-1:] and accepted[-1] in eos_ids
        finished = ended_in_draft or verdict.token in eos_ids
        drafted, own = _tokens(draft, verdict, None if ended_in_draft else verdict.token, detokenizer)
        ids += accepted + ([own.id] if own else [])

        yield Round(gamma, drafted, own, start_s, drafted_s - start_s, end_s - drafted_s, end_s, capped)


def _until_eos(draft: Draft, eos_ids: Collection[int]) -> Draft:
    """What a lookup finds may run past an end of text; nothing behind one can be used."""
    at = next((i for i, id_ in enumerate(draft.ids) if id_ in eos_ids), len(draft.ids) - 1)
    if draft.tree is not None or at == len(draft.ids) - 1:
        return draft
    probabilities = None if draft.probabilities is None else draft.probabilities[: at + 1]
    return replace(draft, ids=draft.ids[: at + 1], q=draft.q[: at + 1], probabilities=probabilities)


def _text_before(ids: list[int], draft: Draft, row: int) -> list[int]:
    """What row `row` of a pass's logits was computed behind: the text and, but for row 0, draft token row - 1."""
    return ids + [draft.ids[i] for i in draft.path(row - 1)]


def _tokens(
    draft: Draft, verdict: Verdict, own_id: int | None, detokenizer: Detokenizer
) -> tuple[tuple[DraftToken, ...], TargetToken | None]:
    """The round's tokens as the trace holds them; the detokenizer moves on by those that stand."""
    path, parents = verdict.path, draft.parents
    last = path[-1] if path else -1
    pieces = detokenizer.branch(draft.ids, parents, last)
    drafted = []
    for i, (id_, parent) in enumerate(zip(draft.ids, parents, strict=True)):
        drafted.append(
            DraftToken(
                id=id_,
                text=pieces[i],
                special=id_ in detokenizer.special_ids,
                q=draft.q[i],
                p=verdict.p[i],
                margin=verdict.margins[i],
                decision="accepted" if i in path else "unverified" if verdict.p[i] is None else "rejected",
                parent=None if draft.tree is None else parent,
            )
        )
    if own_id is None:
        return tuple(drafted), None
    rejected = next((i for i, parent in enumerate(parents) if parent == last), None)
    own = TargetToken(
        id=own_id,
        text=detokenizer.commit([own_id])[0],
        special=own_id in detokenizer.special_ids,
        p=verdict.token_p,
        margin=verdict.token_margin,
        reason="plain" if not draft.ids else "bonus" if rejected is None else "correction",
        rank=None if rejected is None else draft.rank(rejected, own_id),
    )
    return tuple(drafted), own
