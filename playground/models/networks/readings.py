"""Other ways to read a drafter's weights, for a config.json that is wrong or that another engine reads differently.

A reading is a mapping of fields to values, which `read_as` sets on a loaded network. The doctor scores a drafter under
each of `readings`; a pair file can carry the one that fits (`Pair.readings`). Published drafters were met that need
them: layer ids that name inputs or outputs (sglang 37475), a block whose first slot drafts or does not (sglang
40144), a mask token that is another, norms before or after, an embedding that was exported untrained (TorchSpec 38).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.errors import PlaygroundError
from playground.models.attention import decoder_of
from playground.models.load import LoadedModel
from playground.models.networks.dflash import DFlash
from playground.models.networks.eagle3 import Eagle3Head
from playground.models.networks.heads import SharedHead

Reading = Mapping[str, Any]
Undo = list[tuple[Any, str, Any]]  # objects, their attributes, and the values before
RESERVED = 4  # of a tokenizer's hundreds
BOTH = frozenset(["full_attention", "sliding_attention"])


def readings(network: nn.Module, loaded: LoadedModel) -> dict[str, Reading]:
    """Returns the readings that a network can have other than its present one, by what each says, for a sentence.
    `loaded`: its target."""
    target = loaded.model
    n = target.config.get_text_config(decoder=True).num_hidden_layers
    if isinstance(network, SharedHead):
        return {"the hidden state before the target's final norm": {"layers": [n - 1]}}
    if not isinstance(network, (Eagle3Head, DFlash)):
        return {}
    others: dict[str, Reading] = _moved(network.layers, n) | _shifted(network)
    if isinstance(network, DFlash):
        anchored, causal = network.drafts == network.block_size, bool(network.causal)
        others["first draft from the first mask" if anchored else "first draft from the last token's slot"] = {
            "from_anchor": not anchored
        }
        others["block tokens see each other" if causal else "block tokens see earlier ones alone"] = {
            "causal": not causal
        }
        return others | _masks(network, loaded)
    usual = [1, n // 2 - 1, n - 4]
    if usual != [*network.layers] and len(network.layers) == 3 and min(usual) >= 0:
        others["the usual layers"] = {"layers": usual}
    before = network.base.get_submodule("layers.0").norm_before_residual
    others["residual before the norm" if before else "residual after the norm"] = {"norm_before_residual": not before}
    fed = network.norm_output
    others["output fed back before the final norm" if fed else "output fed back after the final norm"] = {
        "norm_output": not fed
    }
    width, inputs, outputs = network.fc.out_features, target.get_input_embeddings(), target.get_output_embeddings()
    if network.embed_tokens is not None and width == cast(Tensor, inputs.weight).shape[1]:
        others["the target's embedding"] = {"own_embedding": False}
    if network.lm_head is not None and width == cast(Tensor, outputs.weight).shape[1]:
        others["the target's head"] = {"own_head": False}
    theirs = (getattr(target.config.get_text_config(decoder=True), "rope_parameters", None) or {}).get("rope_theta")
    if theirs and theirs != (network.config.rope_parameters or {}).get("rope_theta"):
        others[f"the target's rope_theta, {theirs:,.0f}"] = {"rope_theta": theirs}
    return others


def _moved(layers: Sequence[int], n: int) -> dict[str, Reading]:
    """Returns the readings of layers one later or one earlier; -1 is the last one's output after the final norm."""
    found: dict[str, Reading] = {}
    for by, words in ((-1, "inputs of the layers instead of outputs"), (1, "outputs of the layers instead of inputs")):
        moved = [(n - 1 if layer == -1 else layer) + by for layer in layers]
        if min(moved) >= 0 and max(moved) < n:
            found[words] = {"layers": moved}
    return found


def _masks(network: DFlash, target: LoadedModel) -> dict[str, Reading]:
    """Returns the readings by other tokens that may mark the slots to draft: those that no text has, such as the first
    reserved ones (Llama 3.1's and gpt-oss's drafters), and the first row past them (Qwen 3's)."""
    tokenizer: Any = target.tokenizer
    usual = [tokenizer.mask_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id]
    added = sorted((id_, token.lower()) for token, id_ in tokenizer.get_added_vocab().items())
    masks = [id_ for id_, token in added if "mask" in token]
    reserved = [id_ for id_, token in added if "reserved" in token or "unused" in token]
    others = {*usual, *masks, *reserved[:RESERVED], len(tokenizer)} - {None, network.config.mask_token_id}
    called = {it: tokenizer.convert_ids_to_tokens(it) or "the first unused row" for it in others}
    return {
        f"{called[it]} ({it}) as its mask": {"mask_token_id": it} for it in sorted(others) if it < network.vocab_size
    }


def _shifted(network: Any) -> dict[str, Reading]:
    if len(network.draft_ids) == network.vocab_size:
        return {}
    return {f"draft ids {by:+d}": {"draft_ids_shift": by} for by in (-1, 1)}


def read_as(network: nn.Module, reading: Reading) -> Undo:
    """Sets the fields of a reading on a network, and returns what `undo` takes.

    Raises:
        PlaygroundError: the network has no such field.
    """
    changed: Undo = []
    for field, value in reading.items():
        for where, attribute, new in _places(network, field, value):
            changed.append((where, attribute, getattr(where, attribute)))
            setattr(where, attribute, new)
    return changed


def undo(changed: Undo) -> None:
    """Takes back what `read_as` set."""
    for where, attribute, before in reversed(changed):
        setattr(where, attribute, before)


def _places(network: Any, field: str, value: Any) -> list[tuple[Any, str, Any]]:
    """Returns the objects and attributes that a field sets, with their new values."""
    eagle, block = isinstance(network, Eagle3Head), isinstance(network, DFlash)
    if field == "layers" and hasattr(network, "layers"):
        return [(network, "layers", tuple(value))]
    if field == "draft_ids_shift" and hasattr(network, "draft_ids"):
        return [(network, "draft_ids", (network.draft_ids + value).clamp(0, network.vocab_size - 1))]
    if field == "from_anchor" and block:
        return [(network, "drafts", network.block_size - (not value))]
    if field == "mask_token_id" and block:
        return [(network.config, field, value)]
    if field == "causal" and block:
        return [(network, "causal", BOTH if value else frozenset())]
    if field == "norm_before_residual" and eagle:
        return [(network.base.layers[0], field, value)]
    if field in ("norm_output", "own_embedding", "own_head") and eagle:
        return [(network, field, value)]
    turns = decoder_of(network) if isinstance(network, PreTrainedModel) else getattr(network, "base", None)
    rotary = getattr(turns, "rotary_emb", None)
    if field != "rope_theta" or rotary is None:
        raise PlaygroundError(f"A {type(network).__name__} has no {field} to read otherwise. Leave it out.")
    config = copy.deepcopy(rotary.config)
    config.rope_parameters = {**config.rope_parameters, "rope_theta": value}
    return [(turns, "rotary_emb", type(rotary)(config).to(rotary.inv_freq.device))]
