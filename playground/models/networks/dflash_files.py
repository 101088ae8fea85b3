"""Reads the folders of DFlash, and of networks built on it, into one form.

There are four layouts: z-lab's (also Domino's and JetSpec's), that of transformers' one DFlash class, DeepSpec's
(DeepSeek's own drafters) and that of speculators. They number the target's layers differently, and in some of them the
block's first slot drafts too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import AutoConfig, MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel, PreTrainedModel

from playground.drafting_methods import METHODS
from playground.errors import MadeForAnother, PlaygroundError
from playground.models.fetch.files import ModelFiles
from playground.models.load import LoadedModel, check_memory, explained, tensors_of
from playground.models.networks.made_for import (
    REMEDY,
    check_made_for,
    check_method,
    check_tensors,
    fetch,
    mapped_ids,
    target_of,
)
from playground.progress import Progress

ZLAB, TRANSFORMERS = "DFlashDraftModel", "MuseGlimmerAssistantModel"  # architectures, as config.json names them
SECOND = "DFlash2DraftModel"  # in z-lab's layout, and in that of speculators
DEEPSPEC = ("Qwen3DSparkModel", "DSparkDraftModel")  # for DFlash and DSpark; the latter has a dflash_config
DOMINO = "DominoDraftModel"  # SpecForge's name for z-lab's network with Domino's head
FIRST = ("dflash", "dspark"), (ZLAB, TRANSFORMERS, *DEEPSPEC)
# By method: the types of speculators and the architectures that hold its weights.
LAYOUTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "dflash": FIRST,
    "dspark": FIRST,
    "dflash2": (("dflash2",), (SECOND,)),
    "domino": ((), (ZLAB, DOMINO)),
    "jetspec": ((), (ZLAB,)),
}
MARKS = {"domino": "projector_type", "jetspec": "causal_head"}  # entries of config.json that a method's weights have
NAMES = {r"^fc\.": "encoder.fc.", r"^hidden_norm\.": "encoder.output_norm_enc."}  # z-lab's weight names to the class's
LAYERS = re.compile(r"(layers|fc|hidden_norm|norm|encoder)\.")  # tensors of the class
TARGETS = re.compile(
    r"(embed_tokens|verifier_norm|verifier_lm_head)\.|t2d$"
)  # copies of the target's tensors, not read


@dataclass(frozen=True)
class Layout:
    """A config.json, read into a form that does not depend on its layout.

    Attributes:
        given: all entries, including those of the layers.
        config: the config of the layers, for transformers' class.
        layers: target layers whose outputs are read, in the form of `Runner.watch`.
        causal: the kinds of layers in which a block token attends only to earlier ones.
        from_anchor: whether the block's first slot, the last token of the sequence, drafts too.
    """

    given: Mapping[str, Any]
    config: MuseGlimmerAssistantConfig
    layers: tuple[int, ...]
    causal: frozenset[str]
    from_anchor: bool


@dataclass(frozen=True)
class BlockFiles:
    """The contents of a folder.

    Attributes:
        base: the layers, on the target's device and in its dtype.
        draft_ids: (draft vocabulary,), the target's token ids; None for the whole vocabulary, with the target's head.
        parts: all tensors except those of the layers, on the CPU.
    """

    weights: ModelFiles
    layout: Layout
    base: PreTrainedModel
    draft_ids: Tensor | None
    parts: dict[str, Tensor]


def read_block(
    name: str, method: str, target: LoadedModel, parts: str, progress: Callable[[Progress], None]
) -> BlockFiles:
    """Reads the folder of a drafter.

    Args:
        method: the drafting method that the weights must be for.
        parts: a pattern, "|" before each, of the tensors that this kind has in addition to its layers and its head.

    Raises:
        PlaygroundError: there is no such drafter, it is of another kind, it has unknown parts, it was trained for
            another target, or its files are broken.
    """
    weights, raw = fetch(name, f"A {METHODS[method].label} drafter", progress)
    progress(Progress(f"Loading {weights.name}"))
    with explained(weights, target.model.device):
        layout = read_layout(raw, weights.name, target, method)
        check_memory(weights, target.model.dtype, target.model.device)
        known, state = re.compile(rf"(d2t|lm_head\.weight{parts})$"), tensors_of(weights.folder, TARGETS)
        check_method(raw, state.keys(), weights.name, method)
        loaded: Any = MuseGlimmerAssistantModel.from_pretrained(
            None,
            config=layout.config,
            state_dict={key: tensor for key, tensor in state.items() if LAYERS.match(key) and not known.match(key)},
            key_mapping=NAMES,
            dtype=target.model.dtype,
            device_map=target.model.device,
            output_loading_info=True,
        )
        base, report = loaded
        others = {key: tensor for key, tensor in state.items() if known.match(key) or not LAYERS.match(key)}
        unknown = {*report["unexpected_keys"], *(key for key in others if not known.match(key))}
        check_tensors(weights.name, report["missing_keys"], unknown)
        vocab_size = target.model.config.get_text_config(decoder=True).vocab_size
        reduced = any(len(others[key]) != vocab_size for key in ("d2t", "lm_head.weight") if key in others)
        ids = mapped_ids(weights.name, others, vocab_size) if reduced else None
    return BlockFiles(weights, layout, base, ids, others)


def under(start: str, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors whose names begin with `start`, by the rest of their names."""
    return {key.removeprefix(start): tensor for key, tensor in parts.items() if key.startswith(start)}


