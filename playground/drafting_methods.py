"""The drafting methods, one registration each: those of this package, and those that others add over entry points.

Presets, commands and traces use their names. Loaders and builders are named, not imported, so that importing this
module never imports torch. docs/add-a-drafter.md shows how to add one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from typing import Any, Literal

from playground import ROOT
from playground.errors import PlaygroundError, check
from playground.plugins import load_plugins

HELP = ROOT / "assets" / "help"
TARGETS = "targets"  # the help page on which targets work with which methods
DRAFTERS = "playground.decoding.drafters"
NETWORKS = "playground.models.networks"
CHAIN = f"{DRAFTERS}.branches:build_chain"
MATCHED = 3, 1  # tokens of the longest and of the shortest match of prompt lookup
TREES = "Trees: several guesses a position"
GROUPS = (  # of the methods in menus, in order
    "No weights",
    "A smaller model",
    "A network on the target's hidden states",
    TREES,
    "No drafter",
)


@dataclass(frozen=True)
class DraftingMethod:
    """A drafting method. All of them leave the target's distribution unchanged.

    References have the form "package.module:name", as `pkgutil.resolve_name` reads them.

    Attributes:
        name: in presets, commands and traces.
        label: its name in lists of choices and tables, and of its lane.
        does: what it is, in a few words that follow its label in menus.
        needs: its requirements, for people.
        paper: its source.
        builder: a reference to `build(setup: Setup) -> Drafter`; `Setup` is in decoding/drafters/build.py.
        weights: what a preset's `weights` names for it: a "model" of its own, a "network" that reads the target's
            hidden states, or a number of the target's "layers"; None where it needs nothing.
        loader: of a network, a reference to `load(name, target, progress) -> LoadedDrafter`; of layers, one to
            `load(target, number) -> LoadedModel`. A model is loaded as the target is.
        check: of a model, a reference to `check(target, model)`, which raises where the two do not fit together.
        branches: of a network, a reference to `branches(network, target) -> Branches`, which grows both chains and
            trees with it; of a model that can do so, one to `branches(setup) -> Branches`.
        tree: whether it drafts a tree; without `weights` of its own, with those of any method that has `branches`.
        parallel: whether one pass of its network gives a whole draft.
        published: how a folder of its weights is recognised: for keys of config.json, a pattern found in the value.
        part: where another method's weights are published under the same config, a pattern found in the name of a
            tensor that only this one's have.
        help: its help page as Markdown; "" for assets/help/<name>.md, where this package has its own.
        package: the package that added it over an entry point; "" for this one. It is set when it is added.
    """

    name: str
    label: str
    needs: str
    paper: str
    builder: str
    weights: Literal["model", "network", "layers"] | None = None
    loader: str = ""
    check: str = ""
    branches: str = ""
    tree: bool = False
    parallel: bool = False
    published: Mapping[str, str] = field(default_factory=dict)
    part: str = ""
    help: str = ""
    package: str = ""
    does: str = ""

    @property
    def described(self) -> str:
        """The label, and what it is, for menus."""
        return f"{self.label}: {self.does}" if self.does else self.label

    @property
    def group(self) -> str:
        """Its heading in menus, one of GROUPS."""
        if self.name == "none":
            return GROUPS[-1]
        return TREES if self.tree else GROUPS[{None: 0, "model": 1, "layers": 1, "network": 2}[self.weights]]

    @property
    def drafts_with(self) -> tuple[str, ...]:
        """The methods whose weights it can use, the best first; none where it needs no weights."""
        if self.tree and not self.weights:
            return tuple(method.name for method in _methods().values() if method.branches)
        return (self.name,) if self.weights else ()

    def resolve(self, reference: str) -> Any:
        """Import and return what one of the references names.

        Raises:
            PlaygroundError: the code of another package cannot be imported.
        """
        try:
            return resolve_name(reference)
        except (ImportError, AttributeError, ValueError) as error:
            if not self.package:
                raise
            raise PlaygroundError(
                f"{self.label} comes from the package {self.package}, and its {reference} cannot be imported: {error}. "
                "Update the package, or choose another drafter."
            ) from error

    def recognises(self, config: Mapping[str, Any], tensors: Collection[str]) -> bool:
        """Return True if a folder with this config.json and tensors of these names can hold weights for this method."""
        named = any(key in config and re.search(mark, str(config[key])) for key, mark in self.published.items())
        return named and (not self.part or any(re.search(self.part, name) for name in tensors))


def _network(name: str, label: str, needs: str, paper: str, loader: str, branches: str, **more: Any) -> DraftingMethod:
    """Make the method of a network that drafts chains. `loader`, `branches`: in NETWORKS and DRAFTERS."""
    loader, branches = f"{NETWORKS}.{loader}", f"{DRAFTERS}.{branches}"
    return DraftingMethod(name, label, needs, paper, CHAIN, "network", loader, branches=branches, **more)


ALL = (
    DraftingMethod(
        "ngram",
        label="Prompt lookup",
        does="copies what followed the same words",
        needs="nothing",
        paper="Saxena 2023, Prompt Lookup Decoding",
        builder=f"{DRAFTERS}.lookup:build",
    ),
    DraftingMethod(
        "suffix",
        label="Suffix lookup",
        does="copies what followed the longest repeat",
        needs="nothing",
        paper="Hu et al. 2024, SAM Decoding; Oliaro et al. 2024, SuffixDecoding",
        builder=f"{DRAFTERS}.lookup:build_suffix",
    ),
    DraftingMethod(
        "grammar",
        label="Grammar",
        does="tokens that a schema dictates",
        needs="a request with a JSON schema, a regular expression or a grammar",
        paper="Beurer-Kellner et al. 2024, Guiding LLMs the Right Way (DOMINO); here by llguidance",
        builder=f"{DRAFTERS}.base:build_none",
    ),
    DraftingMethod(
        "assistant",
        label="Assistant model",
        does="a smaller model of the same family",
        needs="a smaller model with the target's tokenizer",
        paper="Leviathan et al. 2023, Fast Inference from Transformers via Speculative Decoding",
        builder=f"{DRAFTERS}.assistant:build",
        weights="model",
        check="playground.models.networks.made_for:check_same_tokenizer",
    ),
    DraftingMethod(
        "universal",
        label="Assistant, other tokenizer",
        does="any model, through its text",
        needs="a smaller model with any tokenizer",
        paper="Timor et al. 2025, Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for "
        "Heterogeneous Vocabularies",
        builder=f"{DRAFTERS}.universal:build",
        weights="model",
    ),
    DraftingMethod(
        "early-exit",
        label="Early exit",
        does="the target's own first layers",
        needs="a target trained for it, and the layer to leave by",
        paper="Elhoushi et al. 2024, LayerSkip",
        builder=f"{DRAFTERS}.assistant:build_early_exit",
        weights="layers",
        loader=f"{NETWORKS}.early_exit:first_layers",
    ),
    _network(
        "mtp",
        label="MTP layer",
        does="one layer, token by token",
        needs="an MTP layer trained for the target, or the target's own",
        paper="DeepSeek-AI 2024, DeepSeek-V3, section 2.2",
        loader="trained:load_mtp",
        branches="mtp:branches",
        published={"kind": "^mtp$"},
    ),
    _network(
        "eagle3",
        label="EAGLE-3",
        does="one layer that reads three of the target",
        needs="an EAGLE-3 head published for the target",
        paper="Li et al. 2025, EAGLE-3",
        loader="eagle3:load_eagle3",
        branches="mtp:Eagle3Branches",
        published={"architectures": "Eagle3", "speculators_model_type": "^eagle3$"},
    ),
    _network(
        "peagle",
        label="P-EAGLE",
        does="EAGLE-3, all tokens in one pass",
        needs="a P-EAGLE head published for the target",
        paper="Hui et al. 2026, P-EAGLE: Parallel-Drafting EAGLE with Scalable Training",
        loader="eagle3:load_peagle",
        branches="parallel:PEagleBranches",
        parallel=True,
        published={"architectures": "Eagle3|PEagle", "speculators_model_type": "^(eagle3|peagle)$"},
        part=r"^(model\.)?mask_hidden$",
    ),
    _network(
        "dspark",
        label="DSpark",
        does="blocks, with a confidence head",
        needs="a DSpark drafter published for the target",
        paper="DeepSeek-AI 2026, DSpark",
        loader="dspark:load_dspark",
        branches="walked:WalkedBranches",
        parallel=True,
        published={"architectures": "DSpark|DFlash(?!2)", "speculators_model_type": "^(dflash|dspark)$"},
        part=r"^(markov|confidence)_head\.",
    ),
    _network(
        "dflash2",
        label="DFlash 2",
        does="blocks, with a selector",
        needs="a DFlash 2 drafter published for the target",
        paper="z-lab 2026, DFlash 2",
        loader="dflash2:load_dflash2",
        branches="walked:WalkedBranches",
        parallel=True,
        published={"architectures": "DFlash2", "speculators_model_type": "^dflash2$"},
    ),
    _network(
        "domino",
        label="Domino",
        does="a block, corrected token by token",
        needs="a Domino drafter published for the target",
        paper="Huang et al. 2026, Domino",
        loader="domino:load_domino",
        branches="walked:WalkedBranches",
        parallel=True,
        published={"architectures": "DFlash(?!2)|Domino"},
        part=r"^(prefix_gru|embed_proj)\.",
    ),
    DraftingMethod(
        "jetspec",
        label="JetSpec",
        does="a tree in one pass",
        needs="a JetSpec drafter published for the target",
        paper="Hu et al. 2026, JetSpec: Breaking the Scaling Ceiling of Speculative Decoding with Parallel Tree "
        "Drafting",
        builder=f"{DRAFTERS}.tree:build",
        weights="network",
        loader=f"{NETWORKS}.dflash:load_jetspec",
        branches=f"{DRAFTERS}.parallel:DFlashBranches",
        tree=True,
        published={"dflash_config": "'causal_head': True"},
    ),
    _network(
        "dflash",
        label="DFlash",
        does="a block in one pass",
        needs="a DFlash drafter published for the target",
        paper="Chen et al. 2026, DFlash: Block Diffusion for Flash Speculative Decoding",
        loader="dflash:load_dflash",
        branches="parallel:DFlashBranches",
        parallel=True,
        published={
            "architectures": "DFlash(?!2)|DSpark|MuseGlimmerAssistantModel",
            "speculators_model_type": "^(dflash|dspark)$",
        },
    ),
    _network(
        "gemma4",
        label="Gemma 4 assistant",
        does="four layers on the target's KV cache",
        needs="a Gemma 4 target and the assistant made for it",
        paper="Gemma Team 2026, Gemma 4 Technical Report",
        loader="gemma4:load_gemma4",
        branches="gemma4:Gemma4Branches",
        published={"model_type": "^gemma4(_unified)?_assistant$"},
    ),
    _network(
        "heads",
        label="Parallel heads",
        does="one head a position, all at once",
        needs="heads trained for the target",
        paper="Gloeckle et al. 2024, Better & Faster Large Language Models via Multi-token Prediction",
        loader="trained:load_trained",
        branches="parallel:HeadsBranches",
        parallel=True,
        published={"kind": "^heads$"},
    ),
    _network(
        "medusa",
        label="Medusa heads",
        does="one head a position, all at once",
        needs="Medusa heads published for the target",
        paper="Cai et al. 2024, Medusa",
        loader="heads:load_medusa",
        branches="parallel:MedusaBranches",
        parallel=True,
        published={"medusa_num_heads": ""},
    ),
    DraftingMethod(
        "pard",
        label="PARD",
        does="all its tokens in one pass",
        needs="a PARD model with the target's tokenizer",
        paper="An et al. 2025, PARD: Accelerating LLM Inference with Low-Cost PARallel Draft Model Adaptation",
        builder=CHAIN,
        weights="model",
        check="playground.models.networks.made_for:check_pard",
        branches=f"{DRAFTERS}.parallel:branches",
        parallel=True,
        published={"pard_token": "", "spd_type": "(?i)^pard"},
    ),
    DraftingMethod(
        "tree",
        label="Draft tree",
        does="a network's likeliest branches",
        needs="a network that drafts from the target's hidden states, such as an MTP layer",
        paper="Li et al. 2024, EAGLE-2; over DFlash: DDTree",
        builder=f"{DRAFTERS}.tree:build",
        tree=True,
    ),
    DraftingMethod(
        "composite",
        label="Prompt lookup + tree",
        does="copies earlier text, else a small model guesses",
        needs="the same as tree",
        paper="see ngram and tree",
        builder=f"{DRAFTERS}.composite:build",
        tree=True,
    ),
    DraftingMethod(
        "adaptive",
        label="Prompt lookup or tree",
        does="whichever is faster so far",
        needs="the same as tree",
        paper="see ngram and tree",
        builder=f"{DRAFTERS}.composite:build_adaptive",
        tree=True,
    ),
    DraftingMethod(
        "none",
        label="Standard again",
        does="the noise of this machine",
        needs="nothing",
        paper="standard decoding",
        builder=f"{DRAFTERS}.base:build_none",
    ),
)
METHODS: dict[str, DraftingMethod]  # made by __getattr__
_METHODS: dict[str, DraftingMethod] = {}


def _methods() -> dict[str, DraftingMethod]:
    """Return all methods by name, in the order of menus. The first call loads the plugins; what they import may call
    this again, and gets the dictionary that they are added to."""
    if not _METHODS:
        _METHODS.update((method.name, method) for method in ALL)
        load_plugins("playground.drafters", _add)
    return _METHODS


def _add(method: DraftingMethod, package: str) -> None:
    check(isinstance(method, DraftingMethod), f"it is no DraftingMethod, but a {type(method).__name__}")
    check(method.name not in {*_METHODS, TARGETS}, f"there is a drafter {method.name} already")
    check(bool(method.help), f"the drafter {method.name} has no help")
    _METHODS[method.name] = replace(method, package=package)


def __getattr__(name: str) -> object:
    """Make METHODS when it is first read, and not when this module is imported, since plugins import it for
    DraftingMethod."""
    if name == "METHODS":
        return _methods()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def recognised(config: Mapping[str, Any], tensors: Collection[str] = ()) -> str | None:
    """Return the method that a folder holds weights for; None for none. `part` decides between methods that share a
    config."""
    found = [method for method in _methods().values() if method.recognises(config, tensors)]
    return next((method.name for method in sorted(found, key=lambda method: not method.part)), None)


def help_for(name: str) -> str:
    """Return the help page of a method, or TARGETS, as Markdown."""
    method = _methods().get(name)
    return method.help if method and method.help else (HELP / f"{name}.md").read_text(encoding="utf-8")
