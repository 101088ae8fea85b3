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


class GrammarDrafter(Drafter):
    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    def propose(self, ids: Sequence[int], k: int, stop_below: float) -> Draft:
        forced = self._grammar.forced()[: max(k, 0)]
        return Draft(forced, [1.0] * len(forced), forced=len(forced)) if forced else NOTHING

    def commit(self, length: int) -> None:
        pass  # the loop moves the grammar on

    def rewind(self, length: int) -> int:
        return length


def after_forced(grammar: Grammar, drafter: Drafter) -> Drafter:
    """The drafter, which drafts where the grammar forces nothing. Standard decoding stays as it is."""
    if isinstance(grammar, Free) or isinstance(drafter, NoDrafter | GrammarDrafter):
        return drafter
    return CompositeDrafter(GrammarDrafter(grammar), drafter)


def build(setup: Setup) -> GrammarDrafter:
    return GrammarDrafter(setup.grammar)
