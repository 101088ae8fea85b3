"""Training of an EAGLE-3 head (Li et al. 2025): recursive like an MTP layer, from three layers of the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from playground.distil.data import Batch
from playground.distil.students import RecursiveStudent
from playground.models.attention import decoder_of
from playground.models.load import LoadedModel
from playground.models.networks.eagle3 import Eagle3Config, Eagle3Head
from playground.models.networks.speculators import speculators_config, vocabulary_maps

K = 3  # tokens drafted by default
HEADS = 2  # attention heads, as a multiple of the target's
SELF = 2.0  # how sharply a token attends to itself at first


def layer_config(target: PreTrainedModel, layers: int = 1, **others: Any) -> dict[str, Any]:
    """Returns the shape of a drafter's layers: the target's, with as many key-value heads as query heads."""
    text = target.config.get_text_config(decoder=True)
    heads = text.num_attention_heads
    return {
        "hidden_size": text.hidden_size,
        "intermediate_size": text.intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": getattr(text, "head_dim", None) or text.hidden_size // heads,
        "max_position_embeddings": text.max_position_embeddings,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "vocab_size": text.vocab_size,
        "tie_word_embeddings": False,
        **others,
    }


def head_config(target: PreTrainedModel) -> LlamaConfig:
    """Returns the shape of a head's layer, which has the target's rotary positions, like an MTP layer."""
    text = target.config.get_text_config(decoder=True)
    heads = HEADS * text.num_attention_heads
    theta = (getattr(text, "rope_parameters", None) or {}).get("rope_theta", 10_000.0)
    rope = {"rope_type": "default", "rope_theta": theta}
    shape = layer_config(target, num_attention_heads=heads, num_key_value_heads=heads, rope_parameters=rope)
    return LlamaConfig(**shape)


def new_head(target: LoadedModel, draft_ids: Tensor, inputs: tuple[int, ...]) -> Eagle3Head:
    """Makes a head to train. Its matrix over the draft vocabulary is the target's and is not trained. At first its
    output is the sum of the highest hidden state that it reads and of the token's embedding, which only attention can
    add: in the first half of the attention heads a token attends to similar tokens, so mostly to itself.

    Args:
        draft_ids: [draft vocabulary], the target's token ids.
        inputs: the target layers whose inputs it reads.
    """
    shape = head_config(target.model)
    outputs = tuple(i - 1 for i in inputs)
    rows = target.model.get_output_embeddings().weight.detach()[draft_ids]
    maps = vocabulary_maps(draft_ids, len(target.model.get_output_embeddings().weight))
    config = Eagle3Config(shape, outputs, norm_before_residual=True, norm_output=False)
    head = Eagle3Head(target.model, config, {"lm_head.weight": rows, **maps}).float()
    width = head.fc.out_features
    layers: Any = head.base.layers
    attention = layers[0].self_attn
    assert head.lm_head is not None, "it was made with rows of its own"
    with torch.no_grad():
        head.lm_head.weight.copy_(rows)
        head.fc.weight.normal_(std=0.01)
        head.fc.weight[:, -width:] += _eye(width)
        for part in (attention.q_proj, attention.k_proj):
            part.weight[:, :width] += SELF * _eye(*part.weight[:, :width].shape)
        attention.v_proj.weight[:, :width] += _eye(*attention.v_proj.weight[:, :width].shape)
        attention.o_proj.weight += _eye(*attention.o_proj.weight.shape)
        head.norm.load_state_dict(decoder_of(target.model).get_submodule("norm").state_dict())
    head.lm_head.requires_grad_(False)
    return head


def _eye(rows: int, columns: int | None = None) -> Tensor:
    return torch.eye(rows, columns or rows)


class Eagle3Student(RecursiveStudent):
    """Trains an EAGLE-3 head on the target's choices alone, as in the paper: its states need not equal the target's."""

    def __init__(self, head: Eagle3Head, steps: int) -> None:
        super().__init__(head, head.draft_ids, head.vocab_size, steps)

    def start(self, batch: Batch, n: int) -> Tensor:
        return batch.features[:, :n].flatten(-2).float()

    def begin(self, state: Mapping[str, Tensor]) -> None:
        """Loads the tensors of a published head with an equal draft vocabulary."""
        parts = {key: tensor for key, tensor in state.items() if key not in ("d2t", "t2d")}
        self.module.load_state_dict({f"base.{key}" if key.startswith("layers.") else key: parts[key] for key in parts})

    def state(self) -> dict[str, Tensor]:
        """Returns the tensors by the names of the speculators layout."""
        head = self.module
        own = {key.removeprefix("base."): tensor for key, tensor in head.state_dict().items()}
        return own | vocabulary_maps(head.draft_ids, head.vocab_size)

    def config_json(self, target: LoadedModel) -> dict[str, Any]:
        """Returns the config.json in the layout of speculators."""
        return speculators_config("eagle3", target, head_config(target.model), K) | {
            "draft_vocab_size": len(self.module.draft_ids),
            "norm_before_residual": True,
            "norm_before_fc": False,
            "fc_norm": False,
            "norm_output": False,
            "eagle_aux_hidden_state_layer_ids": [i + 1 for i in self.module.layers],
        }
