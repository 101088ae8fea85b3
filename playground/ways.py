"""The ways of drafting and the lookahead policies, by their names in presets, commands and traces. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """`title` names the lane, `label` the choice in a list. `weights` are the fields of a Pair that can name what it
    drafts with, the best first; none where it needs no weights. `tree`: whether it drafts several branches."""

    title: str
    label: str
    weights: tuple[str, ...] = ()
    tree: bool = False


WAYS = {
    "ngram": Way("Assisted: prompt lookup", "prompt lookup (n-gram)"),
    "assistant": Way("Assisted: assistant model", "assistant model", ("assistant",)),
    "mtp": Way("Assisted: MTP layer", "MTP layer (recursive)", ("mtp",)),
    "heads": Way("Assisted: parallel heads", "parallel heads", ("heads",)),
    "tree": Way("Assisted: draft tree", "draft tree (MTP or heads)", ("mtp", "heads"), tree=True),
    "composite": Way("Assisted: lookup, else tree", "lookup, else draft tree", ("mtp", "heads"), tree=True),
    "none": Way("Standard again", "none (standard twice)"),
}

# How many tokens to draft next; decoding/lookahead.py has them.
POLICIES = ("constant", "heuristic", "confidence")
