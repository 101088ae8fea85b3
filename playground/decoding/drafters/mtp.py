"""A multi-token prediction layer drafts recursively from the target's hidden states.

DeepSeek-V3 (2024, section 2.2); models/mtp.py has the layer. Its KV cache holds an entry for each place of the text
that the target has been through. Entries drafted from the layer's own hidden states are dropped after each draft: the
target's verify pass gives the true ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from playground.decoding.cached import CachedModel
from playground.decoding.drafters.base import NOTHING, Draft, draft_tokens
from playground.decoding.drafters.hidden import DraftChoice, HiddenStates
from playground.decoding.sampling import Sampler
from playground.models.mtp import MtpLayer


class MtpDrafter:
    """Args:
    target: the target that the loop runs; it is told to keep its hidden states.
    eos_ids: tokens behind which drafting is pointless.
    """

    def __init__(self, layer: MtpLayer, target: CachedModel, sampler: Sampler, eos_ids: Collection[int]) -> None:
        self._layer = layer
        self._hidden = HiddenStates(target)
        self._choose = DraftChoice(layer.draft_ids, target.vocab_size, sampler)
        self._eos_ids = eos_ids
        self._cache = layer.new_cache()
        self._cache.activate_past_recording()
        self._entries = 0  # of the cache; entry i is for the token at place i + 1 and the hidden state at place i

    @torch.inference_mode()
    def propose(self, ids: Sequence[int], k: int, stop_below: float) -> Draft:
        hidden = self._hidden.take() if k > 0 else None
        if hidden is None:
            return NOTHING
        out = self._enter(ids[self._entries + 1 :], hidden[None])
        self._entries = len(ids) - 1

        def next_token(text: list[int]) -> tuple[int, float, torch.Tensor | None]:
            nonlocal out
            if len(text) > len(ids):
                out = self._enter(text[-1:], out[:, -1:])
            return self._choose(text, self._layer.logits(out[0, -1]))

        draft = draft_tokens(ids, k, stop_below, self._eos_ids, next_token)
        drafted = self._cache.get_seq_length() - self._entries
        self._cache.crop(-drafted)
        return draft

    def _enter(self, tokens: Sequence[int], hidden: torch.Tensor) -> torch.Tensor:
        return self._layer(torch.tensor([tokens], device=hidden.device), hidden, self._cache)

    def commit(self, length: int) -> None:
        self._hidden.commit()
