"""A causal language model with its KV cache, fed forward and rolled back; target and assistant are both used this
way."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput


class CachedModel:
    """Holds the KV cache of one text. `length` is the number of its tokens that the cache holds.

    `hidden`: (tokens, width), the last hidden states, behind the final norm, of the last pass's tokens; those that were
    rolled back are gone. Kept only where a drafter that reads them has set `keep_hidden`.
    """

    keep_hidden = False
    hidden: torch.Tensor

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.length = 0
        self._cache = DynamicCache(config=model.config)
        self._cache.activate_past_recording()

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def context_limit(self) -> int:
        """The longest text, in tokens, that the model can take; endless where its config names none (ALiBi, Mamba)."""
        config = self.model.config.get_text_config(decoder=True)
        return getattr(config, "max_position_embeddings", None) or sys.maxsize

    @property
    def vocab_size(self) -> int:
        return self.model.config.get_text_config(decoder=True).vocab_size

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Feeds the next tokens of the text.

        Args:
            ids: the tokens behind those that the cache holds.
            keep: for how many of the last of them logits are wanted.

        Returns:
            Logits of shape (keep, vocabulary), float32, on the model's device.
        """
        with self._watched():
            logits = self.model(
                input_ids=torch.tensor([ids], device=self.device),
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=keep,
            ).logits
        self.length += len(ids)
        return logits[0].float()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        # `output_hidden_states` would leave a hook on every layer, which slows all later passes, those of the standard
        # lane too.
        if not self.keep_hidden:
            yield
            return
        hook = self.model.base_model.register_forward_hook(self._see)
        try:
            yield
        finally:
            hook.remove()

    def _see(self, module: nn.Module, inputs: object, output: BaseModelOutput) -> None:
        self.hidden = output.last_hidden_state[0]

    def keep(self, length: int) -> None:
        """Rolls the cache back to the first `length` tokens. To be called after every forward pass, also where nothing
        is dropped: sliding-window layers shed what has left their window only here."""
        self._cache.crop(length - self.length)
        if self.keep_hidden:
            self.hidden = self.hidden[: len(self.hidden) - (self.length - length)]
        self.length = length
