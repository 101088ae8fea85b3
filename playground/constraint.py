"""The grammar of an answer, as llguidance reads it: is it valid, and does a text follow it? No model is involved.

A short grammar can take llguidance hours and all memory to read. So each is tried in another process first, within
limits. llguidance itself limits the cost of following one later.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import NamedTuple

from llguidance import LLMatcher, LLTokenizer

from playground.child import child_of
from playground.errors import PlaygroundError
from playground.lane import Request
from playground.settings import SETTINGS

SCRIPT = Path(__file__).with_name("constraint_process.py")
NO_TEXT = "NoExtension"  # the beginning of llguidance's message that nothing can follow
ANSWER = 100_000  # characters
REMEMBERED = 1000  # grammars, each no longer than a request


class Effort(NamedTuple):
    """The limits for reading a grammar. `bytes`: memory of the process that reads it."""

    seconds: float
    bytes: int


ANY = Effort(30, 2**32)


class Tried(NamedTuple):
    """The outcome of trying a grammar. `limits`: those that were exceeded; None where it was read to its end.
    `refusal`: why it cannot be used, and what to do; "" for a grammar that can."""

    limits: Effort | None
    refusal: str


_tried: OrderedDict[tuple[str, str], Tried] = OrderedDict()
_trying = threading.Lock()


def try_out(request: Request, limits: Effort = ANY) -> None:
    """Read the request's grammar in another process, unless that was done before.

    Raises:
        PlaygroundError: the grammar is broken, no text satisfies it, or reading it takes more than `limits`.
    """
    key = request.constraint, getattr(request, request.constraint)
    found = _known(key, limits)
    if found is None:
        with _trying:
            found = _known(key, limits) or _try(*key, limits)  # another thread may have tried it meanwhile
            _tried[key] = found
            if len(_tried) > REMEMBERED:
                _tried.popitem(last=False)
    if found.refusal:
        raise _refused(request, found.refusal)


def _known(key: tuple[str, str], limits: Effort) -> Tried | None:
    found = _tried.get(key)
    return None if found and found.limits and limits > found.limits else found


def _try(kind: str, text: str, limits: Effort) -> Tried:
    question = json.dumps({"kind": kind, "text": text, "bytes": limits.bytes})
    line = child_of(SCRIPT).ask(question, seconds=limits.seconds, characters=ANSWER)
    if line.endswith("\n"):
        return Tried(None, _refusal(json.loads(line)["error"]))
    return Tried(
        limits, f"Reading it takes more than {limits.seconds:g} s, or too much memory. Make it simpler and run again."
    )


def compiled(request: Request) -> str:
    """Return the grammar in llguidance's form. Its errors show only when it is read."""
    if request.json_schema:
        return LLMatcher.grammar_from_json_schema(request.json_schema)
    if request.regex:
        return LLMatcher.grammar_from_regex(request.regex)
    return LLMatcher.grammar_from_lark(request.grammar)


def matcher_of(request: Request, tokenizer: LLTokenizer) -> LLMatcher:
    """Return a matcher for the request's grammar, at the start of the answer.

    Raises:
        PlaygroundError: the grammar is broken, no text satisfies it, or it takes too long to read.
    """
    try_out(request)
    matcher = LLMatcher(tokenizer, compiled(request))
    matcher.compute_bitmask()
    if error := matcher.get_error():
        raise _refused(request, _refusal(error))
    return matcher


def keeps(request: Request, text: str, *, whole: bool) -> bool:
    """Return True if the request's grammar allows the text as a whole answer or, with `whole` unset, as the beginning
    of one.

    Raises:
        PlaygroundError: see `matcher_of`.
    """
    matcher, read = matcher_of(request, _bytes()), list(text.strip().encode())
    if matcher.validate_tokens(read) < len(read):
        return False
    matcher.consume_tokens(read)
    return matcher.is_accepting() or not whole


@cache
def _bytes() -> LLTokenizer:
    """Return a tokenizer with one token for each byte."""
    return LLTokenizer("byte")


def _refused(request: Request, refusal: str) -> PlaygroundError:
    return PlaygroundError(f"{SETTINGS[request.constraint].label} cannot be used: {refusal}")


def _refusal(error: str) -> str:
    """Explain llguidance's error, and what to do; "" for none."""
    if not error:
        return ""
    reason = "No text satisfies it." if error.startswith(NO_TEXT) else brief(error)
    return f"{reason} Correct it and run again."


def brief(error: str) -> str:
    """Return the first lines of llguidance's message, without the state of its parser, as a sentence."""
    lines = " ".join(error.partition("<state>")[0].split())
    return f"{lines[:300].rstrip('.')}."
