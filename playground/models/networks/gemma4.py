"""Gemma 4's assistants: four small layers without keys and values of their own, each made for one Gemma 4 target.

They attend to the keys and values of the target's last layer of each kind. Their input is the target's embedding of the
last token, concatenated with its last hidden state. Their output is logits and a substitute for the next hidden state.
Google 2026, Gemma 4; the network is transformers' own class.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError
from playground.models.load import Format, LoadedDrafter, LoadedModel, explained, locate, read
from playground.models.networks.made_for import check_made_for
from playground.progress import Progress

TARGET_TYPES = ("gemma4_text", "gemma4_unified_text")


class Gemma4Assistant(nn.Module):
    """An assistant with its target's embedding.

    Args:
        model: a `Gemma4AssistantForCausalLM`, or the unified one, which has the same interface.
        target: the target, whose embedding is shared, not copied.
    """

    _embedding: nn.Module

    def __init__(self, model: PreTrainedModel, target: PreTrainedModel) -> None:
        super().__init__()
        self.model = copy.copy(model)
        # In place of the class's own methods.
        object.__setattr__(self.model, "create_attention_masks", _all_seen)
        if model.config.use_ordered_embeddings:
            object.__setattr__(self.model, "masked_embedding", partial(_of_clusters, model.masked_embedding))
        self.vocab_size: int = model.vocab_size
        object.__setattr__(self, "_embedding", target.get_input_embeddings())  # not a submodule: it is the target's

    def forward(
        self,
        ids: Tensor,
        hidden: Tensor,
        shared_kv: dict[str, tuple[Tensor, Tensor]],
        position: Tensor,
        masks: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Runs one step of branches that do not attend to each other.

        Args:
            ids: (branches,), the last token of each.
            hidden: (branches, width), the target's hidden state before that token, or an output of this method.
            shared_kv: `Runner.shared_kv`.
            position: (1,), the position of the last token of the sequence, equal at every step of a draft.
            masks: by layer type what is added to the attention scores, (1, 1, 1, keys); None for nothing.

        Returns:
            Logits, (branches, vocabulary), and hidden states, (branches, width).
        """
        out = self.model(
            inputs_embeds=torch.cat([self._embedding(ids), hidden], dim=-1)[None],
            position_ids=position.expand(1, len(ids)),
            attention_mask=masks,
            shared_kv_states=shared_kv,
        )
        return out.logits[0], out.last_hidden_state[0]


def _of_clusters(embedder: Any, hidden: Tensor, head: Tensor) -> Tensor:
    """Returns the logits of hidden states, (1, n, vocabulary), as the small models' `masked_embedding` does: only the
    likeliest clusters of tokens are scored. All others get -inf here. There they get one logit below the lowest of the
    call, which makes a branch's q depend on the other branches, and is read on the host."""
    best = embedder.centroids(hidden).topk(embedder.centroid_intermediate_top_k, dim=-1).indices
    ids = embedder.token_ordering.long().view(embedder.num_centroids, -1)[best].flatten(-2)
    scores = (head[ids] @ hidden[..., None])[..., 0]
    return hidden.new_full((*hidden.shape[:2], embedder.vocab_size), float("-inf")).scatter_(-1, ids, scores)


def _all_seen(
    inputs: Tensor, attention_mask: dict[str, Tensor] | None, shared_kv_states: dict[str, tuple[Tensor, Tensor]]
) -> dict[str, Tensor]:
    """Returns masks by layer type, (1, 1, 1, keys): those given, or none. The tokens of a call are branches, and each
    attends to the same shared states. transformers' own masks would treat them as one sequence, whose first token
    attends to the first state only."""
    return attention_mask or {
        kind: inputs.new_zeros(1, 1, 1, keys.shape[2]) for kind, (keys, _) in shared_kv_states.items()
    }


def load_gemma4(name: str, target: LoadedModel, progress: Callable[[Progress], None]) -> LoadedDrafter:
    """Loads an assistant.

    Raises:
        PlaygroundError: the assistant was not made for this target, cannot be fetched, or its files are broken.
    """
    text = target.model.config.get_text_config(decoder=True)
    if text.model_type not in TARGET_TYPES:
        raise PlaygroundError(
            f"{target.name} is not a Gemma 4 model, whose keys and values a Gemma 4 assistant reads. "
            "Choose a Gemma 4 target, or another drafter."
        )
    weights, device = locate(name, progress), target.model.device
    with explained(weights, device):
        config = AutoConfig.from_pretrained(weights.folder, gguf_file=weights.gguf, trust_remote_code=False)
        check_fits(config, weights.name, text, target.name)
        progress(Progress(f"Loading {weights.name}"))
        model = read(weights, Format(target.model.dtype, device))
    network = Gemma4Assistant(model.requires_grad_(False), target.model)
    return LoadedDrafter(network, weights.name, weights.origin)


def check_fits(config: PretrainedConfig, name: str, target: PretrainedConfig, target_name: str) -> None:
    """Checks that an assistant fits the target.

    Args:
        config, target: configs of the assistant and of the target's text model.

    Raises:
        PlaygroundError: the model is not an assistant, was made for another target, or cannot be built by this version
            of transformers.
    """
    remedy = f"Choose the assistant made for {target_name}; Google names it like its target, followed by -assistant."
    if not METHODS["gemma4"].recognises({"model_type": config.model_type}, ()):
        raise PlaygroundError(f"{name} is not a Gemma 4 assistant: its config says {config.model_type}. {remedy}")
    text = config.get_text_config()
    sizes = [
        ("hidden states of {}", config.backbone_hidden_size, target.hidden_size),
        ("a vocabulary of {}", text.vocab_size, target.vocab_size),
        ("a sliding window of {}", text.sliding_window, target.sliding_window),
        ("key-value heads (number, size) of {}", kv_layout(text), kv_layout(target)),
    ]
    check_made_for(name, target_name, sizes, remedy=remedy)
    try:
        getattr(text, "kv_sharing_modes", None)
    except ValueError:  # transformers 5.23.0: a model that only shares has no layer that stores
        raise PlaygroundError(
            f"transformers {transformers.__version__} cannot build {name}. Install 5.22.2, which can."
        ) from None


def kv_layout(text: PretrainedConfig) -> dict[str, tuple[int, int]]:
    """Returns the number of key-value heads and their size, for each kind of layer."""
    return {
        kind: (layer.num_key_value_heads, layer.head_dim)
        for kind, layer in zip(text.layer_types, text.per_layer_config, strict=True)
    }
