"""From a lane to its drafter: which class drafts, and with what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from playground.decoding.drafters.adaptive import AdaptiveDrafter
from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.base import Drafter, NoDrafter
from playground.decoding.drafters.branches import Branches, ChainDrafter
from playground.decoding.drafters.composite import CompositeDrafter
from playground.decoding.drafters.dflash import DFlashBranches
from playground.decoding.drafters.eagle3 import Eagle3Branches
from playground.decoding.drafters.early_exit import EarlyExitDrafter
from playground.decoding.drafters.gemma4 import Gemma4Branches
from playground.decoding.drafters.heads import HeadsBranches
from playground.decoding.drafters.hidden import DraftChoice
from playground.decoding.drafters.medusa import MedusaBranches
from playground.decoding.drafters.mtp import MtpBranches, TrainedBranches
from playground.decoding.drafters.native_mtp import NativeBranches
from playground.decoding.drafters.ngram import NgramDrafter
from playground.decoding.drafters.suffix import SuffixDrafter
from playground.decoding.drafters.tree import TreeDrafter
from playground.decoding.drafters.universal import UniversalDrafter
from playground.decoding.pass_cost import PassCost, time_passes
from playground.decoding.runners.base import Runner
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.sampling import Sampler
from playground.errors import PlaygroundError
from playground.lane import Lane
from playground.models.networks.dflash import DFlash
from playground.models.networks.eagle3 import Eagle3Head
from playground.models.networks.gemma4 import Gemma4Assistant
from playground.models.networks.heads import ParallelHeads
from playground.models.networks.medusa import MedusaHeads
from playground.models.networks.mtp import MtpLayer
from playground.models.networks.native_mtp import NativeLayer, NativeLayers
from playground.models.store import LoadedPair

SURE_NGRAMS = (4, 2)  # longest and shortest n-gram that prompt lookup goes by where a trained drafter is at hand

# What grows drafts with a network that reads the target's hidden states; each takes the kind of network it stands at.
BRANCHES: dict[type[nn.Module], Callable[[Any, Runner], Branches]] = {
    MtpLayer: TrainedBranches,
    NativeLayer: MtpBranches,
    NativeLayers: NativeBranches,
    ParallelHeads: HeadsBranches,
    MedusaHeads: MedusaBranches,
    DFlash: DFlashBranches,
    Eagle3Head: Eagle3Branches,
    Gemma4Assistant: Gemma4Branches,
}


def build_drafter(models: LoadedPair, lane: Lane, target: Runner, sampler: Sampler) -> Drafter:
    """The drafter of a lane, for one run.

    Raises:
        PlaygroundError: the target cannot be drafted for in this way.
    """
    ends = models.target.eos_ids
    match lane.drafter:
        case "none":
            return NoDrafter()
        case "ngram":
            return NgramDrafter()
        case "suffix":
            return SuffixDrafter()
        case "assistant":
            return AssistantDrafter(EagerRunner(models.drafting.model), target.vocab_size, sampler, ends)
        case "universal":
            _refuse_recurrent(EagerRunner(models.drafting.model), models.drafting.name)
            return UniversalDrafter(models.drafting, models.target.tokenizer)
        case "early-exit":
            _refuse_recurrent(target, models.target.name)
            return EarlyExitDrafter(models.drafting.model, target, sampler, ends)
        case "tree":
            return _tree(models, lane, target)
        case "composite":
            return CompositeDrafter(NgramDrafter(*SURE_NGRAMS), _tree(models, lane, target))
        case "adaptive":
            return AdaptiveDrafter(NgramDrafter(*SURE_NGRAMS), _tree(models, lane, target))
    branches = _branches(models, target)
    return ChainDrafter(branches, DraftChoice(target.vocab_size, sampler), ends)


def _tree(models: LoadedPair, lane: Lane, target: Runner) -> TreeDrafter:
    if type(models.drafting.network) is NativeLayers:
        raise PlaygroundError(
            f"{models.target.name} drafts with several MTP layers of its own, each of which drafts one place, and no "
            "trees are grown over them. Choose the drafter mtp, which drafts a chain."
        )
    _refuse_recurrent(target, models.target.name)
    if not target.takes_trees:
        raise PlaygroundError(
            f"{models.target.name} has attention layers in which the branches of a draft tree cannot be kept apart: "
            "chunked attention, as in Llama 4, or attention to selected tokens. Choose a drafter that drafts a chain, "
            "such as mtp or ngram."
        )
    if not models.target.pass_times:
        models.target.pass_times = time_passes(models.target.model)
    cost = PassCost(models.target.pass_times)
    return TreeDrafter(_branches(models, target), lane.nodes, models.target.eos_ids, lane.lookahead, cost)


def _branches(models: LoadedPair, target: Runner) -> Branches:
    network = models.drafting.network
    return BRANCHES[type(network)](network, target)


def _refuse_recurrent(model: Runner, name: str) -> None:
    if model.recurrent:
        raise PlaygroundError(
            f"{name} has recurrent layers, which cannot drop rejected tokens or the other branches of a draft tree. "
            "Choose another way of drafting."
        )
