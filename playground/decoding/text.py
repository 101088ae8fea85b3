"""Turns requests into token ids, and token ids into the text that each of them adds; finds stop strings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from transformers import PreTrainedTokenizerBase

from playground.conversation import Message, read_arguments, read_tools
from playground.decoding import template
from playground.errors import PlaygroundError
from playground.lane import Request
from playground.metrics.segments import MARKERS
from playground.trace import DraftToken, Round, TargetToken

T = TypeVar("T", DraftToken, TargetToken)
REPLACEMENT = "\ufffd"  # what a tokenizer decodes an incomplete character to
WINDOW = 12  # tokens decoded together: a token's text depends on its neighbours


def encode(tokenizer: PreTrainedTokenizerBase, request: Request) -> list[int]:
    """Returns the prompt of a request as token ids.

    Raises:
        PlaygroundError: the tokenizer has no chat template, the template does not render, or the prompt has no tokens.
    """
    ids = encode_turns(tokenizer, request, request.turns)
    if not ids:
        raise PlaygroundError("The tokenizer makes no tokens of this prompt. Write something else.")
    return ids


def encode_turns(
    tokenizer: PreTrainedTokenizerBase, request: Request, turns: Sequence[Message], *, open_end: bool = True
) -> list[int]:
    """Returns some turns of a request as token ids. `open_end`: whether they end with the start of the next answer.

    Raises:
        PlaygroundError: the tokenizer has no chat template, or the template does not render.
    """
    if not request.chat_template:
        return list(tokenizer(request.as_text(turns))["input_ids"])
    if not tokenizer.chat_template:
        raise PlaygroundError("This model has no chat template. Switch the chat template off and run again.")
    return chat_ids(
        tokenizer,
        request.as_messages(turns),
        tools=read_tools(request.tools),
        arguments=read_arguments(request.template),
        open_end=open_end,
    )


def encode_answer(
    tokenizer: PreTrainedTokenizerBase, request: Request, prompt_ids: Sequence[int], answer: Message
) -> list[int]:
    """Returns an answer to a request as token ids. They are those of the chat template, its end of turn included, if
    the template renders the prompt before an answer as it does without; else those of the text alone."""
    if request.chat_template:
        whole = encode_turns(tokenizer, request, (*request.turns, answer), open_end=False)
        if whole[: len(prompt_ids)] == list(prompt_ids):
            return whole[len(prompt_ids) :]
    return list(tokenizer(answer.content or answer.text, add_special_tokens=False)["input_ids"])


def chat_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]], **more: Any) -> list[int]:
    """Returns the token ids of a conversation in the tokenizer's chat template, up to the start of the next answer.
    `more`: further arguments of `template.render`.

    Raises:
        PlaygroundError: the template refuses the messages, or exceeds its limits.
    """
    return list(tokenizer(template.render(tokenizer, messages, **more), add_special_tokens=False)["input_ids"])


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Returns the text of token ids, special tokens included."""
    return cast(str, tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))  # a list only for a batch


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Returns the tokens that are not text: end of text, chat turns and the like."""
    added = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(tokenizer.all_special_ids) | added


def markers(tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, str], ...]:
    """Returns the MARKERS that are tokens of this tokenizer, each with its id."""
    added = {token.content: id_ for id_, token in tokenizer.added_tokens_decoder.items()}
    return tuple((added[text], text) for text in MARKERS if text in added)


class Detokenizer:
    """Streams the text of a growing sequence: each token's piece holds whole characters, and the pieces add up to the
    text.

    A byte-level token may end inside a character: its piece is then "", and the token that completes the character
    carries it. Pieces are differences between decoded windows, since a token decoded alone can give another text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.special_ids = special_ids(tokenizer)
        self._window = self._tail(list(prompt_ids))
        self._shown = self._decode(self._window)
        self._held = 0  # tokens in a row whose character is not complete

    def commit(self, ids: Sequence[int]) -> list[str]:
        """Appends `ids` and returns their pieces."""
        return [self._append(id_) for id_ in ids]

    def branch(self, ids: Sequence[int], parents: Sequence[int], last: int) -> list[str]:
        """Returns the piece that each draft token adds after its parent, and appends the branch that ends in `last`.

        Args:
            parents: for each token the index of its parent, which comes before it; -1 for the text.
            last: the index of the last accepted token; -1 for none.
        """
        states = [(self._window, self._shown, self._held)]
        pieces = []
        for id_, parent in zip(ids, parents, strict=True):
            window, self._shown, self._held = states[parent + 1]
            self._window = list(window)
            pieces.append(self._append(id_))
            states.append((self._window, self._shown, self._held))
        self._window, self._shown, self._held = states[last + 1]
        return pieces

    def _append(self, id_: int) -> str:
        self._window.append(id_)
        text = self._decode(self._window)
        whole = text.rstrip(REPLACEMENT) if self._held < WINDOW else text
        self._held = 0 if whole == text else self._held + 1
        piece = whole[len(self._shown) :]
        self._shown += piece
        if self._held == 0 and len(self._window) > 2 * WINDOW:
            self._window = self._tail(self._window)
            self._shown = self._decode(self._window)
        return piece

    def _tail(self, ids: list[int]) -> list[int]:
        """Returns the last tokens, starting with one that begins a character: an incomplete one would corrupt the
        rest."""
        sizes = range(WINDOW, WINDOW + 4)
        return next((ids[-n:] for n in sizes if not self._decode(ids[-n:]).startswith(REPLACEMENT)), ids[-WINDOW:])

    def _decode(self, ids: Sequence[int]) -> str:
        return decode(self._tokenizer, ids)


class StopStrings:
    """Finds where the visible text of an answer first contains one of several strings.

    The one that is completed first counts; if the same character completes several, the longest counts. So the result
    depends on the text alone, and not on its tokens. Special tokens are not text. The prompt does not count.

    Attributes:
        end: the length of the answer's visible text in characters, which ends where the stop string begins; None as
            long as none was found.
    """

    def __init__(self, strings: Sequence[str], tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int]) -> None:
        self.end: int | None = None
        self._strings = strings
        self._detokenizer = Detokenizer(tokenizer, prompt_ids)
        self._before = 0  # characters of the text before `_tail`
        self._tail = ""  # what a stop string may begin in

    def cut(self, ids: Sequence[int]) -> list[int]:
        """Appends tokens to the answer, and returns them up to the one that completes a stop string, which is the last
        one to be appended."""
        for n, id_ in enumerate(ids, 1):
            (piece,) = self._detokenizer.commit([id_])
            if id_ in self._detokenizer.special_ids:
                continue
            text = self._tail + piece
            places = [(at + len(string), at) for string in self._strings if (at := text.find(string)) >= 0]
            if places:
                self.end = self._before + min(places)[1]
                return list(ids[:n])
            self._tail = text[max(0, len(text) + 1 - max(map(len, self._strings))) :]
            self._before += len(text) - len(self._tail)
        return list(ids)


def shown_until(rounds: Iterable[Round], end: int) -> tuple[Round, ...]:
    """Returns the rounds of an answer, cut after the first `end` characters of its visible text."""

    def cut(token: T) -> T:
        nonlocal end
        if token.special:
            return token
        text = token.text[:end]
        end -= len(text)
        return replace(token, text=text)

    return tuple(
        replace(
            round_,
            drafted=tuple(cut(token) if token.decision == "accepted" else token for token in round_.drafted),
            target=round_.target and cut(round_.target),
        )
        for round_ in rounds
    )
