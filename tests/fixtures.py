"""Fixtures that several rooms share: a tokenizer and a model that are real in kind and tiny in size."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from playground.decoding import grammar, pass_cost, template
from playground.models.cpu.native import library
from playground.trace import PassTime
from tests.tiny import small_llama

SENTENCES = [
    "A drafter proposes a few tokens, and the target keeps those that it would have chosen itself.",
    "The lighthouse keeper counts the waves, and the waves count the winters.",
    "கடல் அமைதியாக இருக்கிறது 🙂",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


torch.set_num_threads(1)  # for tiny models more threads only wait for each other, and several workers run at once
# A machine that is shared may stand still for longer than these wait elsewhere.
template.LIMIT_S = grammar.PASS_S = 120.0
for step in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, step, 120.0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A lane may choose more threads, for all that the process computes from then on."""
    library.Threads.number = 1
    yield
    torch.set_num_threads(1)


@pytest.fixture
def torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU engine is turned off."""
    monkeypatch.setattr(library, "_found", lambda: (None, "PLAYGROUND_ENGINE is torch"))


@pytest.fixture(autouse=True)
def passes_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more token costs a pass nothing, as on a GPU: what a test's trees hold is no matter of how busy its machine
    is."""
    times = PassTime(1, 0.01), PassTime(264, 0.01)
    monkeypatch.setattr(pass_cost, "time_passes", lambda model, most: (times, True))


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def history_of_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a test runs does not go into the history of whoever runs the tests. Few tests need the folder."""
    monkeypatch.setenv("PLAYGROUND_HISTORY", str(tmp_path_factory.getbasetemp() / f"history-{next(_numbers)}"))


@pytest.fixture(scope="session")
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of 300 tokens at most, so that most characters outside ASCII take several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>", chat_template=CHAT_TEMPLATE
    )


@pytest.fixture(scope="session")
def tiny_llama(tiny_tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Two layers of random weights in float32, in eval mode, with room for 256 tokens."""
    return small_llama(tiny_tokenizer)


@pytest.fixture(scope="session")
def written_once(
    tmp_path_factory: pytest.TempPathFactory, tiny_llama: LlamaForCausalLM, tiny_tokenizer: PreTrainedTokenizerFast
) -> Path:
    folder = tmp_path_factory.mktemp("written") / "tiny"
    tiny_llama.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def tiny_folder(tmp_path: Path, written_once: Path) -> Path:
    """A folder named "tiny" as `save_pretrained` writes it."""
    return shutil.copytree(written_once, tmp_path / "tiny")
