"""Checks that a drafter was made for a target, for the loaders of networks and draft models.

A network that reads hidden states was trained for one target: its sizes, tensors and draft vocabulary are checked. A
draft model must give every token id the same meaning as the target.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from playground.drafting_methods import recognised
from playground.errors import MadeForAnother, PlaygroundError
from playground.format import count
from playground.models.fetch.files import ModelFiles
from playground.models.load import LoadedModel, locate
from playground.models.sizing import BYTES
from playground.progress import Progress
from playground.tensor_header import headers

REMEDY = "Choose the target that it was made for, or a drafter made for this one."


def fetch(name: str, what: str, progress: Callable[[Progress], None]) -> tuple[ModelFiles, dict[str, Any]]:
    """Returns the files of a drafter, and its config. `what`: the expected kind, named in messages.

    Raises:
        PlaygroundError: the drafter cannot be fetched, is GGUF or quantised, or its files are broken.
    """
    weights = locate(name, progress)
    if weights.gguf:
        raise PlaygroundError(
            f"{weights.name} is GGUF. {what} is loaded from safetensors with a config.json. Choose such files."
        )
    try:
        config = json.loads((weights.folder / "config.json").read_text(encoding="utf-8"))
        config.items()
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise PlaygroundError(
            f"The config.json of {weights.name} cannot be read ({type(error).__name__}: {error}). Fetch it again."
        ) from error
    _check_whole_weights(weights, what)
    return weights, config


def _check_whole_weights(weights: ModelFiles, what: str) -> None:
    """Refuses quantised weights. A config may name a quantisation that was copied from the target's, so the tensors
    decide."""
    tensors = headers(weights.folder).items()
    stored = {tensor["dtype"] for key, tensor in tensors if re.search(r"weight(_packed)?$", key)}
    if quantised := sorted(stored - BYTES.keys()):
        raise PlaygroundError(
            f"The weights of {weights.name} are quantised ({', '.join(quantised)}). {what} is loaded from whole "
            "weights. Choose the original ones."
        )


def target_of(config: Mapping[str, Any], unknown: str = "another target") -> str:
    """Returns the name of the target that a drafter was trained for, by its config.json; `unknown` where this says
    nothing."""
    verifier = ((config.get("speculators_config") or {}).get("verifier") or {}).get("name_or_path")
    return str(verifier or config.get("target") or unknown).rsplit("/", 1)[-1]


def check_method(config: Mapping[str, Any], tensors: Collection[str], name: str, method: str) -> None:
    """Checks that a folder does not hold weights for another drafting method than `method`. `name`: the drafter's.

    Raises:
        PlaygroundError: it does.
    """
    other = recognised(config, tensors)
    if other and other != method:
        raise PlaygroundError(
            f"{name} is made to draft as {other}, by what its weights are. Choose the drafter {other}."
        )


def check_made_for(
    name: str,
    target: str,
    sizes: Sequence[tuple[str, Any, Any]],
    *,
    made_for: str = "another target",
    remedy: str = REMEDY,
) -> None:
    """Compares sizes of a drafter with its target's.

    Args:
        name, target: names of the drafter and of the target.
        sizes: a description such as "hidden states of {}", the size that the drafter was made for (None if it does not
            say), and the target's.
        made_for: the target that the drafter was made for.

    Raises:
        MadeForAnother: a size differs from the target's.
    """
    for what, wanted, given in sizes:
        if wanted not in (None, given):
            raise MadeForAnother(
                f"{name} cannot draft for {target}: it was made for {made_for}, with "
                f"{what.format(_formatted(wanted))}, and this one has {_formatted(given)}. {remedy}"
            )


def load_tensors(network: nn.Module, state: Mapping[str, Tensor], name: str) -> None:
    """Loads tensors into the network. `name`: the drafter's.

    Raises:
        PlaygroundError: tensors are missing, unknown, or of other shapes than the network's.
    """
    own = network.state_dict()
    check_tensors(name, own.keys() - state.keys(), state.keys() - own.keys())
    for key, tensor in state.items():
        if tensor.shape != own[key].shape:
            raise PlaygroundError(
                f"The tensor {key} of {name} has the shape {_formatted(tuple(tensor.shape))}, and by its config.json "
                f"it should have {_formatted(tuple(own[key].shape))}. The two do not belong together. Choose another "
                "drafter."
            )
    network.load_state_dict(state)


def check_tensors(name: str, missing: Collection[str], unknown: Collection[str]) -> None:
    """Refuses a drafter with missing or unknown tensors.

    Args:
        missing, unknown: names of tensors that the network of the drafter `name` has and its files lack, and the
            reverse.

    Raises:
        PlaygroundError: there are any.
    """
    if unknown:
        raise PlaygroundError(
            f"{name} has parts that are not known here: {count(len(unknown), 'tensor')}, such as {min(unknown)}. It is "
            "of another kind than its config.json says, or of a newer one. Choose another drafter."
        )
    if missing:
        raise PlaygroundError(
            f"{name} is incomplete: its config.json names a network with {count(len(missing), 'tensor')} more, such as "
            f"{min(missing)}. Fetch it again, or choose another drafter."
        )


def mapped_ids(name: str, state: Mapping[str, Tensor], vocab_size: int) -> Tensor:
    """Returns the target's token id of each row of a drafter's own head, (draft vocabulary,).

    Args:
        name: the drafter's.
        vocab_size: the target's.

    Raises:
        PlaygroundError: the head covers a part of the vocabulary, and no tensor says which; head and map have different
            lengths; or ids are beyond the target's.
    """
    if "lm_head.weight" not in state:
        raise PlaygroundError(
            f"{name} is incomplete: it drafts from a part of the target's {vocab_size:,} tokens, and has no "
            "lm_head.weight for them. Choose another drafter."
        )
    drafted = len(state["lm_head.weight"])
    mapped = len(state.get("d2t", range(vocab_size)))
    if drafted != mapped and "d2t" in state:
        raise PlaygroundError(
            f"{name} is damaged: its head has {drafted:,} rows, and its tensor d2t maps {mapped:,}. Choose another "
            "drafter."
        )
    if drafted < mapped:
        raise PlaygroundError(
            f"{name} is incomplete: it drafts from {drafted:,} of the target's {vocab_size:,} tokens, and has no "
            "tensor d2t to say which. Choose another drafter."
        )
    ids = draft_ids(state)
    check_draft_ids(name, ids, vocab_size)
    return ids


def draft_ids(state: Mapping[str, Tensor]) -> Tensor:
    """Returns the target's token ids, (draft vocabulary,): adding `d2t` to a draft id gives the target's. Without `d2t`
    the draft vocabulary is the whole one."""
    ids = torch.arange(len(state["lm_head.weight"]))
    return ids + state["d2t"].long() if "d2t" in state else ids


def check_draft_ids(name: str, draft_ids: Tensor, vocab_size: int) -> None:
    """Checks the ids of a draft vocabulary, (draft vocabulary,).

    Raises:
        PlaygroundError: the draft vocabulary names tokens that the target does not have. On a GPU such an id would end
            the process's use of the device.
    """
    if draft_ids.numel() and not 0 <= int(draft_ids.min()) <= int(draft_ids.max()) < vocab_size:
        raise PlaygroundError(
            f"The files of {name} are damaged: its draft vocabulary has token {int(draft_ids.max()):,}, and the target "
            f"has ids from 0 to {vocab_size - 1:,}. Fetch it again, or choose another drafter."
        )


def _formatted(size: Any) -> str:
    return f"{size:,}" if isinstance(size, int) else str(size)


def check_same_tokenizer(target: LoadedModel, assistant: LoadedModel) -> None:
    """Compares the vocabularies, including added tokens. The embeddings may be padded to different sizes: ids beyond
    the vocabulary have no meaning to either model.

    Raises:
        MadeForAnother: the vocabularies differ; the message names the first difference.
    """
    if target.tokenizer is assistant.tokenizer:
        return
    ours, theirs = target.tokenizer.get_vocab(), assistant.tokenizer.get_vocab()
    if ours == theirs:
        return
    if len(ours) != len(theirs):
        what = f"the target's vocabulary has {len(ours):,} tokens and the assistant's {len(theirs):,}"
    else:
        token = min((token for token in ours if ours[token] != theirs.get(token)), key=ours.__getitem__)
        other = f"id {theirs[token]}" if token in theirs else "no id"
        what = f"the token {token!r} has id {ours[token]} in the target and {other} in the assistant"
    raise MadeForAnother(
        f"{assistant.name} cannot draft for {target.name}, because their tokenizers differ: {what}. "
        "Choose two models of one family, or the drafter universal, which works with any tokenizer."
    )


def check_pard(target: LoadedModel, model: LoadedModel) -> None:
    """Checks that a PARD model can draft for a target.

    Raises:
        PlaygroundError: the model is no PARD model, it is of an unknown kind, or its tokenizer differs.
    """
    check_same_tokenizer(target, model)
    config = model.model.config
    mask, kind = getattr(config, "pard_token", None), getattr(config, "spd_type", None) or "pard"
    if mask is None:
        raise PlaygroundError(
            f"{model.name} is no PARD model: its config.json names no pard_token. Choose the drafter assistant, for "
            "which any small model of the target's family will do."
        )
    if str(kind).lower() != "pard":
        raise PlaygroundError(
            f"{model.name} was trained as {kind}, which is not supported: only PARD models that read the text alone "
            "are. Choose another model."
        )
    if not 0 <= int(mask) < config.get_text_config(decoder=True).vocab_size:
        raise PlaygroundError(
            f"The files of {model.name} are damaged: its pard_token is {int(mask):,}, which is not in its vocabulary. "
            "Fetch it again, or choose another model."
        )
