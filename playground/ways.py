"""The ways of drafting and the lookahead policies, by their names in presets, commands and traces. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """`title` names the lane, `label` the choice in a list. `needs` and `paper` are for people. `weights` are the
    fields of a Pair that can name what it drafts with, the best first; none where it needs no weights. `tree`: whether
    it drafts several branches. All of them leave the target's distribution as it is."""

    title: str
    label: str
    needs: str
    paper: str
    weights: tuple[str, ...] = ()
    tree: bool = False


WAYS = {
    "ngram": Way(
        "Assisted: prompt lookup",
        "prompt lookup (n-gram)",
        needs="nothing",
        paper="Saxena 2023, Prompt Lookup Decoding",
    ),
    "suffix": Way(
        "Assisted: suffix lookup",
        "suffix lookup",
        needs="nothing",
        paper="Hu et al. 2024, SAM Decoding; Oliaro et al. 2024, SuffixDecoding",
    ),
    "assistant": Way(
        "Assisted: assistant model",
        "assistant model",
        needs="a smaller model with the target's tokenizer",
        paper="Leviathan et al. 2023, Fast Inference from Transformers via Speculative Decoding",
        weights=("assistant",),
    ),
    "mtp": Way(
        "Assisted: MTP layer",
        "MTP layer (recursive)",
        needs="an MTP layer trained for the target",
        paper="DeepSeek-AI 2024, DeepSeek-V3, section 2.2",
        weights=("mtp",),
    ),
    "heads": Way(
        "Assisted: parallel heads",
        "parallel heads",
        needs="heads trained for the target",
        paper="Gloeckle et al. 2024, Better & Faster Large Language Models via Multi-token Prediction",
        weights=("heads",),
    ),
    "tree": Way(
        "Assisted: draft tree",
        "draft tree (MTP or heads)",
        needs="an MTP layer or heads trained for the target",
        paper="Li et al. 2024, EAGLE-2",
        weights=("mtp", "heads"),
        tree=True,
    ),
    "composite": Way(
        "Assisted: lookup, else tree",
        "lookup, else draft tree",
        needs="an MTP layer or heads trained for the target",
        paper="as ngram and tree",
        weights=("mtp", "heads"),
        tree=True,
    ),
    "none": Way("Standard again", "none (standard twice)", needs="nothing", paper="standard decoding"),
}

# How many tokens to draft next; decoding/lookahead.py has them.
POLICIES = ("constant", "heuristic", "confidence", "cost")
