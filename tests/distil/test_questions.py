"""A chat model is asked for questions by what stands before a user's words, and for nothing else."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

from playground_distil import collect
from playground_distil.collect import own_questions


def test_the_same_seed_asks_the_same_questions(target):
    asked = own_questions(target, 6, random.Random(1))
    assert asked == own_questions(target, 6, random.Random(1))
    assert asked != own_questions(target, 6, random.Random(2))
    assert 0 < len(asked) <= 6
    for [turn] in asked:
        assert turn["role"] == "user"
        assert turn["content"].strip() == turn["content"] != ""
        assert "<|end|>" not in turn["content"]


def test_a_question_begins_where_the_user_would_speak(target, monkeypatch):
    given = []
    monkeypatch.setattr(collect, "write", lambda model, prompts, *_, **__: given.extend(prompts) or ())
    assert own_questions(target, 3, random.Random(0)) == []
    assert [target.tokenizer.decode(ids) for ids in given] == ["<|user|>"] * 3


def test_a_model_that_does_not_chat_asks_nothing(target):
    tokenizer = copy.copy(target.tokenizer)
    tokenizer.chat_template = None
    assert own_questions(replace(target, tokenizer=tokenizer), 3, random.Random(0)) == []
