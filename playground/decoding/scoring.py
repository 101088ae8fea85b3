"""Scores a finished text by the target, without drafts, trees or roll-backs, so that a fault in any of them shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from playground.decoding.drafters.base import NOTHING, Draft
from playground.decoding.grammar import Grammar
from playground.decoding.runners.base import Runner
from playground.decoding.sampling import Sampler
from playground.metrics.lossless import RANKS, NearTie, Placed

CHUNK = 128  # tokens a pass: the logits of a long answer need not fit into memory at once


def placed(
    target: Runner,
    sampler: Sampler,
    prompt: Sequence[int],
    answer: Sequence[int],
    drafted: Sequence[Sequence[int]],
    grammar: Grammar | None = None,
) -> list[Placed]:
    """Places each token of the answer in the distribution that it should have been sampled from. `drafted`: for each,
    the ids that were drafted in its place. `grammar`: the answer's grammar, at its start."""
    grammar = grammar or Grammar()
    places = []
    for at, scores, logits in _rows(target, sampler, prompt, answer):
        ids = [*answer[at : at + len(scores)]]
        grammar.limited(Draft(ids[:-1], [1.0] * (len(ids) - 1)))  # the grammar allows all of them
        p = sampler.probabilities(grammar.masked(scores, logits))
        grammar.commit(ids)
        found = _placed(p, ids, drafted[at : at + len(ids)])
        others = [row for row, id_ in enumerate(ids) if drafted[at + row] and id_ not in drafted[at + row]]
        left = p[others]
        for row, place in zip(left, others, strict=True):
            row[list(drafted[at + place])] = 0
        left /= left.sum(-1, keepdim=True).clamp_min(torch.finfo(left.dtype).tiny)
        for place, it in zip(others, _placed(left, [ids[row] for row in others], [()] * len(others)), strict=True):
            found[place] = replace(found[place], left=it)
        places += found
    return places


def _placed(p: torch.Tensor, ids: Sequence[int], drafted: Sequence[Sequence[int]]) -> list[Placed]:
    """Places a token in each row of p."""
    best = p.topk(min(RANKS[-1], p.shape[1]), dim=-1)
    found = []
    for row, (chances, likeliest) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
        index = likeliest.index(ids[row]) if ids[row] in likeliest else RANKS[-1]
        found.append(Placed.of(chances, index, p[row, list(drafted[row])].tolist()))
    return found


def near_tie(
    runners: tuple[Runner, Runner],
    dtype: torch.dtype,
    sampler: Sampler,
    prompt: Sequence[int],
    answer: Sequence[int],
    other: int,
    grammar: Grammar | None = None,
    elsewhere: Mapping[int, float] | None = None,
) -> NearTie:
    """Compares the last token of the answer, which standard decoding chose, with another one.

    Args:
        runners: two runners of the target, with empty caches. The first reads the answer as standard decoding does, the
            second in one pass: they differ by rounding alone.
        dtype: the model's dtype.
        grammar: the answer's grammar, at its start.
        elsewhere: the log-probabilities that another program, which decoded, gives the likeliest tokens here. Its
            arithmetic then counts as rounding.
    """
    grammar = grammar or Grammar()
    one_by_one, at_once = runners
    for end in range(len(answer)):
        ids = [*prompt, *answer[:end]]
        logits = one_by_one.forward(ids[one_by_one.length :], keep=1)
        one_by_one.commit(len(ids))
    wide = at_once.forward(ids, keep=1)
    scores = sampler.scores(logits, lambda row: ids)
    narrow, wide = scores[0].double(), sampler.scores(wide, lambda row: ids)[0].double()
    apart = (narrow - wide)[narrow.isfinite()]
    grammar.commit(answer[:-1])
    grammar.limited(NOTHING)
    allowed = grammar.masked(scores, logits)[0].double()
    ulp = torch.finfo(dtype).eps * 2 ** math.floor(math.log2(abs(float(allowed[answer[-1]])) or 1))
    spreads = [float((apart - apart.mean()).square().mean().sqrt()), ulp / 12**0.5]
    if elsewhere:
        apart = narrow[[*elsewhere]] - narrow.new_tensor([*elsewhere.values()])
        spreads.append(float((apart - apart.mean()).square().mean().sqrt()))
    return NearTie(
        chosen=float(allowed[answer[-1]]),
        other=float(narrow[other]),
        rank=int((allowed > narrow[other]).sum()) + 1,
        rounding=max(spreads),
    )


def _rows(
    target: Runner, sampler: Sampler, prompt: Sequence[int], answer: Sequence[int]
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Yields, for each chunk of the answer, the index of its first token, the (tokens, vocabulary) scores for its
    tokens, and the logits that the scores were made from."""
    text = [*prompt, *answer]
    for start in range(0, len(answer), CHUNK):
        first = len(prompt) + start  # the place of the first token that is scored
        end = min(first + CHUNK, len(text)) - 1
        logits = target.forward(text[target.length : end], keep=end + 1 - first)
        target.commit(end)
        yield start, sampler.scores(logits, partial(_before, text, first)), logits


def _before(text: Sequence[int], first: int, row: int) -> Sequence[int]:
    return text[: first + row]
