"""Pieces of text: whole characters, adding up to what the tokenizer decodes at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playground.decoding.text import Detokenizer, encode
from playground.errors import PlaygroundError
from playground.lane import Request

SAMPLES = [
    "plain words, twice plain words",
    "🙂🙃 and 👩‍👩‍👧 and a flag 🇮🇳",
    "கடல் அமைதியாக இருக்கிறது, நன்றி",
    "tabs\tand\nlines\n\n  and   spaces  ",
    "عربي ثم English ثم עברית",
    "<script>alert(1)</script> {{ x }} ${y}",
    "\x00\x07 control \x1b[31m",
]


@pytest.mark.parametrize("text", SAMPLES)
def test_pieces_add_up_to_the_text_and_never_hold_half_a_character(tiny_tokenizer, text):
    ids = tiny_tokenizer(text)["input_ids"]
    pieces = Detokenizer(tiny_tokenizer, []).commit(ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert len(pieces) == len(ids)


@pytest.mark.parametrize("text", SAMPLES)
def test_pieces_do_not_depend_on_the_prompt_in_front(tiny_tokenizer, text):
    prompt = tiny_tokenizer("கடல் " * 9)["input_ids"]
    pieces = Detokenizer(tiny_tokenizer, prompt).commit(tiny_tokenizer(text)["input_ids"])
    assert "".join(pieces) == text


@settings(deadline=None)
@given(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\ufffd"), max_size=80))
def test_any_text_comes_back_whole(tiny_tokenizer, text):
    pieces = Detokenizer(tiny_tokenizer, []).commit(tiny_tokenizer(text)["input_ids"])
    assert "".join(pieces) == text


def test_a_preview_leaves_the_text_as_it_is(tiny_tokenizer):
    ids = tiny_tokenizer("நன்றி 🙂 and thanks")["input_ids"]
    plain = Detokenizer(tiny_tokenizer, []).commit(ids)
    detokenizer = Detokenizer(tiny_tokenizer, [])
    pieces = []
    for i, id_ in enumerate(ids):
        detokenizer.branch(ids[i::-1], range(-1, i), last=-1)
        assert detokenizer.branch([id_], [-1], last=-1) == plain[i : i + 1]
        pieces += detokenizer.commit([id_])
    assert pieces == plain


def test_special_tokens_are_known_and_have_a_text(tiny_tokenizer):
    detokenizer = Detokenizer(tiny_tokenizer, [])
    assert tiny_tokenizer.eos_token_id in detokenizer.special_ids
    assert detokenizer.commit([tiny_tokenizer.eos_token_id]) == ["<|end|>"]


def test_the_chat_template_is_applied_or_left_out(tiny_tokenizer):
    def text(**settings) -> str:
        return tiny_tokenizer.decode(encode(tiny_tokenizer, Request("Hi", **settings)))

    assert text() == "<|user|>Hi<|end|><|assistant|>"
    assert text(system="Be brief.") == "<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>"
    assert text(chat_template=False) == "Hi"
    assert text(chat_template=False, system="Be brief.") == "Be brief.\n\nHi"


def test_a_model_without_a_chat_template_says_so(tiny_tokenizer, monkeypatch):
    monkeypatch.setattr(tiny_tokenizer, "chat_template", None)
    with pytest.raises(PlaygroundError, match="chat template"):
        encode(tiny_tokenizer, Request("Hi"))


def test_a_template_that_refuses_the_messages_is_quoted(tiny_tokenizer, monkeypatch):
    refusal = "{{ raise_exception('System role not supported') }}"
    monkeypatch.setattr(tiny_tokenizer, "chat_template", refusal)
    with pytest.raises(PlaygroundError, match="System role not supported"):
        encode(tiny_tokenizer, Request("Hi", system="Be brief."))
