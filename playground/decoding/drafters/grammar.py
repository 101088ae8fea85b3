"""Drafts what the request's grammar forces: where it leaves one way to go on, such as the names of a JSON object, the
tokens need no model.

They are drafted as the tokenizer writes the text. The target may write the same text in other tokens, so they are
verified as any draft. Every other drafter drafts where nothing is forced. It does not go on after forced tokens: most
of them read hidden states, which the target has for those tokens only once it has verified them.
"""

from __future__ import annotations

from collections.abc import Sequence

from playground.decoding.drafters.base import NOTHING, Draft, Drafter, NoDrafter
from playground.decoding.drafters.build import Setup
from playground.decoding.drafters.composite import CompositeDrafter
from playground.decoding.grammar import Free, Grammar
from playground.decoding.sampling import Sampler


class GrammarDrafter(Drafter):
    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        forced = self._grammar.forced()[: max(k, 0)]
        return Draft(forced, [1.0] * len(forced), forced=len(forced)) if forced else NOTHING

    def commit(self, length: int) -> None:
        pass  # the loop moves the grammar on

    def rewind(self, length: int) -> int:
        return length


def after_forced(grammar: Grammar, drafter: Drafter) -> Drafter:
    """What drafts for one answer: the grammar, and the drafter where the grammar forces nothing."""
    return drafter if isinstance(grammar, Free) else CompositeDrafter(GrammarDrafter(grammar), drafter)


def build(setup: Setup) -> NoDrafter:
    """The method drafts nothing but what `after_forced` adds."""
    return NoDrafter()
