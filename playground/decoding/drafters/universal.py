"""A smaller model with another tokenizer drafts: its output is decoded to text and encoded as the target's tokens.

Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
Vocabularies", the algorithm that matches strings; transformers' `assistant_tokenizer`. The tokens are chosen by argmax,
not sampled: q is one-hot, and sampling stays exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from transformers import PreTrainedTokenizerBase

from playground.decoding.drafters.base import NOTHING, Draft, Drafter, past, shared
from playground.decoding.drafters.build import Setup, refuse_recurrent
from playground.decoding.runners.factory import Runners
from playground.decoding.sampling import Sampler
from playground.decoding.text import REPLACEMENT, WINDOW, Detokenizer, decode, special_ids
from playground.models.load import LoadedModel

MOST = 4  # assistant tokens for each target token to draft


class UniversalDrafter(Drafter):
    """Drafts with an assistant that has another tokenizer. The assistant's KV cache lasts across rounds. Each round
    encodes the whole text for the assistant again, because more text can change the last tokens, and rolls the cache
    back to the first token that differs.

    The assistant sees those of the target's special tokens that its own tokenizer has under the same name, as in models
    of one chat format. It drafts by argmax, up to a special token of its own.
    """

    def __init__(self, assistant: LoadedModel, target: PreTrainedTokenizerBase, runners: Runners | None = None) -> None:
        self._new_runner = partial(runners or Runners(), assistant, "assistant")
        self._model, self._tokenizer, self._target = self._new_runner(), assistant.tokenizer, target
        own = special_ids(self._tokenizer)
        self._ends = assistant.eos_ids | own
        names = set(self._tokenizer.convert_ids_to_tokens(sorted(own)))
        self._hidden = {id_ for id_ in special_ids(target) if target.convert_ids_to_tokens(id_) not in names}
        self._held: list[int] = []  # tokens in the cache
        self._left = 0  # how many of them were left by the last roll-back

    @property
    def cache_bytes(self) -> int:
        return self._model.cache_bytes

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        end = TextEnd(self._target, ids)
        text = self._encode([id_ for id_ in end.whole if id_ not in self._hidden])
        most = min(MOST * k, self._model.context_limit - len(text))
        if len(text) >= self._model.context_limit:
            return past(self._model.context_limit)
        if k < 1 or not text or max(text) >= self._model.vocab_size:  # an id that its embedding lacks
            return NOTHING
        self._roll_back(text)
        return self._draft(text, end, k, most, stop_below)

    def _encode(self, ids: Sequence[int]) -> list[int]:
        text = decode(self._target, ids)
        starts = self._tokenizer.bos_token
        return self._tokenizer(text, add_special_tokens=not (starts and text.startswith(starts)))["input_ids"]

    def _roll_back(self, text: Sequence[int]) -> None:
        """Rolls the cache back to the common prefix of cache and text, without the text's last token."""
        common = shared(self._held, text[:-1])
        if common < self._left and self._model.discards_old:
            self._model, common = self._new_runner(), 0
        elif common < self._model.length:
            self._model.commit(common)
        self._left = min(common, self._model.length)
        del self._held[common:]

    def _draft(self, text: list[int], end: TextEnd, k: int, most: int, stop_below: float) -> Draft:
        pieces = Detokenizer(self._tokenizer, text)
        written = ""
        drafted: list[int] = []
        q: list[float] = []
        for _ in range(most):
            fed = text[len(self._held) :]
            logits = self._model.forward(fed, keep=1)[0, : len(self._tokenizer)]
            self._held += fed
            best = logits.softmax(dim=-1).max(dim=-1)
            chance, token = torch.stack([best.values, best.indices.float()]).tolist()  # one transfer
            if math.isnan(chance):
                raise self._model.not_numbers()
            if token in self._ends:
                break
            text.append(int(token))
            written += pieces.commit(text[-1:])[0]
            drafted = end.tokens(written)
            q += [chance] * (len(drafted) - len(q))
            if len(drafted) >= k or chance < stop_below or REPLACEMENT in written:
                break
        drafted = drafted[:k]
        return Draft(drafted, q[: len(drafted)])

    def prepare(self) -> None:
        self._model.prepare()


class TextEnd:
    """The end of a token sequence, and the tokens of any text that follows it.

    `whole`: the tokens, without those of a last character whose bytes are incomplete.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._special = special_ids(tokenizer)
        cuts = range(len(ids), max(0, len(ids) - 4), -1)
        cut = next((cut for cut in cuts if not self._tail(ids[:cut]).endswith(REPLACEMENT)), len(ids))
        self.whole = ids[:cut]
        # New text is encoded together with the text before it; alone it might start with an extra space. If its first
        # token would merge with the text before, it is encoded after a line break, with which no token merges.
        self._before = [(text, self._encode(text) + list(ids[cut:])) for text in (self._tail(self.whole), "\n")]

    def tokens(self, text: str) -> list[int]:
        """Returns the tokens of a text that follows, up to any special token: plain text must not end the answer."""
        for before, known in self._before:
            both = self._encode(before + text)
            if both[: len(known)] == known:
                drafted = both[len(known) :]
                end = next((i for i, id_ in enumerate(drafted) if id_ in self._special), len(drafted))
                return drafted[:end]
        return []

    def _tail(self, ids: Sequence[int]) -> str:
        """Returns the text of the last WINDOW tokens, after the last special one."""
        ids = ids[-WINDOW:]
        start = next((i for i in range(len(ids), 0, -1) if ids[i - 1] in self._special), 0)
        return decode(self._tokenizer, ids[start:])

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]


def build(setup: Setup) -> UniversalDrafter:
    refuse_recurrent(setup.runners(setup.assistant, "assistant"), setup.assistant.name)
    return UniversalDrafter(setup.assistant, setup.models.target.tokenizer, setup.runners)
