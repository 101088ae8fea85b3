from __future__ import annotations

import json
import re

import pytest
from transformers import PreTrainedTokenizerFast

from playground.errors import PlaygroundError
from playground.models.load import LoadedModel
from playground.models.networks.made_for import check_same_tokenizer


def model(tokenizer: PreTrainedTokenizerFast, name: str) -> LoadedModel:
    return LoadedModel(None, tokenizer, name, "")


@pytest.fixture
def copy(tmp_path, tiny_tokenizer):
    """A copy of the tiny tokenizer in which pairs of tokens have exchanged their ids."""

    def make(*swaps: tuple[str, str]) -> PreTrainedTokenizerFast:
        tiny_tokenizer.save_pretrained(tmp_path)
        path = tmp_path / "tokenizer.json"
        data = json.loads(path.read_text(encoding="utf-8"))
        vocabulary = data["model"]["vocab"]
        for a, b in swaps:
            vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
        path.write_text(json.dumps(data), encoding="utf-8")
        return PreTrainedTokenizerFast.from_pretrained(tmp_path)

    return make


def test_equal_vocabularies_pass(tiny_tokenizer, copy):
    check_same_tokenizer(model(tiny_tokenizer, "big"), model(copy(), "small"))


def test_different_sizes_are_named(tiny_tokenizer, copy):
    other = copy()
    other.add_tokens(["<|extra|>"])
    size = len(tiny_tokenizer)
    with pytest.raises(PlaygroundError) as error:
        check_same_tokenizer(model(tiny_tokenizer, "big"), model(other, "small"))
    assert re.search(rf"^small .* big, .* {size} .* {size + 1}\b", str(error.value))


def test_the_first_token_with_another_id_is_named(tiny_tokenizer, copy):
    ids = tiny_tokenizer.get_vocab()
    with pytest.raises(PlaygroundError) as error:
        check_same_tokenizer(model(tiny_tokenizer, "big"), model(copy(("x", "z"), ("A", "B")), "small"))
    assert re.search(rf"'A' .* {ids['A']} .* {ids['B']}\b", str(error.value))


def test_a_token_that_the_assistant_lacks_is_named(tiny_tokenizer, copy):
    one, other = copy(), copy()
    one.add_tokens(["<|one|>"])
    other.add_tokens(["<|other|>"])
    with pytest.raises(PlaygroundError, match=r"'<\|one\|>' has id \d+ .* no id"):
        check_same_tokenizer(model(one, "big"), model(other, "small"))
