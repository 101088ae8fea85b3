"""The eager runner: a pass is a plain call of the model, on a cache that grows."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from playground.decoding.runners.base import BlockNetwork, BlockRunner, LayerRunner, RecursiveLayer
from playground.decoding.runners.buffers import additive, ancestry, tree_masks
from playground.decoding.runners.cache import SequenceCache
from playground.decoding.runners.capture import HiddenCapture
from playground.decoding.runners.eager_network import EagerBlock, EagerLayer
from playground.decoding.transfer import to_device
from playground.errors import PlaygroundError
from playground.models.attention import context_of, layers_of
from playground.models.quantised import precision
from playground.models.sizing import cache_bytes


class ModelRunner:
    """What the runners of one of transformers' models share; `Runner` documents the members. By default a pass needs no
    preparation and computes no padding, and what drafts from hidden states is run eagerly."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.length = 0
        self.passes = 0

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def vocab_size(self) -> int:
        return self.model.config.get_text_config(decoder=True).vocab_size

    @property
    def context_limit(self) -> int:
        return context_of(self.model.config)

    def prepare(self) -> None:
        pass

    def computed(self, tokens: int) -> int:
        return tokens

    def not_numbers(self) -> PlaygroundError:
        return PlaygroundError(
            f"The logits of {type(self.model).__name__} are not numbers (NaN): its weights are damaged, or its values "
            f"overflow in {precision(self.model)}. Download it again, or choose a dtype of wider range: bfloat16 or "
            "float32."
        )

    def layer(self, layer: RecursiveLayer) -> LayerRunner:
        return EagerLayer(layer)

    def block(self, network: BlockNetwork) -> BlockRunner:
        return EagerBlock(network)


class EagerRunner(ModelRunner):
    """Runs any of transformers' causal language models; `Runner` documents the members."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self._cache = SequenceCache.empty(model.config)
        self._capture = HiddenCapture()
        self._takes_positions = "position_ids" in signature(model.forward).parameters
        self._seam = seam(model.config)
        self._feeds_again = hasattr(model.config, "original_max_position_embeddings")  # as in `generate()` of Phi-3
        self._text: list[int] = []  # the tokens in the cache, where they may be fed again

    @property
    def recurrent(self) -> bool:
        return self._cache.recurrent

    @property
    def takes_trees(self) -> bool:
        return self._takes_positions and self._cache.takes_trees  # branches need explicit positions

    @property
    def discards_old(self) -> bool:
        return self._cache.discards_old

    @property
    def cache_bytes(self) -> int:
        return cache_bytes(self._cache.states)

    @property
    def hidden(self) -> torch.Tensor:
        return self._capture.hidden

    @property
    def shared_kv(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        return self._cache.shared_kv

    def watch(self, layers: Sequence[int]) -> None:
        self._capture.watch(self.model, layers)

    def share_kv(self) -> None:
        self._cache.share_kv()

    def first_layers(self, layers: PreTrainedModel) -> EagerRunner:
        view = copy.copy(self)
        view.model, view.passes = layers, 0
        view._cache = self._cache.first_layers(len(layers_of(layers) or ()))
        view._capture = HiddenCapture()
        return view

    @torch.inference_mode()
    def forward(self, ids: Sequence[int] | torch.Tensor, keep: int, tree: Sequence[int] | None = None) -> torch.Tensor:
        again = list(self._text) if self._feeds_again and self._crosses(len(ids), tree) else []
        if again:
            self._cache.clear()
        # Tokens that a chain has left on the device are read only where they may be fed again.
        known = _listed(ids) if self._feeds_again or self.recurrent else []
        with self._capture.during_pass():
            start = self.length - len(again)
            inputs = self._tree_inputs(start, len(again) + len(ids), tree) if tree else {}
            logits = self._pass([*again, *known] if again else ids, keep, start, **inputs)
        self._capture.drop_first(len(again))
        prompt = self.length == 0 and keep == 1
        self._text += known
        self.length += len(ids)
        self._cache.append(known)
        if prompt:  # a recurrent state returns to here, so that no rejected draft feeds the prompt again
            self._cache.save()
        return logits.float()

    @torch.inference_mode()
    def commit(self, length: int, path: Sequence[int] = ()) -> None:
        if not self.length:  # an assistant that has not drafted yet
            return
        tail = self.length - length
        dropped = tail - len(path)
        if list(path) != list(range(len(path))):  # a chain, and a tree's first branch, are in place already
            index = to_device(path, self.device)
            self._cache.gather(tail, index)
            self._capture.gather(tail, index)
        self._capture.drop(dropped)
        again = self._cache.roll_back(dropped)
        if self._text:
            self._text[length:] = [self._text[length + i] for i in path]
        self.length = length + len(path)
        if again:
            self._pass(again, keep=1, start=self.length - len(again))
            self._cache.settle()
        self._cache.save()

    def _pass(self, ids: Sequence[int] | torch.Tensor, keep: int, start: int, **inputs: Any) -> torch.Tensor:
        """Returns the logits of the last `keep` tokens, (keep, vocabulary), in the model's own dtype. `start`: the
        position of the first token."""
        self.passes += 1
        tokens = ids[None] if isinstance(ids, torch.Tensor) else to_device([ids], self.device)
        if self._takes_positions and not inputs:  # some architectures would count them wrongly after a cache
            inputs = {"position_ids": torch.arange(start, start + len(ids), device=self.device)[None]}
        out = self.model(
            input_ids=tokens, past_key_values=self._cache.states, use_cache=True, logits_to_keep=keep, **inputs
        )
        return out.logits[0, -keep:]  # not every architecture knows `logits_to_keep`

    def _crosses(self, tokens: int, tree: Sequence[int] | None) -> bool:
        """True where a pass over `tokens` crosses the seam. Its last position decides, and not the number of tokens in
        the cache: the branches of a tree share positions."""
        beside = len(tree) - int(ancestry(tree).sum(1).max()) if tree else 0
        return self.length <= self._seam < self.length + tokens - beside

    def _tree_inputs(self, start: int, tokens: int, tree: Sequence[int]) -> dict[str, Any]:
        """Returns the model's inputs for a pass over `tokens`, the last of which are a tree. `start`: the position of
        the first token."""
        sees, positions = tree_masks(start, tokens - len(tree), tree, self._cache.windows)
        masks = {kind: to_device(additive(mask, self.model.dtype), self.device) for kind, mask in sees.items()}
        return {
            "attention_mask": masks if len(masks) > 1 else next(iter(masks.values())),
            "position_ids": to_device(positions[None], self.device),
        }


def _listed(ids: Sequence[int] | torch.Tensor) -> Sequence[int]:
    return ids.tolist() if isinstance(ids, torch.Tensor) else ids


def seam(config: PretrainedConfig) -> int:
    """Returns the length in tokens at which the factors of rotary positions change (LongRoPE, Ding et al. 2024), as in
    Phi-3-128k; `sys.maxsize` for other models. A pass rotates all of its tokens by the factors of its last one, so no
    draft may cross it. At the crossing, `generate()` feeds Phi-3 the whole text again, and so does the runner."""
    text = config.get_text_config(decoder=True)
    rope = getattr(text, "rope_parameters", None) or {}
    return rope["original_max_position_embeddings"] if rope.get("rope_type") == "longrope" else sys.maxsize
