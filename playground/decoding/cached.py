"""A causal language model with its KV cache, fed forward and rolled back; target and assistant are both used this
way."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionCacheLayerMixin
from transformers.modeling_outputs import BaseModelOutput

from playground.errors import PlaygroundError
from playground.models.footprint import cache_bytes
from playground.models.quantised import precision

FULL, SLIDING = "full_attention", "sliding_attention"  # transformers' names of the kinds of layers


class CachedModel:
    """Holds the KV cache of one text. `length` is the number of its tokens that the cache holds.

    `hidden`: (tokens, layers x width), hidden states of the last pass's tokens, those of each layer that a drafter
    watches beside each other; those that were rolled back are gone.
    """

    hidden: torch.Tensor

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.length = 0
        self._watched: tuple[int, ...] = ()
        self._spare = 0  # entries that sliding-window layers hold beyond those that the model reads again
        self._cache = DynamicCache(config=model.config)
        self._cache.activate_past_recording()
        self._fed: list[int] = []  # the tokens since the last call of `keep`
        self._states: list[torch.Tensor] = []  # the recurrent ones before them

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def context_limit(self) -> int:
        """The longest text, in tokens, that the model can take; endless where its config names none (ALiBi, Mamba)."""
        config = self.model.config.get_text_config(decoder=True)
        return getattr(config, "max_position_embeddings", None) or sys.maxsize

    @property
    def takes_trees(self) -> bool:
        """Whether one branch of a tree can be kept and the others dropped: a recurrent state has seen them all."""
        return {type(layer) for layer in self._cache.layers} <= {DynamicLayer, DynamicSlidingWindowLayer}

    @property
    def sheds(self) -> bool:
        """Whether a roll-back drops more than what it is asked to, so that none can go back behind the one before."""
        return {type(layer) for layer in self._cache.layers} != {DynamicLayer}

    @property
    def vocab_size(self) -> int:
        return self.model.config.get_text_config(decoder=True).vocab_size

    @property
    def cache_bytes(self) -> int:
        return cache_bytes(self._cache)

    def first_layers(self, layers: PreTrainedModel) -> CachedModel:
        """The same text for the first of this model's layers, on the KV cache that it has of them. What they are fed is
        entered there, and must be rolled back before this model goes on; `length` is the other's own."""
        view = copy.copy(self)
        view.model, view._watched, view._fed = layers, (), []
        view._cache = Cache(layers=self._cache.layers[: len(layers.get_decoder().layers)])
        return view

    def watch(self, layers: Sequence[int]) -> None:
        """Keeps hidden states from now on: what comes out of each of these layers, counted from 0; -1 is what comes out
        of the last, behind the final norm."""
        self._watched = tuple(layers)

    def share_kv(self) -> None:
        """From now on sliding windows hold two entries more, so that `shared_kv` reaches as far back as it says."""
        self._spare = 2

    @property
    def shared_kv(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of the last layer of each kind that has its own ("full_attention", "sliding_attention"), both
        (1, heads, entries, head dimension), for the text that the cache holds.

        They are transformers' `shared_kv_states`; of a sliding window the last window + 1 entries, which are those that
        the masks of Gemma 4's assistants let through behind the prompt.
        """
        return {
            SLIDING if isinstance(layer, DynamicSlidingWindowLayer) else FULL: (layer.keys, layer.values)
            for layer in self._cache.layers
        }

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], keep: int, branches: Sequence[int] | None = None) -> torch.Tensor:
        """Feeds the next tokens of the text.

        Args:
            ids: the tokens behind those that the cache holds.
            keep: for how many of the last of them logits are wanted.
            branches: where the last of `ids` are a tree, for each of them the index of the one that it stands behind,
                -1 for the token before them all.

        Returns:
            Logits of shape (keep, vocabulary), float32, on the model's device.

        Raises:
            PlaygroundError: they are not numbers.
        """
        tree = self._tree(len(ids) - len(branches), branches) if branches else {}
        with self._watching():
            logits = self.model(
                input_ids=torch.tensor([ids], device=self.device),
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=keep,
                **tree,
            ).logits
        if logits[0, -1].isnan().any():
            raise PlaygroundError(
                f"What comes out of {type(self.model).__name__} is not numbers: its weights are damaged, or its values "
                f"do not fit into {precision(self.model)}. Fetch it again, or choose a dtype of "
                "wider range: bfloat16 or float32."
            )
        self.length += len(ids)
        self._fed += ids
        return logits[0].float()

    def _tree(self, before: int, branches: Sequence[int]) -> dict[str, Any]:
        """Masks and positions of `before` tokens and a tree behind them: a token of it sees the text and its own
        branch, and stands as many places behind the text as that branch is long."""
        start = self.length + before
        ancestors = ancestry(branches)
        sees = torch.ones(before + len(branches), start + len(branches), dtype=torch.bool).tril(self.length)
        sees[before:, start:] = ancestors
        places = torch.cat([torch.arange(start), start - 1 + ancestors.sum(1)])
        masks = {}
        for layer in self._cache.layers:
            if isinstance(layer, DynamicSlidingWindowLayer):
                within = sees & (places[self.length :, None] - places < layer.sliding_window)
                masks[SLIDING] = within[:, max(0, self.length - layer.sliding_window + 1) :]
            else:
                masks[FULL] = sees
        masks = {kind: additive(mask, self.model.dtype).to(self.device) for kind, mask in masks.items()}
        return {
            "attention_mask": masks if len(masks) > 1 else next(iter(masks.values())),
            "position_ids": places[None, self.length :].to(self.device),
        }

    @contextmanager
    def _watching(self) -> Iterator[None]:
        # `output_hidden_states` would leave a hook on every layer, which slows all later passes, those of the standard
        # lane too.
        seen: dict[int, torch.Tensor] = {}

        def see(layer: int, output: torch.Tensor | BaseModelOutput) -> None:
            seen[layer] = (output if isinstance(output, torch.Tensor) else output[0])[0]

        decoder = self.model.get_decoder()
        hooks = [
            (decoder if layer == -1 else decoder.layers[layer]).register_forward_hook(
                lambda module, inputs, output, layer=layer: see(layer, output)
            )
            for layer in self._watched
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        if hooks:
            self.hidden = torch.cat([seen[layer] for layer in self._watched], dim=-1)

    @torch.inference_mode()
    def keep_branch(self, length: int, path: Sequence[int]) -> None:
        """Rolls the cache back to the first `length` tokens and, of those behind them, the ones with the indices
        `path`."""
        if list(path) != list(range(len(path))):  # a chain, and a tree's first branch, lie in their places already
            behind = self.length - length
            index = torch.tensor(path, device=self.device)
            states = [state for layer in self._cache.layers for state in (layer.keys, layer.values)]
            for state in [*states, *([self.hidden[None, None]] if self._watched else [])]:
                tail = state[:, :, -behind:]  # counted from the end: a sliding window lacks the text's start
                tail[:, :, : len(path)] = tail[:, :, index]
        self.keep(length + len(path))

    @torch.inference_mode()
    def keep(self, length: int) -> None:
        """Rolls the cache back to the first `length` tokens. To be called after every forward pass, also where nothing
        is dropped: sliding-window layers shed what has left their window only here. A recurrent state has no way back:
        it is put to what it was at the last call, and what stands goes through the model again."""
        states = self._recurrent_states()
        dropped = self.length - length
        again = self._fed[: len(self._fed) - dropped] if states and dropped else []
        sliding = [layer for layer in self._cache.layers if isinstance(layer, DynamicSlidingWindowLayer)]
        for layer in sliding:  # to the model it makes no difference: a layer hands it what its masks tell, and no more
            layer.sliding_window += self._spare
        self._cache.crop(-dropped - len(again))
        for layer in sliding:
            layer.sliding_window -= self._spare
        if states and dropped:
            for i, state in enumerate(states):
                state.copy_(self._states[i]) if self._states else state.zero_()
        if again:
            ids = torch.tensor([again], device=self.device)
            self.model(input_ids=ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
            self._cache.crop(0)
        if self._watched:
            self.hidden = self.hidden[: len(self.hidden) - dropped]
        self.length = length
        self._fed = []
        self._states = [state.clone() for state in states]

    def _recurrent_states(self) -> list[torch.Tensor]:
        layers = [layer for layer in self._cache.layers if isinstance(layer, LinearAttentionCacheLayerMixin)]
        return [state for layer in layers for state in layer.recurrent_states.values() if state is not None]


def additive(sees: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(queries, keys), true where a query sees a key, to the mask that a model adds to its attention scores."""
    return torch.zeros(sees.shape, dtype=dtype).masked_fill(~sees, torch.finfo(dtype).min)[None, None]


def ancestry(branches: Sequence[int]) -> torch.Tensor:
    """(k, k), true where token j is token i or stands somewhere before it on its branch."""
    sees = torch.eye(len(branches), dtype=torch.bool)
    for i, parent in enumerate(branches):
        if parent >= 0:
            sees[i] |= sees[parent]
    return sees
