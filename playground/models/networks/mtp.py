"""A multi-token prediction layer: one transformer layer that reads the target's hidden states and drafts recursively.

DeepSeek-V3 (2024, section 2.2) and Gloeckle et al. 2024. For the token x at position i + 1 and the target's last hidden
state h at position i the layer reads proj([norm(embedding(x)); norm(h)]). Its output serves as h at position i + 1: a
head predicts the next token from it, and it is fed back to draft the one after. Embedding and head are the target's;
only the head's rows of a reduced draft vocabulary are used.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import AutoModel, Cache, DynamicCache, PretrainedConfig, PreTrainedModel

from playground.models.attention import decoder_of
from playground.models.networks.heads import SharedHead


class MtpLayer(SharedHead):
    """The network, a layer of the target's own kind. The arguments are those of `SharedHead`."""

    def __init__(self, target: PreTrainedModel, draft_ids: Tensor) -> None:
        super().__init__(target, draft_ids)
        self.config = config = one_layer(target.config)
        width = config.hidden_size
        self.base: PreTrainedModel = AutoModel.from_config(config, dtype=target.dtype).to(target.device).eval()
        self.base.set_input_embeddings(None)
        self.proj = nn.Linear(2 * width, width, bias=False, dtype=target.dtype, device=target.device)

    @torch.no_grad()
    def start_from(self, target: PreTrainedModel) -> None:
        """Sets the initial weights for training: h passes unchanged through a new layer to the target's final norm. The
        layer is not a copy of the target's last, whose inputs are not normed."""
        norm = decoder_of(target).get_submodule("norm")
        self.base.get_submodule("norm").load_state_dict(norm.state_dict())
        width = self.proj.out_features
        self.proj.weight.normal_(std=0.02)
        self.proj.weight[:, width:] += torch.eye(width, dtype=self.proj.weight.dtype, device=self.proj.weight.device)

    def new_cache(self) -> DynamicCache:
        return DynamicCache(config=self.base.config)

    def forward(
        self, ids: Tensor, hidden: Tensor, cache: Cache, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Runs the layer.

        Args:
            ids: (rows, n), the tokens from position 1 on.
            hidden: (rows, n, width), hidden states from position 0 on: the target's, or outputs of this method.
            mask: (rows, 1, n, cached + n), added to the attention scores; None is causal.

        Returns:
            (rows, n, width), hidden states from position 1 on.
        """
        out = self.base(
            inputs_embeds=self.proj(self.joined(ids, hidden)),
            past_key_values=cache,
            use_cache=True,
            position_ids=positions,
            attention_mask=mask,
        )
        return out.last_hidden_state


def one_layer(config: PretrainedConfig) -> PretrainedConfig:
    """Returns the config of a model with one layer of the same kind as the target's last."""
    one = copy.deepcopy(config.get_text_config(decoder=True))
    one.num_hidden_layers = 1
    one.vocab_size, one.pad_token_id = 1, None  # the model's own embedding is never used
    if getattr(one, "layer_types", None):
        one.layer_types = one.layer_types[-1:]
    return one
