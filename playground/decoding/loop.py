"""The decode loop: open this file first. Standard and assisted decoding are this one generator, one Round a step.

A round, in the letters of Leviathan et al. 2023, algorithm 1:

    1. draft      the drafter proposes x_1 … x_γ, from its distributions q_1 … q_γ
    2. verify     one pass of the target gives p_1 … p_γ+1; a prefix of the draft (of a tree, one branch) is accepted,
                  and the target adds one token of its own
    3. commit     both caches roll back to what was accepted
    4. annotate   p, margins and text are worked out, for the trace alone

The clock is read after each step, and stands still from the end of the third until the next round begins: the times are
those of decoding, without the cost of annotation or of whatever else the process does between two rounds, such as the
rounds of another lane. The loop knows neither how a drafter drafts nor what happens to the rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from functools import partial

from playground.decoding.clock import Clock
from playground.decoding.drafters.base import Draft, Drafter
from playground.decoding.grammar import Grammar
from playground.decoding.lookahead import Lookahead
from playground.decoding.runners.base import Runner
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer, StopStrings
from playground.decoding.verify import Rule, annotate, decide
from playground.trace import Round


def decode(
    target: Runner,
    drafter: Drafter,
    lookahead: Lookahead,
    sampler: Sampler,
    detokenizer: Detokenizer,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    eos_ids: Collection[int],
    rule: Rule = decide,
    seam: int = sys.maxsize,
    grammar: Grammar | None = None,
    stops: StopStrings | None = None,
) -> Iterator[Round]:
    """Decodes until an end-of-text token, a stop string or `max_new_tokens`. The caches are empty, or hold tokens that
    the prompt begins with. Closing the generator stops it.

    The first pass is the prefill; it also verifies a draft if the drafter has one.

    Args:
        seam: a length in tokens that no pass with a draft may cross; see `runners.eager.seam`.
        rule: the verification rule.
        grammar: the answer's grammar, at its start; everything is allowed without one.
        stops: the stop strings, at the start of the answer; the token that completes one is the last.

    Raises:
        PlaygroundError: the target's logits contain NaN, or the grammar cannot be followed.
    """
    grammar = grammar or Grammar()
    ids = list(prompt_ids)
    end = len(ids) + max_new_tokens
    clock = Clock(target.device)
    paused_s = clock()  # what the clock shows while it stands still
    finished = False
    while not finished and len(ids) < end:
        target.prepare()
        drafter.prepare()
        sampler.prepare()
        clock.back_to(paused_s)
        start_s, passes = clock(), target.passes

        # 1. Draft at most γ tokens, leaving room for the one that the target adds. A recurrent target drafts nothing
        # before its prefill: a rejection would feed it the prompt again.
        gamma, capped = lookahead.tokens, lookahead.capped
        limit = end - 1 if len(ids) > seam else min(end - 1, seam)
        room = 0 if target.recurrent and not target.length else limit - len(ids)
        draft = _until_eos(drafter.propose(ids, min(gamma, room), lookahead.stop_below, sampler), eos_ids)
        draft = lookahead.worth(draft)
        drafted_s = clock()

        # 2. Verify: one pass over the tokens that the cache lacks (the prompt or the last token) and the draft, as far
        # as the grammar allows it. Tokens that the grammar refuses have p = 0.
        draft = grammar.limited(draft)
        logits = target.forward([*ids[target.length :], *draft.ids], keep=len(draft.ids) + 1, tree=draft.tree)
        scores = grammar.masked(sampler.scores(logits, partial(_context, ids, draft)), logits)
        try:
            verdict = rule(draft, scores, sampler, len(ids))
        except FloatingPointError:
            raise target.not_numbers() from None
        # The round's tokens are the accepted ones and the target's, or those up to the end of the answer.
        chosen = [*(draft.ids[i] for i in verdict.path), verdict.token]
        new = _through_eos(chosen, eos_ids)
        new = stops.cut(new) if stops else new
        finished = new[-1] in eos_ids or (stops is not None and stops.end is not None)
        inside = len(new) < len(chosen)  # the answer ends in the draft
        verdict = verdict.ended(draft, len(new)) if inside else verdict
        end_s = clock()

        # 3. Commit the accepted tokens x_1 … x_n. The target's own token is fed with the next round.
        target.commit(len(ids), verdict.path)
        drafter.commit(len(ids) + len(verdict.path))
        grammar.commit(new)
        committed_s = clock()
        lookahead.update(draft, verdict.path, drafted_s - start_s, committed_s - drafted_s)

        # 4. Annotate.
        paused_s = clock()
        drafted, added, other_rule = annotate(draft, verdict, scores, sampler, detokenizer, with_own=not inside)
        ids += new

        yield Round(
            lookahead=gamma,
            drafted=drafted,
            target=added,
            start_s=start_s,
            draft_s=drafted_s - start_s,
            verify_s=end_s - drafted_s,
            end_s=end_s,
            capped=capped,
            passes=target.passes - passes,
            commit_s=committed_s - end_s,
            other_rule=other_rule,
            annotate_s=clock() - paused_s,
            mask_s=grammar.seconds,
            past_context=draft.past_context,
        )


def _through_eos(ids: list[int], eos_ids: Collection[int]) -> list[int]:
    """Returns the tokens up to and including the first end of text."""
    return ids[: next((n for n, id_ in enumerate(ids, 1) if id_ in eos_ids), len(ids))]


def _until_eos(draft: Draft, eos_ids: Collection[int]) -> Draft:
    """Cuts a chain after its first end of text, which a lookup may draft past."""
    at = next((i for i, id_ in enumerate(draft.ids) if id_ in eos_ids), len(draft.ids) - 1)
    if draft.tree is not None or at == len(draft.ids) - 1:
        return draft
    return draft.only(range(at + 1))


def _context(ids: list[int], draft: Draft, row: int) -> list[int]:
    """Returns the text before row `row` of a pass's logits: `ids`, then the branch that ends in draft token row - 1."""
    return ids + [draft.ids[i] for i in draft.path(row - 1)]
