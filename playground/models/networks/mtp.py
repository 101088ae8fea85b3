"""Multi-token prediction layers: one transformer layer that was trained for a target and drafts recursively, and those
of a target's own checkpoint, which transformers' MtpModel loads.

DeepSeek-V3 (2024, section 2.2) and Gloeckle et al. 2024. For the token x at position i + 1 and the target's last hidden
state h at position i the layer reads proj([norm(embedding(x)); norm(h)]). Its output serves as h at position i + 1: a
head predicts the next token from it, and it is fed back to draft the one after. Embedding and head are the target's;
only the head's rows of a reduced draft vocabulary are used.

Of a checkpoint's own layers, layer k, counted from 0, reads at position i the output of layer k - 1 (layer 0: the
target's last hidden state after the final norm) and the token at position i + k + 1, and drafts the token after that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, Cache, DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from playground.errors import PlaygroundError
from playground.models.attention import decoder_of
from playground.models.device import ran_out_of_memory
from playground.models.load import LoadedDrafter, LoadedModel
from playground.models.networks.heads import SharedHead
from playground.progress import Progress


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


# Config keys for the number of layers: transformers', DeepSeek's and GLM's, Qwen's.
COUNTS = ("num_mtp_layers", "num_nextn_predict_layers", "mtp_num_hidden_layers")


class NativeLayers(nn.Module):
    """Several layers; each drafts one position further."""

    draft_ids: Tensor

    def __init__(self, mtp: MtpModel) -> None:
        super().__init__()
        self.mtp = mtp
        self.config = mtp.config
        self.count = mtp.num_mtp_layers
        self.register_buffer("draft_ids", torch.arange(mtp.config.vocab_size, device=mtp.shared_head.weight.device))

    def new_cache(self) -> MtpCache:
        return MtpCache(config=self.mtp.config)

    def run(self, k: int, ids: Tensor, hidden: Tensor, cache: MtpCache) -> Tensor:
        """Runs layer k at the positions after those in its part of the cache.

        Args:
            ids: (1, n), the tokens k + 1 positions later.
            hidden: (1, n, width), the output of layer k - 1, or of the target.

        Returns:
            (1, n, width), the input of the next layer and of the head.
        """
        start = cache.get_seq_length(k) + k + 1
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
        return self.mtp.forward_layer(k, hidden, positions, cache, input_ids=ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """Maps (…, width) to (…, vocabulary) logits."""
        return self.mtp.shared_head(hidden)


class NativeLayer(NativeLayers):
    """A single layer, which drafts recursively and in trees, like `MtpLayer`."""

    def forward(
        self, ids: Tensor, hidden: Tensor, cache: MtpCache, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Runs the layer. Arguments and result are those of `MtpLayer.forward`."""
        if mask is None:
            return self.run(0, ids, hidden, cache)
        assert positions is not None, "a tree's mask comes with the positions of its tokens"
        positions = positions + 1  # rotated by the position of the token, not of the hidden state
        per_layer = {"layer_type": self.mtp.config.layer_types[0]} if self.mtp.has_per_layer_rope else {}
        embedding = self.mtp.embed_tokens(ids)
        rotary: Any = self.mtp.rotary_emb  # None only in models without rotary positions
        return self.mtp.layers[0](
            embedding,
            hidden,
            position_embeddings=rotary(embedding, position_ids=positions, **per_layer),
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
        )


def load_native(name: str, target: LoadedModel, progress: Callable[[Progress], None]) -> LoadedDrafter:
    """Loads the target's own layers. `name` is `presets.NATIVE`.

    Raises:
        PlaygroundError: the config names no layers, transformers cannot load them, the target is quantised, or memory
            ran out.
    """
    instead = "Choose another drafter."
    if not _name_layers(target.model.config.get_text_config(decoder=True)):
        raise PlaygroundError(f"{target.name} has no MTP layers of its own: its config names none. {instead}")
    if getattr(target.model.config, "quantization_config", None):
        raise PlaygroundError(
            f"{target.name} is quantised, and transformers reads MTP layers only from unquantised weights. Choose the "
            "original weights, or another drafter."
        )
    progress(Progress(f"Loading the MTP layers of {target.name}"))
    try:
        mtp = MtpModel.from_pretrained(target.model, device_map={"": target.model.device})
    except Exception as error:
        if ran_out_of_memory(error):
            raise PlaygroundError(
                f"{target.model.device} ran out of memory while loading the MTP layers of {target.name}. {instead}"
            ) from None
        # For missing weights or an unknown layout transformers raises exceptions of any type.
        first = str(error).splitlines()[0][:200] if str(error) else "no message"
        raise PlaygroundError(
            f"The config of {target.name} names MTP layers, but transformers cannot load them from its files "
            f"({type(error).__name__}: {first}). Publishers often leave these weights out. {instead}"
        ) from error
    network = (NativeLayer if mtp.num_mtp_layers == 1 else NativeLayers)(mtp.eval())
    return LoadedDrafter(network, f"{target.name}'s own MTP", target.weights)


def _name_layers(config: PretrainedConfig) -> int:
    """Returns the number of layers that the config names, and sets the config keys that MtpModel reads."""
    count = next((count for key in COUNTS if (count := getattr(config, key, None))), 0)
    if count and not getattr(config, "num_mtp_layers", None):
        config.num_mtp_layers = count
        for kinds in ("layer_types", "mlp_layer_types"):
            if getattr(config, kinds, None):
                setattr(config, f"mtp_{kinds}", getattr(config, kinds)[-1:] * count)
    return count
