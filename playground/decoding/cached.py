"""A causal language model with its KV cache, fed forward and rolled back; target and assistant are both used this
way."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from transformers import DynamicCache, PreTrainedModel


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
        out = self.model(
            input_ids=torch.tensor([ids], device=self.device),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=keep,
            output_hidden_states=self.keep_hidden,
        )
        self.length += len(ids)
        if self.keep_hidden:
            self.hidden = out.hidden_states[-1][0]
        return out.logits[0].float()

    def keep(self, length: int) -> None:
        """Rolls the cache back to the first `length` tokens. To be called after every forward pass, also where nothing
        is dropped: sliding-window layers shed what has left their window only here."""
        self._cache.crop(length - self.length)
        if self.keep_hidden:
            self.hidden = self.hidden[: len(self.hidden) - (self.length - length)]
        self.length = length
