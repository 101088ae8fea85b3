"""The multi-token prediction layers that a target's own checkpoint holds, loaded once through transformers' MtpModel.

DeepSeek-V3 (2024, section 2.2). Layer k, counted from 0, reads at place i what came out of layer k - 1 there (layer 0:
the target's last hidden state, behind the final norm) and the token at place i + k + 1, and drafts the one behind it.
Embedding, head and rotary embedding are the target's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from playground.errors import PlaygroundError
from playground.models.load import LoadedDrafter, LoadedModel
from playground.models.networks.trained import load_trained
from playground.presets import NATIVE
from playground.progress import Progress

# What publishers call the number of layers: DeepSeek and GLM, Qwen; the first is transformers' own word.
COUNTS = ("num_mtp_layers", "num_nextn_predict_layers", "mtp_num_hidden_layers")


class NativeLayers(nn.Module):
    """Several layers, each of which drafts one token further on."""

    def __init__(self, mtp: MtpModel) -> None:
        super().__init__()
        self.mtp = mtp
        self.count = mtp.num_mtp_layers
        self.register_buffer("draft_ids", torch.arange(mtp.config.vocab_size, device=mtp.shared_head.weight.device))

    def new_cache(self) -> MtpCache:
        return MtpCache(config=self.mtp.config)

    def run(self, k: int, ids: Tensor, hidden: Tensor, cache: MtpCache) -> Tensor:
        """Layer k over the places behind those that its part of the cache holds.

        Args:
            ids: (1, n), the tokens k + 1 places on.
            hidden: (1, n, width), what came out of layer k - 1, or of the target.

        Returns:
            (1, n, width), what the next layer and the head read.
        """
        start = cache.get_seq_length(k) + k + 1
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
        return self.mtp.forward_layer(k, hidden, positions, cache, input_ids=ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, width) to (…, vocabulary)."""
        return self.mtp.shared_head(hidden)


class NativeLayer(NativeLayers):
    """A single layer, which drafts recursively and in trees, as models/networks/mtp.py's does."""

    def forward(
        self, ids: Tensor, hidden: Tensor, cache: MtpCache, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """As `MtpLayer.forward`."""
        if mask is None:
            return self.run(0, ids, hidden, cache)
        positions = positions + 1  # rotated by where the token stands, not the hidden state
        per_layer = {"layer_type": self.mtp.config.layer_types[0]} if self.mtp.has_per_layer_rope else {}
        embedding = self.mtp.embed_tokens(ids)
        return self.mtp.layers[0](
            embedding,
            hidden,
            position_embeddings=self.mtp.rotary_emb(embedding, position_ids=positions, **per_layer),
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
        )


def load_mtp(name: str, target: LoadedModel, progress: Callable[[Progress], None]) -> LoadedDrafter:
    """The target's own layers, or a layer that was trained for it. Raises as `load_native` and `load_trained`."""
    return (load_native if name == NATIVE else load_trained)(name, target, progress)


def load_native(name: str, target: LoadedModel, progress: Callable[[Progress], None]) -> LoadedDrafter:
    """The target's own layers. `name` is `presets.NATIVE`.

    Raises:
        PlaygroundError: transformers knows no such layers of this target, they are quantised, or its files hold none.
    """
    instead = "Choose another way of drafting."
    if not _name_layers(target.model.config.get_text_config(decoder=True)):
        raise PlaygroundError(f"{target.name} has no MTP layers of its own: its config names none. {instead}")
    if getattr(target.model.config, "quantization_config", None):
        raise PlaygroundError(
            f"{target.name} is quantised, and transformers reads MTP layers only where they are not. Choose the "
            "original weights, or another way of drafting."
        )
    progress(Progress(f"Loading the MTP layers of {target.name}"))
    try:
        mtp = MtpModel.from_pretrained(target.model, device_map={"": target.model.device})
    except (torch.OutOfMemoryError, MemoryError):
        raise PlaygroundError(
            f"The memory of {target.model.device} ran out while the MTP layers of {target.name} were loading. {instead}"
        ) from None
    except Exception as error:
        # ModelFiles that are missing, a layout that transformers does not know: it answers with any exception.
        first = str(error).splitlines()[0][:200] if str(error) else "no message"
        raise PlaygroundError(
            f"The files of {target.name} hold no MTP layers that transformers can load, though its config names them "
            f"({type(error).__name__}: {first}). Publishers often leave these weights out. {instead}"
        ) from error
    network = (NativeLayer if mtp.num_mtp_layers == 1 else NativeLayers)(mtp.eval())
    return LoadedDrafter(network, f"{target.name}'s own MTP", target.weights)


def _name_layers(config: PretrainedConfig) -> int:
    """Says how many layers the target has in its config, in the words that MtpModel reads, and returns that."""
    count = next((count for key in COUNTS if (count := getattr(config, key, None))), 0)
    if count and not getattr(config, "num_mtp_layers", None):
        config.num_mtp_layers = count
        for kinds in ("layer_types", "mlp_layer_types"):
            if getattr(config, kinds, None):
                setattr(config, f"mtp_{kinds}", getattr(config, kinds)[-1:] * count)
    return count
