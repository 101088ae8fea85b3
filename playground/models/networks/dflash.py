"""DFlash: a few layers that read the target's hidden states and draft a whole block of tokens in one pass.

Chen et al. 2026, "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036). The block is the last
token of the sequence and a mask token for each position to draft. Block tokens attend to each other, and to the
sequence through its features: hidden states of several target layers, projected to one width, from which each layer
computes keys and values. Embedding and head are the target's.

z-lab's drafters have Qwen3's layers. So has transformers' one DFlash class, the assistant of Muse Glimmer, which is the
network here for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel, PreTrainedModel

from playground.errors import PlaygroundError
from playground.models.attention import attend_by_groups
from playground.models.load import LoadedDrafter, LoadedModel, check_memory, explained
from playground.models.networks.made_for import REMEDY, check_made_for, fetch
from playground.progress import Progress

ZLAB, TRANSFORMERS = "DFlashDraftModel", "MuseGlimmerAssistantModel"  # architectures, as config.json names them
NAMES = {r"^fc\.": "encoder.fc.", r"^hidden_norm\.": "encoder.output_norm_enc."}  # z-lab's weight names to the class's


class DFlash(nn.Module):
    """Args:
    base: the layers, on the target's device and in its dtype.
    target: its embedding and head are used; shared, not copied.
    causal: the kinds of layers in which a block token attends only to earlier ones.
    """

    _embedding: nn.Embedding
    _head: nn.Module

    def __init__(self, base: PreTrainedModel, target: PreTrainedModel, causal: frozenset[str]) -> None:
        super().__init__()
        attend_by_groups(base, target.device)
        self.base = base
        self.config = base.config
        self.block_size: int = base.config.block_size
        text = target.config.get_text_config(decoder=True)
        # Target layers whose outputs are read, from 0; of the last layer, the output after the final norm.
        self.layers = [-1 if i == text.num_hidden_layers - 1 else i for i in base.config.target_layer_ids]
        self.draft_ids = torch.arange(text.vocab_size, device=target.device)
        self._causal = causal
        object.__setattr__(self, "_embedding", target.get_input_embeddings())  # not submodules: they are the target's
        object.__setattr__(self, "_head", target.get_output_embeddings())

    def new_cache(self) -> DynamicCache:
        return DynamicCache()  # keeps all entries; the masks apply sliding windows

    def forward(self, token: int, hidden: Tensor, cache: Cache) -> Tensor:
        """Args:
            token: the last of the sequence.
            hidden: (positions, layers x width), the target's hidden states at the earlier positions that the cache
                lacks.
            cache: afterwards holds the entries of these positions, then those of the block.

        Returns:
            (block_size - 1, vocabulary), logits for the positions after the token.
        """
        start, known = cache.get_seq_length(), cache.get_seq_length() + len(hidden)
        positions = torch.arange(known + self.block_size, device=hidden.device)
        masks = {kind: self.sees(kind, positions[known:], positions) for kind in set(self.config.layer_types)}
        last = torch.full((1,), token, device=hidden.device)
        return self.drafted(last, hidden, cache, positions[start:], masks)

    def drafted(
        self, token: Tensor, hidden: Tensor, cache: Cache, positions: Tensor, masks: Mapping[str, Tensor | None]
    ) -> Tensor:
        """The same with everything on the device.

        Args:
            token: (1,).
            positions: (positions + block_size,), those of the hidden states and those of the block.
            masks: for each kind of layer what `sees` returns.
        """
        block = torch.cat([token, token.new_full((self.block_size - 1,), self.config.mask_token_id)])
        # The plain embedding: training left out what some target classes do to it (scales, norms).
        noise = nn.functional.embedding(block[None], self._embedding.weight).to(self.base.dtype)
        noise = noise * getattr(self.config, "input_embedding_scale", 1.0)
        out = self.base(
            noise_embeds=noise,
            context_hidden_states=hidden[None],
            attention_mask=dict(masks),
            position_ids=positions[None],
            past_key_values=cache,
        )
        return self._head(out.last_hidden_state[0, 1:])

    def sees(self, kind: str, block: Tensor, positions: Tensor) -> Tensor | None:
        """(1, 1, block, entries), whether a block token attends to each entry of the cache; None if it attends to all.

        Args:
            block: (block,), the positions of the block.
            positions: (entries,), those of all entries, the block's own included.
        """
        windowed, causal = kind == "sliding_attention", kind in self._causal
        if not windowed and not causal:
            return None
        back = block[:, None] - positions
        near = back < self.config.sliding_window if windowed else torch.ones_like(back, dtype=torch.bool)
        return (near & (back >= 0) if causal else near)[None, None]


def load_dflash(name: str, target: LoadedModel, progress: Callable[[Progress], None]) -> LoadedDrafter:
    """Raises:
    PlaygroundError: no such drafter, not DFlash's first version, trained for another target, or broken files.
    """
    weights, given = fetch(name, "A DFlash drafter", progress)
    architecture = next(iter(given.get("architectures") or []), "no architecture")
    given |= given.get("dflash_config") or {}
    if architecture not in (ZLAB, TRANSFORMERS) or not {"target_layer_ids", "mask_token_id"} <= given.keys():
        raise PlaygroundError(
            f"{weights.name} is not a supported DFlash drafter: its config.json names {architecture}. Choose one with "
            f"{ZLAB} or {TRANSFORMERS}, target_layer_ids and mask_token_id. DFlash 2 is not supported."
        )
    text = target.model.config.get_text_config(decoder=True)
    sizes = [
        ("{} layers", given.get("num_target_layers"), text.num_hidden_layers),
        ("hidden states of {}", given.get("hidden_size"), text.hidden_size),
        ("a vocabulary of {}", given.get("vocab_size"), text.vocab_size),
    ]
    check_made_for(weights.name, target.name, sizes)
    progress(Progress(f"Loading {weights.name}"))
    with explained(weights, target.model.device):
        check_memory(weights, target.model.dtype, target.model.device)
        config = _config(given)
        _check_reaches(config, weights.name, target)
        loaded: Any = MuseGlimmerAssistantModel.from_pretrained(
            weights.folder,
            config=config,
            key_mapping=NAMES,
            dtype=target.model.dtype,
            device_map=target.model.device,
            use_safetensors=True,
            output_loading_info=True,
        )
        base, report = loaded
    odd = sorted({*report["missing_keys"], *report["unexpected_keys"]})
    if odd:
        raise PlaygroundError(
            f"The weights of {weights.name} do not match DFlash's network: {len(odd)} are missing or unknown, such as "
            f"{odd[0]}. Fetch it again, or choose another drafter."
        )
    network = DFlash(base, target.model, _causal(architecture, given)).eval().requires_grad_(False)
    return LoadedDrafter(network, weights.name, weights.origin)


def _config(given: dict[str, Any]) -> MuseGlimmerAssistantConfig:
    """The class's config from either kind of config.json, in which `null` means the default."""
    layer_types = given.get("layer_types") or ["full_attention"] * given["num_hidden_layers"]
    known = {key: value for key, value in given.items() if value is not None and key != "model_type"}
    # The class defaults to Muse Glimmer's special tokens, which other vocabularies may lack.
    without = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    return MuseGlimmerAssistantConfig.from_dict(known | without | {"layer_types": layer_types})


def _causal(architecture: str, given: dict[str, Any]) -> frozenset[str]:
    """The causal kinds of layers. If the config does not say, z-lab's sliding-window layers are causal, others not."""
    if given.get("is_causal") is not None:
        return frozenset(["full_attention", "sliding_attention"] if given["is_causal"] else [])
    return frozenset(["sliding_attention"] if architecture == ZLAB else [])


def _check_reaches(config: MuseGlimmerAssistantConfig, name: str, target: LoadedModel) -> None:
    text = target.model.config.get_text_config(decoder=True)
    assert config.target_layer_ids is not None, "the class has defaults"
    for what, highest, there in (
        ("hidden states of the target's layer", max(config.target_layer_ids), text.num_hidden_layers),
        ("the mask token", config.mask_token_id, text.vocab_size),
    ):
        if highest >= there:
            raise PlaygroundError(
                f"{name} cannot draft for {target.name}: it needs {what} {highest:,}, counted from 0, and the target "
                f"has {there:,}. {REMEDY}"
            )