def read_layout(raw: Mapping[str, Any], name: str, target: LoadedModel, method: str) -> Layout:
    """Reads a config.json of any of the layouts.

    Raises:
        PlaygroundError: the config has no known layout, lacks entries that the network needs, or fits another target.
    """
    text = target.model.config.get_text_config(decoder=True)
    n = text.num_hidden_layers
    architecture = next(iter(raw.get("architectures") or []), "no architecture")
    given = {**raw, **(raw.get("dflash_config") or {})}
    projector = given.get("projector_type")
    if projector and (projector != "domino" or method != "domino"):
        advice = "Choose the drafter domino" if projector == "domino" else "Choose a drafter without a projector_type"
        raise PlaygroundError(
            f"{name} is a DFlash network with a further head: its config.json has the projector_type {projector}. "
            f"{advice}."
        )
    speculators = raw.get("speculators_model_type")
    types, architectures = LAYOUTS[method]
    mark = MARKS.get(method)
    if speculators in types and isinstance(raw.get("transformer_layer_config"), dict):
        given = _whole(raw["transformer_layer_config"], name) | given
        # Ids in speculators name inputs: n is the output of the last layer, before the final norm.
        given["target_layer_ids"] = [i - 1 for i in raw.get("aux_hidden_state_layer_ids") or (2, n // 2, n - 3)]
        windows_causal = not raw.get("sliding_window_non_causal", speculators == "dflash2")
        from_anchor = raw.get("sample_from_anchor", speculators == "dspark")
    elif architecture in architectures and not speculators and (mark is None or given.get(mark)):
        windows_causal = architecture == ZLAB and method != "domino"
        from_anchor = architecture in DEEPSPEC or given.get("sample_from_anchor", given.get("shift_label", False))
    else:
        kind = f"a {speculators} of speculators" if speculators else architecture
        ours = f"{' or '.join(architectures)}{f' and a {mark}' if mark else ''}"
        theirs = f", or a {' or '.join(types)} of speculators" if types else ""
        raise PlaygroundError(
            f"{name} is not a supported {METHODS[method].label} drafter: its config.json names {kind}. Choose one with "
            f"{ours}{theirs}."
        )
    if not given.get("target_layer_ids") or given.get("mask_token_id") is None:
        raise PlaygroundError(
            f"The config.json of {name} lacks target_layer_ids or mask_token_id, without which it cannot draft. "
            "Choose another drafter."
        )
    sizes = [
        ("{} layers", given.get("num_target_layers"), n),
        ("hidden states of {}", given.get("target_hidden_size") or given.get("hidden_size"), text.hidden_size),
        ("a vocabulary of {}", given.get("vocab_size"), text.vocab_size),
    ]
    check_made_for(name, target.name, sizes, made_for=target_of(raw))
    _check_reaches(given, name, target)
    # In the other layouts, the last layer's id means the output after the final norm.
    outputs = tuple(-1 if i == n - 1 and not speculators else i for i in given["target_layer_ids"])
    config = _config(given)
    return Layout(given, config, outputs, _causal(given, windows_causal), from_anchor)


def _whole(layer: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns a Qwen 3 layer's config with the class's defaults, which speculators leaves out."""
    if layer.get("model_type", "qwen3") != "qwen3":
        raise PlaygroundError(
            f"{name} has {layer['model_type']} layers. Of this kind only drafters with qwen3 layers are supported. "
            "Choose another one."
        )
    return AutoConfig.for_model(**{"model_type": "qwen3", **layer}).to_dict()


def _config(given: Mapping[str, Any]) -> MuseGlimmerAssistantConfig:
    """Makes the class's config from any kind of config.json, in which `null` means the default."""
    layer_types = given.get("layer_types") or ["full_attention"] * given["num_hidden_layers"]
    known = {key: value for key, value in given.items() if value is not None and key != "model_type"}
    # The class defaults to Muse Glimmer's context and to its special tokens, which other vocabularies may lack.
    without = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    unlimited = {"max_position_embeddings": sys.maxsize}
    return MuseGlimmerAssistantConfig.from_dict(unlimited | known | without | {"layer_types": layer_types})


def _causal(given: Mapping[str, Any], windows: bool) -> frozenset[str]:
    """Returns the causal kinds of layers. `windows`: whether sliding-window layers are causal by default."""
    causal = given.get("causal_head") or given.get("is_causal")
    if causal is not None:
        return frozenset(["full_attention", "sliding_attention"] if causal else [])
    return frozenset(["sliding_attention"] if windows else [])


def _check_reaches(given: Mapping[str, Any], name: str, target: LoadedModel) -> None:
    text = target.model.config.get_text_config(decoder=True)
    if min(given["target_layer_ids"]) < 0:
        raise PlaygroundError(
            f"{name} reads the target's embedding as a hidden state, which is not supported. Choose another drafter."
        )
    for what, highest, there in (
        ("hidden states of the target's layer", max(given["target_layer_ids"]), text.num_hidden_layers),
        ("the mask token", given["mask_token_id"], text.vocab_size),
    ):
        if highest >= there:
            raise MadeForAnother(
                f"{name} cannot draft for {target.name}: it needs {what} {highest:,}, counted from 0, and the target "
                f"has {there:,}. {REMEDY}"
            )
