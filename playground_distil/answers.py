"""Writes the target's answers: token ids, hidden states, and the target's likeliest choices at each token."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from playground.decoding.runners.cache import growing_cache
from playground.decoding.runners.capture import watched_modules, watching
from playground.decoding.text import chat_ids
from playground.models.attention import decoder_of

Messages = list[dict[str, str]]

CHOICES = 8  # likeliest tokens of the target's distribution that are stored for each token
COLUMNS = 64  # columns of a batch's prompts that go through the target at once
SUM_ROWS = 16  # rows of logits that go into a sum over the vocabulary at once
SAMPLED_FROM = 64  # likeliest tokens that an answer is sampled from
KEPT = 0.9  # when less than this share of a batch is still writing, the rows that are done are dropped
LOOP_TOKENS, LOOP_TIMES = 32, 3  # an answer ends once its last 1 to 32 tokens have occurred three times in a row


@dataclass(frozen=True)
class Answer:
    """A conversation of n tokens that went through the target.

    `ids`: [n] int32. `prompt_length`: how many of them the target did not write. `features`: [n, layers, D], hidden
    states. `choices`, `chances`: [n, CHOICES], int32 and float16, the most likely next tokens after each position from
    the prompt's last on, and their probabilities; 0 before it.
    """

    ids: Tensor
    prompt_length: int
    features: Tensor
    choices: Tensor
    chances: Tensor


def prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: Messages) -> list[int]:
    if not tokenizer.chat_template:
        return tokenizer("\n\n".join(message["content"] for message in messages))["input_ids"]
    return chat_ids(tokenizer, messages)


def plain_text(tokenizer: PreTrainedTokenizerBase, ids: Tensor) -> str:
    """Returns the text of token ids [n], without special tokens."""
    return cast(str, tokenizer.decode(ids, skip_special_tokens=True))  # a list only for a batch


@torch.inference_mode()
def write(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    *,
    layers: Sequence[int],
    max_new_tokens: int,
    stop_ids: Collection[int],
    generator: torch.Generator,
) -> Iterator[Answer]:
    """Writes one batch of answers and yields them in the order in which they end.

    `layers`: the layers whose outputs are the features, in the form of `Runner.watch`; -1 is the last layer's output
    after the final norm. `temperatures`: one for each prompt; 0 is greedy.
    """
    device = model.device
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    heat = torch.tensor(temperatures, device=device)
    row_of = list(range(len(prompts)))  # for each row that still writes, its index in the original batch
    cache = growing_cache(DynamicCache(config=model.config))
    parts: list[list[_Pass]] = [[] for _ in prompts]
    for end in range((width - 1) % COLUMNS + 1, width + 1, COLUMNS):
        seen = _forward(model, ids[:, max(0, end - COLUMNS) : end], mask[:, :end], cache, layers, head=end == width)
        for row, passes in enumerate(parts):
            passes.append(seen.row(row))
    written: list[list[int]] = [[] for _ in prompts]
    done: set[int] = set()
    for step in range(max_new_tokens + 1):
        chosen = _choose(seen, heat, generator)
        for row, token in zip(row_of, chosen.tolist(), strict=True):
            if row in done:
                continue
            if step == max_new_tokens or token in stop_ids or loops(written[row]):
                yield _answer(prompts[row], written[row], parts[row])
                done.add(row)
                parts[row] = []
            else:
                written[row].append(token)
        going = [place for place, row in enumerate(row_of) if row not in done]
        if not going:
            return
        if len(going) < KEPT * len(row_of):
            rows = torch.tensor(going, device=device)
            cache.batch_select_indices(rows)
            chosen, mask, heat = chosen[rows], mask[rows], heat[rows]
            row_of = [row_of[place] for place in going]
        mask = F.pad(mask, (0, 1), value=1)
        seen = _forward(model, chosen[:, None], mask, cache, layers)
        for place, row in enumerate(row_of):
            if row not in done:
                parts[row].append(seen.row(place))


def loops(ids: Sequence[int]) -> bool:
    """True where the text ends in LOOP_TIMES repetitions of its last tokens, at most LOOP_TOKENS of them."""
    for period in range(1, LOOP_TOKENS + 1):
        span = period * (LOOP_TIMES - 1)
        if len(ids) >= span + period + 8 and ids[-span:] == ids[-span - period : -period]:
            return True
    return False


@dataclass(frozen=True)
class _Pass:
    """Some columns of a batch, [rows, columns, ...], or one row of it, [columns, ...].

    `top`, `logits`: the SAMPLED_FROM likeliest next tokens of the last column, which alone goes through the head; none
    where they are not wanted.
    """

    features: Tensor
    choices: Tensor
    chances: Tensor
    top: Tensor
    logits: Tensor

    def row(self, i: int) -> _Pass:
        return _Pass(self.features[i], self.choices[i], self.chances[i], self.top[i], self.logits[i])


def _forward(
    model: PreTrainedModel, ids: Tensor, mask: Tensor, cache: Cache, layers: Sequence[int], head: bool = True
) -> _Pass:
    """Runs a batch's next columns. `head`: whether the tokens after the last of them are wanted."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    seen: dict[int, Tensor] = {}
    with watching(watched_modules(model, layers), seen.__setitem__):
        out = decoder_of(model)(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
    features = torch.stack([seen[i] for i in range(len(layers))], dim=-2)
    choices = torch.zeros(*ids.shape, CHOICES, dtype=torch.int32, device=ids.device)
    chances = torch.zeros(choices.shape, dtype=torch.half, device=ids.device)
    if not head:
        none = ids[:, :0]
        return _Pass(features, choices, chances, none, none)
    top, index, likely = [], [], []
    for logits in model.get_output_embeddings()(out.last_hidden_state[:, -1]).split(SUM_ROWS):
        logits = logits.float()
        values, places = logits.topk(min(SAMPLED_FROM, logits.shape[-1]))
        top.append(values)
        index.append(places)
        likely.append((values[:, :CHOICES] - logits.logsumexp(-1, keepdim=True)).exp().half())
    choices[:, -1], chances[:, -1] = torch.cat(index)[:, :CHOICES], torch.cat(likely)
    return _Pass(features, choices, chances, torch.cat(index), torch.cat(top))


def _choose(seen: _Pass, heat: Tensor, generator: torch.Generator) -> Tensor:
    """Returns the next token of each row, [rows]: the most likely one at temperature 0, else sampled."""
    p = (seen.logits / heat.clamp(min=1e-4)[:, None]).softmax(-1)
    sampled = torch.multinomial(p, 1, generator=generator)[:, 0]
    place = torch.where(heat > 0, sampled, 0)
    return seen.top.gather(1, place[:, None])[:, 0]


def _answer(prompt: Sequence[int], written: Sequence[int], parts: Sequence[_Pass]) -> Answer:
    n = len(prompt) + len(written)
    return Answer(
        ids=torch.tensor([*prompt, *written], dtype=torch.int32),
        prompt_length=len(prompt),
        features=torch.cat([part.features for part in parts])[-n:].cpu(),
        choices=torch.cat([part.choices for part in parts])[-n:].cpu(),
        chances=torch.cat([part.chances for part in parts])[-n:].cpu(),
    )
