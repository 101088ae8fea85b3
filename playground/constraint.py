"""What an answer is held to, as llguidance reads it: whether it is a grammar at all, and whether a text keeps to it.
Knows no model.

A short grammar can take llguidance hours and all memory to read. So each is tried in another process first, within
limits. What following one takes later, llguidance limits itself.
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
NO_TEXT = "NoExtension"  # how llguidance begins to say that nothing can follow
ANSWER = 100_000  # characters
REMEMBERED = 1000  # grammars, each no longer than a request


class Effort(NamedTuple):
    """What reading a grammar may take. `bytes`: of the process that does so, in all."""

    seconds: float
    bytes: int


ANY = Effort(30, 2**32)


class Tried(NamedTuple):
    """How trying a grammar ended. `limits`: those that ended it; None where it was read to its end. `refusal`: why it
    cannot be used, and what to do; "" for a grammar that can."""

    limits: Effort | None
    refusal: str


_tried: OrderedDict[tuple[str, str], Tried] = OrderedDict()
_trying = threading.Lock()


def try_out(request: Request, limits: Effort = ANY) -> None:
    """Reads the request's grammar in another process, unless that was done before.

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
    """The grammar as llguidance takes it. Whether it is one shows when it is read."""
    if request.json_schema:
        return LLMatcher.grammar_from_json_schema(request.json_schema)
    if request.regex:
        return LLMatcher.grammar_from_regex(request.regex)
    return LLMatcher.grammar_from_lark(request.grammar)


def matcher_of(request: Request, tokenizer: LLTokenizer) -> LLMatcher:
    """What follows the request's grammar, at the start of its answer.

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


def _refused(request: Request, refusal: str) -> PlaygroundError:
    return PlaygroundError(f"{SETTINGS[request.constraint].label} cannot be used: {refusal}")


def _refusal(error: str) -> str:
    """What llguidance's error says, and what to do; "" for none."""
    if not error:
        return ""
    reason = "No text satisfies it." if error.startswith(NO_TEXT) else brief(error)
    return f"{reason} Correct it and run again."


def brief(error: str) -> str:
    """The first lines of llguidance's message, without the state of its parser, as a sentence."""
    lines = " ".join(error.partition("<state>")[0].split())
    return f"{lines[:300].rstrip('.')}."
