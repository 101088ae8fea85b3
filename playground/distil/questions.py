"""Questions that the target asks itself: what it writes in place of a user's turn ("Magpie", Xu et al. 2024).

Templates hold what their author thought of; a chat model also remembers what it was trained to be asked.
"""

from __future__ import annotations

import random
from typing import cast

import torch

from playground.distil.answers import plain_text, write
from playground.distil.prompts import Messages
from playground.models.load import LoadedModel

PLACE = "\N{OBJECT REPLACEMENT CHARACTER}"  # no template holds it
LONGEST_QUESTION = 80  # tokens; a question that is longer is asked as far as it goes
TEMPERATURES = (0.7, 1.0)  # one question each, in turn


def own_questions(target: LoadedModel, count: int, rng: random.Random) -> list[Messages]:
    """At most `count` conversations of one turn; none without a chat template."""
    if not target.tokenizer.chat_template:
        return []
    turn = cast(str, target.tokenizer.apply_chat_template([{"role": "user", "content": PLACE}], tokenize=False))
    start = target.tokenizer(turn.split(PLACE)[0], add_special_tokens=False)["input_ids"]
    written = write(
        target.model,
        [start] * count,
        [TEMPERATURES[i % len(TEMPERATURES)] for i in range(count)],
        layers=(-1,),
        max_new_tokens=LONGEST_QUESTION,
        stop_ids=target.eos_ids,
        generator=torch.Generator(target.model.device).manual_seed(rng.getrandbits(63)),
    )
    texts = (plain_text(target.tokenizer, it.ids[it.prompt_length :]).strip() for it in written)
    return [[{"role": "user", "content": text}] for text in texts if text]
