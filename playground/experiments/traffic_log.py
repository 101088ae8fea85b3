"""Logs of conversations: each assistant turn becomes a question with its real history.

A log is JSON or JSON lines. An entry has `messages` (OpenAI's chat completions, perhaps with `tools`, and with the
answer in `choices`, under `response` or next to them), or `conversations` (ShareGPT). The messages may be under
`request` or, as in files of OpenAI's Batch API, under `body`. Importing this loads no torch; `traffic.py` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playground.conversation import Message, messages_of, read_tools, unwrapped
from playground.errors import PlaygroundError, check
from playground.experiments.questions import OnError, Question
from playground.lane import Request

FORMS = (
    "A log is JSON or JSON lines: entries with `messages` as OpenAI's chat completions have them, or with "
    "`conversations` as ShareGPT has them."
)
NAMES = {
    "user": ("human", "user"),
    "assistant": ("gpt", "assistant", "chatgpt", "bing", "bard"),
    "system": ("system",),
    "tool": ("tool", "observation"),
}  # ShareGPT's, by the role
SHAREGPT = {name: role for role, names in NAMES.items() for name in names}
MOST_TURNS = 4  # later ones are one category


@dataclass(frozen=True)
class Turn:
    """An assistant turn: its request, and the logged answer."""

    question: Question
    answer: Message


@dataclass(frozen=True)
class Log:
    """A log. `problems`: a sentence for each entry that was skipped."""

    turns: tuple[Turn, ...]
    conversations: int
    problems: tuple[str, ...]


def load(source: str, settings: Mapping[str, Any], on_error: OnError = "skip") -> Log:
    """Reads a log.

    Args:
        source: a file, or the log itself.
        settings: the other fields of each `Request`.
        on_error: whether a broken entry ends the reading or is skipped.

    Raises:
        PlaygroundError: it cannot be read, holds no assistant's turn, or an entry is broken.
    """
    name, text = _text(source)
    turns: list[Turn] = []
    conversations, problems = 0, []
    for where, entry in _entries(text):
        try:
            check(entry is not None, "this is not JSON.")
            found = _turns(entry, settings, conversations)
            check(bool(found), "it has no answer of the assistant to a question.")
            turns += found
            conversations += 1
        except PlaygroundError as error:
            problem = f"{name}, {where}: {error}"
            check(on_error == "skip", f"{problem} {FORMS}")
            problems.append(problem)
    if not turns:
        raise PlaygroundError(f"{name} holds no assistant's turn. {(problems or [''])[0]} {FORMS}".replace("  ", " "))
    return Log(tuple(turns), conversations, tuple(problems))


def _text(source: str) -> tuple[str, str]:
    if source.lstrip().startswith(("{", "[")):
        return "The log", source
    path = Path(source).expanduser()
    try:
        return path.name, path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PlaygroundError(f"The log {path.name} cannot be read ({error}). {FORMS}") from None


def _entries(text: str) -> Iterable[tuple[str, Any]]:
    """Yields each entry's JSON with its position; None if it is no JSON."""
    whole = _parsed(text)
    if isinstance(whole, list) and not (whole and isinstance(whole[0], dict) and "role" in whole[0]):
        return [(f"entry {number}", entry) for number, entry in enumerate(whole, start=1)]
    if whole is not None:
        return [("entry 1", {"messages": whole} if isinstance(whole, list) else whole)]
    lines = enumerate(text.split("\n"), start=1)
    return [(f"line {number}", _parsed(line)) for number, line in lines if line.strip()]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _turns(entry: Any, settings: Mapping[str, Any], conversation: int) -> list[Turn]:
    entry = {"messages": entry} if isinstance(entry, list) else entry
    check(isinstance(entry, dict), "this is neither an object nor a list of messages.")
    request = unwrapped(entry)
    messages = messages_of(_sharegpt(entry["conversations"]) if "conversations" in entry else _openai(request, entry))
    tools = json.dumps(request["tools"]) if request.get("tools") else ""
    read_tools(tools)
    turns: list[Turn] = []
    for at, answer in enumerate(messages):
        if answer.role != "assistant" or not answer.text.strip() or at == 0 or messages[at - 1].role == "assistant":
            continue
        asked = Request.of(messages[:at], **{**settings, "tools": settings.get("tools") or tools})
        number = len(turns) + 1
        category = f"turn {number}" if number < MOST_TURNS else f"turn {MOST_TURNS} and later"
        turns.append(Turn(Question(category, asked, conversation=conversation), answer))
    return turns


def _openai(request: Mapping[str, Any], entry: Mapping[str, Any]) -> list[Any]:
    messages = request.get("messages")
    check(isinstance(messages, list), "it has neither `messages` nor `conversations`.")
    assert isinstance(messages, list)
    response = entry.get("response") if isinstance(entry.get("response"), dict) else entry
    assert response is not None
    choices = (response["body"] if isinstance(response.get("body"), dict) else response).get("choices")
    answers = [it["message"] for it in choices[:1] if isinstance(it, dict) and "message" in it] if choices else []
    return [*messages, *answers]


def _sharegpt(turns: Any) -> list[dict[str, Any]]:
    check(isinstance(turns, list), "`conversations` should be a list.")
    for number, turn in enumerate(turns, start=1):
        known = isinstance(turn, dict) and turn.get("from") in SHAREGPT and isinstance(turn.get("value"), str)
        check(known, f"turn {number} of `conversations` should have `from` (human or gpt) and `value`.")
    return [{"role": SHAREGPT[turn["from"]], "content": turn["value"]} for turn in turns]


def spread(turns: tuple[Turn, ...], most: int) -> tuple[Turn, ...]:
    """Returns at most `most` of the turns, evenly from the first to the last; 0 means all."""
    return turns if not most or len(turns) <= most else tuple(turns[i * len(turns) // most] for i in range(most))
