"""The decoding contract of a model: the entries of its generation_config.json beyond the sampling settings.

Only the target's contract counts. It holds in every lane, as in transformers' `generate()`. A request's own settings
take precedence: sampling settings and length are the request's (models/load.py reads the file's), and where a grammar
allows no token that the contract allows, the grammar alone decides. The stop strings of both end an answer. Entries
that are not supported here are listed with the run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    GenerationConfig,
    InfNanRemoveLogitsProcessor,
    LogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from playground.decoding.processors import Processor, Refused, processed
from playground.decoding.transfer import to_device
from playground.errors import PlaygroundError, on_one_line
from playground.models.load import LoadedModel

# Each with its neutral value; None and an empty list are neutral too. `renormalize_logits` changes no choice, and the
# keys of beam search have no effect without `num_beams`.
OBEYED: dict[str, Any] = {
    "sequence_bias": None,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "min_length": 0,
    "min_new_tokens": 0,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "remove_invalid_values": False,
    "exponential_decay_length_penalty": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "stop_strings": None,
}
NOT_OBEYED: dict[str, Any] = {
    "num_beams": 1,
    "guidance_scale": 1.0,
    "watermarking_config": None,
    "max_time": None,
    "token_healing": False,
    "penalty_alpha": 0.0,
    "dola_layers": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "top_h": None,
}


def entries(config: GenerationConfig, names: dict[str, Any]) -> dict[str, Any]:
    """Returns the entries of `names` (OBEYED or NOT_OBEYED) that the config sets, with its values as plain data."""
    values = json.loads(config.to_json_string(), parse_constant=str)  # an infinite bias is no JSON
    return {name: values[name] for name, neutral in names.items() if values.get(name) not in (None, [], neutral)}


@dataclass(frozen=True)
class Contract:
    """The contract of a target.

    Attributes:
        eos_ids: the tokens that end a text.
        vocab_size: columns of the logits.
    """

    config: GenerationConfig
    eos_ids: Sequence[int]
    vocab_size: int

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings: the first that occurs ends an answer, in addition to those of the request. Empty strings,
        which every text contains, are left out."""
        stops = self.config.stop_strings or ()
        return tuple(filter(None, (stops,) if isinstance(stops, str) else stops))

    @cached_property
    def _obeyed(self) -> dict[str, Any]:
        return entries(self.config, OBEYED)

    def around(
        self, requested: Sequence[Processor], prompt_ids: Sequence[int], max_new_tokens: int, device: torch.device
    ) -> list[Processor]:
        """Returns the contract's processors and `requested`, those of a request, in the order of `generate()`."""
        if not self._obeyed:
            return list(requested)
        return [*self._around(requested, prompt_ids, max_new_tokens, device)]

    def _around(
        self, requested: Sequence[Processor], prompt_ids: Sequence[int], max_new_tokens: int, device: torch.device
    ) -> Iterator[Processor]:
        config, has, length = self.config, self._obeyed, len(prompt_ids)
        prompt: Any = to_device([prompt_ids], device)
        eos = torch.tensor(self.eos_ids)
        ends = eos.to(device)
        refusing: list[LogitsProcessor] = []  # the same tokens everywhere
        if "sequence_bias" in has:
            bias = SequenceBiasLogitsProcessor(config.sequence_bias)
            yield Processor(bias, "nothing" if _of_single_tokens(bias) else "tokens")
        if "encoder_repetition_penalty" in has:
            penalty = EncoderRepetitionPenaltyLogitsProcessor(config.encoder_repetition_penalty, prompt)
            yield Processor(penalty, "nothing")
        yield from requested
        if "no_repeat_ngram_size" in has:
            yield Processor(NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size))
        if "encoder_no_repeat_ngram_size" in has:
            yield Processor(EncoderNoRepeatNGramLogitsProcessor(config.encoder_no_repeat_ngram_size, prompt))
        if "bad_words_ids" in has:
            banned = NoBadWordsLogitsProcessor(config.bad_words_ids, eos)
            if _of_single_tokens(banned):
                refusing.append(banned)
            else:
                yield Processor(banned)
        yield from self._lengths(length, max_new_tokens, ends)
        if "suppress_tokens" in has:
            refusing.append(SuppressTokensLogitsProcessor(config.suppress_tokens))
        if refusing:
            row: Any = torch.zeros(1, self.vocab_size)
            for each in refusing:
                row = each(prompt[:, :0].cpu(), row)
            yield Processor(Refused(to_device(row[0].isneginf(), device)), "nothing")
        if "begin_suppress_tokens" in has:
            start = length + (length <= 1 and "forced_bos_token_id" in has)
            begin = SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, start, str(device))
            yield Processor(begin, "length", range(start, start + 1))

    def _lengths(self, length: int, max_new_tokens: int, eos: torch.Tensor) -> Iterator[Processor]:
        """Yields those that depend, with one exception, on the length of the text. `length`: the prompt's."""
        config, has = self.config, self._obeyed
        if "min_length" in has and self.eos_ids:
            yield Processor(MinLengthLogitsProcessor(config.min_length, eos), "length", range(config.min_length))
        if "min_new_tokens" in has and self.eos_ids:
            fewest = MinNewTokensLengthLogitsProcessor(length, config.min_new_tokens, eos)
            yield Processor(fewest, "length", range(length + config.min_new_tokens))
        if "forced_bos_token_id" in has:
            yield Processor(ForcedBOSTokenLogitsProcessor(config.forced_bos_token_id), "length", range(1, 2))
        if "forced_eos_token_id" in has:
            end = length + max_new_tokens
            last = ForcedEOSTokenLogitsProcessor(end, config.forced_eos_token_id, str(eos.device))
            yield Processor(last, "length", range(end - 1, end))
        if "remove_invalid_values" in has:
            yield Processor(InfNanRemoveLogitsProcessor(), "nothing")
        if "exponential_decay_length_penalty" in has and self.eos_ids:
            decay = ExponentialDecayLengthPenalty(config.exponential_decay_length_penalty, eos, length)
            yield Processor(decay, "length", range(decay.regulation_start + 1, sys.maxsize))


def contract_of(target: LoadedModel) -> Contract:
    """Returns the contract of a target, after trying its processors on a short text.

    Raises:
        PlaygroundError: transformers cannot follow the generation_config.json.
    """
    vocab_size = target.model.config.get_text_config(decoder=True).vocab_size
    ends = [id_ for id_ in sorted(target.eos_ids) if id_ < vocab_size]
    contract = Contract(target.model.generation_config, ends, vocab_size)
    try:  # on the CPU: an id out of range would end all work on a GPU
        "".join(contract.stops)
        for it in contract.around([], [0], 1, torch.device("cpu")):
            text = range(it.at.start or 1)
            processed([it], torch.zeros(1, vocab_size), [text].__getitem__)
    except Exception as error:  # the file can be wrong in any way
        raise PlaygroundError(
            f"The generation_config.json of {target.name} cannot be followed ({type(error).__name__}: "
            f"{on_one_line(error)}). Correct it, or delete the entry that is wrong."
        ) from None
    return contract


def _of_single_tokens(bias: SequenceBiasLogitsProcessor) -> bool:
    return all(len(ids) == 1 for ids in bias.sequence_bias)
