"""The ways of drafting and the lookahead policies, by their names in presets, commands and traces. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """`title` names the lane, `label` the choice in a list. `weights` is the field of a Pair that names what it drafts
    with; None where it needs no weights."""

    title: str
    label: str
    weights: str | None = None


WAYS = {
    "ngram": Way("Assisted: prompt lookup", "prompt lookup (n-gram)"),
    "assistant": Way("Assisted: assistant model", "assistant model", "assistant"),
    "mtp": Way("Assisted: MTP layer", "MTP layer (recursive)", "mtp"),
    "heads": Way("Assisted: parallel heads", "parallel heads", "heads"),
    "composite": Way("Assisted: lookup, else MTP", "lookup, else MTP layer", "mtp"),
    "none": Way("Standard again", "none (standard twice)"),
}

# How many tokens to draft next; decoding/lookahead.py has them.
POLICIES = ("constant", "heuristic", "confidence")
