"""The ways of drafting, by their names in presets, commands and traces. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HELP = Path(__file__).resolve().parent.parent / "assets" / "help"


@dataclass(frozen=True)
class DraftingMethod:
    """`title` names the lane, `label` the choice in a list. `needs` and `paper` are for people. `weights` are the
    fields of a Pair that can name what it drafts with, the best first; none where it needs no weights. `tree`: whether
    it drafts several branches. All of them leave the target's distribution as it is."""

    title: str
    label: str
    needs: str
    paper: str
    weights: tuple[str, ...] = ()
    tree: bool = False


BRANCHING = ("mtp", "eagle3", "dflash", "gemma4", "heads", "medusa")  # of which a tree can be grown

METHODS = {
    "ngram": DraftingMethod(
        "Assisted: prompt lookup",
        "prompt lookup (n-gram)",
        needs="nothing",
        paper="Saxena 2023, Prompt Lookup Decoding",
    ),
    "suffix": DraftingMethod(
        "Assisted: suffix lookup",
        "suffix lookup",
        needs="nothing",
        paper="Hu et al. 2024, SAM Decoding; Oliaro et al. 2024, SuffixDecoding",
    ),
    "assistant": DraftingMethod(
        "Assisted: assistant model",
        "assistant model",
        needs="a smaller model with the target's tokenizer",
        paper="Leviathan et al. 2023, Fast Inference from Transformers via Speculative Decoding",
        weights=("assistant",),
    ),
    "universal": DraftingMethod(
        "Assisted: another tokenizer",
        "assistant with another tokenizer",
        needs="a smaller model with any tokenizer",
        paper="Timor et al. 2025, Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for "
        "Heterogeneous Vocabularies",
        weights=("universal",),
    ),
    "early-exit": DraftingMethod(
        "Assisted: early exit",
        "early exit (the first layers)",
        needs="a target trained for it, and the layer to leave by",
        paper="Elhoushi et al. 2024, LayerSkip",
        weights=("early_exit",),
    ),
    "gemma4": DraftingMethod(
        "Assisted: Gemma 4 assistant",
        "Gemma 4 assistant",
        needs="a Gemma 4 target and the assistant made for it",
        paper="Gemma Team 2026, Gemma 4 Technical Report",
        weights=("gemma4",),
    ),
    "mtp": DraftingMethod(
        "Assisted: MTP layer",
        "MTP layer (recursive)",
        needs="an MTP layer trained for the target, or the target's own",
        paper="DeepSeek-AI 2024, DeepSeek-V3, section 2.2",
        weights=("mtp",),
    ),
    "heads": DraftingMethod(
        "Assisted: parallel heads",
        "parallel heads",
        needs="heads trained for the target",
        paper="Gloeckle et al. 2024, Better & Faster Large Language Models via Multi-token Prediction",
        weights=("heads",),
    ),
    "medusa": DraftingMethod(
        "Assisted: Medusa heads",
        "Medusa heads",
        needs="Medusa heads published for the target",
        paper="Cai et al. 2024, Medusa",
        weights=("medusa",),
    ),
    "dflash": DraftingMethod(
        "Assisted: DFlash",
        "DFlash (block diffusion)",
        needs="a DFlash drafter published for the target",
        paper="Chen et al. 2026, DFlash: Block Diffusion for Flash Speculative Decoding",
        weights=("dflash",),
    ),
    "eagle3": DraftingMethod(
        "Assisted: EAGLE-3",
        "EAGLE-3 head",
        needs="an EAGLE-3 head published for the target",
        paper="Li et al. 2025, EAGLE-3",
        weights=("eagle3",),
    ),
    "tree": DraftingMethod(
        "Assisted: draft tree",
        "draft tree",
        needs="what drafts for the target from its hidden states: an MTP layer, heads, a Gemma 4 "
        "assistant, EAGLE-3, DFlash",
        paper="Li et al. 2024, EAGLE-2; over DFlash: DDTree",
        weights=BRANCHING,
        tree=True,
    ),
    "composite": DraftingMethod(
        "Assisted: lookup, else tree",
        "lookup, else draft tree",
        needs="as tree",
        paper="as ngram and tree",
        weights=BRANCHING,
        tree=True,
    ),
    "adaptive": DraftingMethod(
        "Assisted: lookup or tree",
        "lookup or draft tree, by measured speed",
        needs="as tree",
        paper="as ngram and tree",
        weights=BRANCHING,
        tree=True,
    ),
    "none": DraftingMethod("Standard again", "none (standard twice)", needs="nothing", paper="standard decoding"),
}


TARGETS = "targets"  # a page of help on what the ways of drafting work with


def help_for(name: str) -> str:
    """The page of help on a way of drafting, or TARGETS, as Markdown."""
    return (HELP / f"{name}.md").read_text(encoding="utf-8")
