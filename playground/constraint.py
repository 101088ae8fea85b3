"""What an answer is held to, as llguidance reads it: whether it is a grammar at all, and whether a text keeps to it.
Knows no model."""

from __future__ import annotations

from functools import cache

from llguidance import LLMatcher, LLTokenizer

from playground.errors import PlaygroundError
from playground.lane import Request
from playground.settings import SETTINGS

NO_TEXT = "NoExtension"  # how llguidance begins to say that nothing can follow


def compiled(request: Request) -> str:
    """The grammar as llguidance takes it. Whether it is one shows when it is read."""
    if request.json_schema:
        return LLMatcher.grammar_from_json_schema(request.json_schema)
    if request.regex:
        return LLMatcher.grammar_from_regex(request.regex)
    return LLMatcher.grammar_from_lark(request.grammar)


def matcher_of(request: Request, tokenizer: LLTokenizer) -> LLMatcher:
    """What follows the request's grammar, at the start of its answer.

    Raises:
        PlaygroundError: the grammar is broken, or no text satisfies it.
    """
    matcher = LLMatcher(tokenizer, compiled(request))
    matcher.compute_bitmask()  # only then is it known that nothing can be written
    if error := matcher.get_error():
        reason = "No text satisfies it." if error.startswith(NO_TEXT) else brief(error)
        raise PlaygroundError(
            f"{SETTINGS[request.constraint].label} cannot be used: {reason} Correct it and run again."
        )
    return matcher


def keeps(request: Request, text: str, *, whole: bool) -> bool:
    """Whether the text is an answer that the request's grammar allows, or with `whole` unset the beginning of one.

    Raises:
        PlaygroundError: as `matcher_of`.
    """
    matcher, read = matcher_of(request, _bytes()), list(text.strip().encode())
    if matcher.validate_tokens(read) < len(read):
        return False
    matcher.consume_tokens(read)
    return matcher.is_accepting() or not whole


@cache
def _bytes() -> LLTokenizer:
    """A token a byte."""
    return LLTokenizer("byte")


def brief(error: str) -> str:
    """The first lines of llguidance's message, without the state of its parser, as a sentence."""
    lines = " ".join(error.partition("<state>")[0].split())
    return f"{lines[:300].rstrip('.')}."
