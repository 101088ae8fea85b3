"""DFlash: a few layers that see the target's hidden states draft a whole block of tokens in one pass.

Chen et al. 2026, "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036). The block is the text's
last token and, for each place to draft, a mask token. Its tokens see each other, and the text by its features alone:
hidden states of several of the target's layers, projected to one width, from which each layer makes keys and values.
Embedding and head are the target's.

z-lab's drafters have Qwen3's layers. transformers' one DFlash class, the assistant of Muse Glimmer, has the same: it is
the network here, for both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel, PreTrainedModel

from playground.errors import PlaygroundError
from playground.models.load import LoadedDrafter, LoadedModel, check_memory, explained
from playground.models.networks.made_for import REMEDY, check_made_for, fetch
from playground.progress import Progress

ZLAB, TRANSFORMERS = "DFlashDraftModel", "MuseGlimmerAssistantModel"  # architectures, in a config's words
NAMES = {r"^fc\.": "encoder.fc.", r"^hidden_norm\.": "encoder.output_norm_enc."}  # z-lab's weights, in the class's


class DFlash(nn.Module):
    """Args:
    base: the layers, on the target's device and in its dtype.
    target: whose embedding and head are used; shared, not copied.
    causal: the kinds of layers in which a token of the block sees only those before it.
    """

    def __init__(self, base: PreTrainedModel, target: PreTrainedModel, causal: frozenset[str]) -> None:
        super().__init__()
        self.base = base
        self.block_size: int = base.config.block_size
        text = target.config.get_text_config(decoder=True)
        # Of the target, from 0: what each puts out; of the last, behind the final norm.
        self.layers = [-1 if i == text.num_hidden_layers - 1 else i for i in base.config.target_layer_ids]
        self.draft_ids = torch.arange(text.vocab_size, device=target.device)
        self._causal = causal
        object.__setattr__(self, "_embedding", target.get_input_embeddings())  # no submodules: not this network's own
        object.__setattr__(self, "_head", target.get_output_embeddings())

    def new_cache(self) -> DynamicCache:
        return DynamicCache()  # it keeps all, for the masks hide what has left a window

    def forward(self, token: int, hidden: Tensor, cache: Cache) -> Tensor:
        """Args:
            token: the text's last.
            hidden: (places, layers x width), the target's hidden states at the places before it that the cache lacks.
            cache: afterwards it holds their entries, and behind them those of the block.

        Returns:
            (block_size - 1, vocabulary), logits for the places behind the token.
        """
        config = self.base.config
        known = cache.get_seq_length() + len(hidden)
        places = torch.arange(cache.get_seq_length(), known + self.block_size, device=hidden.device)
        block = torch.full((1, self.block_size), config.mask_token_id, device=hidden.device)
        block[0, 0] = token
        # The plain embedding: what a target's own class does to it (scales, norms) was not there in training.
        noise = nn.functional.embedding(block, self._embedding.weight).to(self.base.dtype)
        noise = noise * getattr(config, "input_embedding_scale", 1.0)
        out = self.base(
            noise_embeds=noise,
            context_hidden_states=hidden[None],
            attention_mask={kind: self._sees(kind, known, hidden.device) for kind in set(config.layer_types)},
            position_ids=places[None],
            past_key_values=cache,
        )
        return self._head(out.last_hidden_state[0, 1:])

    def _sees(self, kind: str, known: int, device: torch.device) -> Tensor | None:
        """(1, 1, block, places), whether a token of the block sees each of the text's `known` places and of the
        block's own; None where it sees all."""
        windowed, causal = kind == "sliding_attention", kind in self._causal
        if not windowed and not causal:
            return None
        places = torch.arange(known + self.block_size, device=device)
        back = places[known:, None] - places
        near = back < self.base.config.sliding_window if windowed else torch.ones_like(back, dtype=torch.bool)
        return (near & (back >= 0) if causal else near)[None, None]


def load_dflash(name: str, target: LoadedModel, progress: Callable[[Progress], None]) -> LoadedDrafter:
    """Raises:
    PlaygroundError: there is no such drafter, it is none of DFlash's first kind, it was made for another target, or
    its files are broken.
    """
    weights, given = fetch(name, "A DFlash drafter", progress)
    architecture = next(iter(given.get("architectures") or []), "no architecture")
    given |= given.get("dflash_config") or {}
    if architecture not in (ZLAB, TRANSFORMERS) or not {"target_layer_ids", "mask_token_id"} <= given.keys():
        raise PlaygroundError(
            f"{weights.name} is no DFlash drafter of a kind known here: its config.json names {architecture}, and it "
            f"should be {ZLAB} or {TRANSFORMERS}, with target_layer_ids and mask_token_id. DFlash 2 is another network."
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
        base, report = MuseGlimmerAssistantModel.from_pretrained(
            weights.folder,
            config=config,
            key_mapping=NAMES,
            dtype=target.model.dtype,
            device_map=target.model.device,
            use_safetensors=True,
            output_loading_info=True,
        )
    odd = sorted({*report["missing_keys"], *report["unexpected_keys"]})
    if odd:
        raise PlaygroundError(
            f"The weights of {weights.name} are not those of DFlash's network: {len(odd)} are missing or unknown, such "
            f"as {odd[0]}. Fetch it again, or choose another drafter."
        )
    network = DFlash(base, target.model, _causal(architecture, given)).eval().requires_grad_(False)
    return LoadedDrafter(network, weights.name, weights.origin)


def _config(given: dict[str, Any]) -> MuseGlimmerAssistantConfig:
    """The class's config from either kind of config.json, where `null` stands for the default."""
    layer_types = given.get("layer_types") or ["full_attention"] * given["num_hidden_layers"]
    known = {key: value for key, value in given.items() if value is not None and key != "model_type"}
    # Muse Glimmer's own special tokens are the defaults, and other vocabularies may lack them.
    without = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    return MuseGlimmerAssistantConfig.from_dict(known | without | {"layer_types": layer_types})


def _causal(architecture: str, given: dict[str, Any]) -> frozenset[str]:
    """z-lab's layers with a window are causal, and the others are not, where the config does not say it of all."""
    if given.get("is_causal") is not None:
        return frozenset(["full_attention", "sliding_attention"] if given["is_causal"] else [])
    return frozenset(["sliding_attention"] if architecture == ZLAB else [])


def _check_reaches(config: MuseGlimmerAssistantConfig, name: str, target: LoadedModel) -> None:
    text = target.model.config.get_text_config(decoder=True)
    for what, highest, there in (
        ("hidden states of the target's layer", max(config.target_layer_ids), text.num_hidden_layers),
        ("the mask token", config.mask_token_id, text.vocab_size),
    ):
        if highest >= there:
            raise PlaygroundError(
                f"{name} cannot draft for {target.name}: it needs {what} {highest:,}, counted from 0, and there are "
                f"{there:,}. {REMEDY}"
            )
