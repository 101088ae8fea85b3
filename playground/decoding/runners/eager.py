"""The eager runners of models, of layers and of block networks: a pass is a plain call, on a cache that grows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from playground.decoding.runners.base import BlockRunner, LayerRunner, RecursiveLayer, Runner, in_place
from playground.decoding.runners.buffers import additive, ancestry, tree_masks
from playground.decoding.runners.cache import SequenceCache, growing_cache
from playground.decoding.runners.capture import hidden_states, watched_modules, watching
from playground.decoding.transfer import to_device
from playground.models.attention import layers_of
from playground.models.networks.dflash import DFlash
from playground.models.sizing import cache_bytes


class EagerLayer:
    """Runs any layer that drafts recursively; `LayerRunner` documents the members."""

    def __init__(self, layer: RecursiveLayer) -> None:
        self._layer = layer
        self._cache = growing_cache(layer.new_cache())
        self._cache.activate_past_recording()
        self._entries = 0  # of the text; entry i is for the token at position i + 1 and the hidden state at position i
        self._window = getattr(self._cache.layers[0], "sliding_window", None)
        self._out: torch.Tensor  # (1, rows, width), the output of the last pass
        self._sees: torch.Tensor  # (rows, draft entries), which of the draft's entries are ancestors of each row
        self._positions: torch.Tensor  # (entries,), positions of text and draft
        self._depth = 0  # depth of the draft

    @property
    def cache_bytes(self) -> int:
        return cache_bytes(self._cache)

    def read(self, ids: Sequence[int], hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._out = self._layer(to_device([ids], hidden.device), hidden[None], self._cache)[:, -1:]
        self._entries += len(ids)
        self._sees = torch.zeros(1, 0, dtype=torch.bool)
        self._depth = 0
        self._positions = torch.arange(self._entries)
        return self._layer.logits(self._out[0]), self._out[0]

    def grow(self, ids: Sequence[int] | torch.Tensor, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        device, n = self._out.device, len(ids)
        self._sees = torch.cat([self._sees.index_select(0, torch.tensor(rows)), torch.eye(n, dtype=torch.bool)], dim=1)
        self._depth += 1
        position = self._entries - 1 + self._depth  # position of all new entries
        self._positions = torch.cat([self._positions, torch.full((n,), position)])
        sees = torch.cat([torch.ones(n, self._entries, dtype=torch.bool), self._sees], dim=1)
        if self._window:
            sees = (sees & (position - self._positions < self._window))[:, -(self._window - 1 + n) :]
        mask = to_device(additive(sees, self._out.dtype), device)
        positions = torch.full((1, n), position, device=device)
        tokens, hidden = to_device(ids, device)[None], self._out.index_select(1, to_device(rows, device))
        self._out = self._layer(tokens, hidden, self._cache, positions, mask)
        return self._layer.logits(self._out[0]), self._out[0]

    def end(self) -> None:
        self._cache.crop(-self._sees.shape[1])

    def rewind(self, entries: int) -> int:
        if self._window or entries < 1:
            return 0
        self._cache.crop(entries - self._entries)
        self._entries = entries
        return entries


class EagerBlock:
    """Runs any network that drafts a block in one pass; `BlockRunner` documents the members."""

    def __init__(self, network: DFlash) -> None:
        self._network = network
        self._cache = network.new_cache()

    @property
    def cache_bytes(self) -> int:
        return cache_bytes(self._cache)

    def read(self, token: int, hidden: torch.Tensor) -> torch.Tensor:
        return self._network(token, hidden, self._cache)

    def end(self) -> None:
        self._cache.crop(-self._network.block_size)

    def rewind(self, entries: int) -> int:
        if any(getattr(layer, "sliding_window", None) for layer in self._cache.layers):
            return 0
        held = int(self._cache.get_seq_length())
        kept = min(entries, held)
        if held:
            self._cache.crop(kept - held)
        return kept


def listed(ids: Sequence[int] | torch.Tensor) -> Sequence[int]:
    """Returns token ids on the host, which waits for those that a drafter has left on the device."""
    return ids.tolist() if isinstance(ids, torch.Tensor) else ids


class EagerRunner(Runner):
    """Runs any of transformers' causal language models; `Runner` documents the members."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self._cache = SequenceCache.empty(model.config)
        self._watched: list[nn.Module] = []
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
    def shared_kv(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        return self._cache.shared_kv

    def watch(self, layers: Sequence[int]) -> None:
        self._watched = watched_modules(self.model, layers)

    def share_kv(self) -> None:
        self._cache.share_kv()

    def layer(self, layer: RecursiveLayer) -> LayerRunner:
        return EagerLayer(layer)

    def block(self, network: DFlash) -> BlockRunner:
        return EagerBlock(network)

    def first_layers(self, layers: PreTrainedModel) -> EagerRunner:
        view = self._view(layers)
        view._cache, view._watched = self._cache.first_layers(len(layers_of(layers) or ())), []
        return view

    @torch.inference_mode()
    def forward(self, ids: Sequence[int] | torch.Tensor, keep: int, tree: Sequence[int] | None = None) -> torch.Tensor:
        again = list(self._text) if self._feeds_again and self._crosses(len(ids), tree) else []
        if again:
            self._cache.clear()
        # Tokens that a chain has left on the device are read only where they may be fed again.
        known = listed(ids) if self._feeds_again or self.recurrent else []
        seen: dict[int, torch.Tensor] = {}
        with watching(self._watched, seen.__setitem__):
            start = self.length - len(again)
            inputs = self._tree_inputs(start, len(again) + len(ids), tree) if tree else {}
            logits = self._pass([*again, *known] if again else ids, keep, start, **inputs)
        hidden = hidden_states(seen)
        self._hidden = None if hidden is None else hidden[len(again) :]
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
        if not in_place(path):
            self._cache.gather(tail, to_device(path, self.device))
        again = self._cache.roll_back(tail - len(path))
        if self._text:
            self._text[length:] = [self._text[length + i] for i in path]
        self._roll_back(length, path)
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
        others = len(tree) - int(ancestry(tree).sum(1).max()) if tree else 0
        return self.length <= self._seam < self.length + tokens - others

    def _tree_inputs(self, start: int, tokens: int, tree: Sequence[int]) -> dict[str, Any]:
        """Returns the model's inputs for a pass over `tokens`, the last of which are a tree. `start`: the position of
        the first token."""
        sees, positions = tree_masks(start, tokens - len(tree), tree, self._cache.windows)
        masks = {kind: to_device(additive(mask, self.model.dtype), self.device) for kind, mask in sees.items()}
        return {
            "attention_mask": masks if len(masks) > 1 else next(iter(masks.values())),
            "position_ids": to_device(positions[None], self.device),
        }


def seam(config: PretrainedConfig) -> int:
    """Returns the length in tokens at which the factors of rotary positions change (LongRoPE, Ding et al. 2024), as in
    Phi-3-128k; `sys.maxsize` for other models. A pass rotates all of its tokens by the factors of its last one, so no
    draft may cross it. At the crossing, `generate()` feeds Phi-3 the whole text again, and so does the runner."""
    text = config.get_text_config(decoder=True)
    rope = getattr(text, "rope_parameters", None) or {}
    return rope["original_max_position_embeddings"] if rope.get("rope_type") == "longrope" else sys.maxsize
