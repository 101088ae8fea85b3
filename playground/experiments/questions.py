"""The prompts of a suite, from a preset or from a user's file in one of several formats."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from playground.conversation import Message, check_turns, check_unicode, messages_of, unwrapped
from playground.errors import PlaygroundError, check
from playground.lane import Request
from playground.presets import Suite, load_suite, suites

MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
BFCL = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
# SPEED-Bench's placeholder for a text that it may not distribute.
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"
FORMS = (
    "A .jsonl file has a JSON object a line, with `prompt`, `turns` or `messages`; a .csv file has a column `prompt`; "
    "a .txt file has a prompt a line. All forms are in docs/experiments.md."
)
OnError = Literal["stop", "skip"]
T = TypeVar("T")


@dataclass(frozen=True)
class Question:
    """A question of one or more turns. `request`: the first turn. `more`: the later turns, which are asked with the
    standard lane's answers to the turns before them, so that all lanes get the same prompts. `conversation`: the number
    of the logged conversation that it is a turn of; None if it belongs to none."""

    category: str
    request: Request
    more: tuple[str, ...] = ()
    conversation: int | None = None

    def __post_init__(self) -> None:
        check_unicode("The category", self.category)
        for number, turn in enumerate(self.more, start=2):
            check_unicode(f"The prompt of turn {number}", turn)


def load(
    source: str,
    per_category: int | None,
    settings: Mapping[str, Any],
    *,
    turns: int | None = None,
    on_error: OnError = "stop",
) -> tuple[list[Question], list[str]]:
    """Reads a suite: its questions, and a sentence for each line that was skipped.

    Args:
        source: the name of a suite in presets/prompts, or a file in one of FORMS. MT-Bench's eight categories, in
            Spec-Bench's format, count as one, as in Spec-Bench's tables.
        per_category: at most this many questions of each category, spread evenly over it; None for all.
        settings: the other fields of each `Request`.
        turns: at most this many turns of each question; None for all.
        on_error: whether a broken line ends the reading or is skipped.

    Raises:
        PlaygroundError: there is no such suite or file, it holds no question, or a line is broken.
    """
    problems: list[str] = []
    if source in suites():
        found = _preset(suites()[source], settings)
    else:
        found = _file(Path(source).expanduser(), settings, on_error, problems)
    found = [replace(question, more=question.more[: turns - 1 if turns else None]) for question in found]
    if per_category is None:
        return found, problems
    groups: dict[str, list[Question]] = {}
    for question in found:
        groups.setdefault(question.category, []).append(question)
    return [question for group in groups.values() for question in spread(group, per_category)], problems


def _preset(suite: Suite, settings: Mapping[str, Any]) -> list[Question]:
    questions = []
    for it in suite.prompts:
        more = {"tools": settings.get("tools") or it.tools}
        if it.json_schema:
            more["json_schema"] = json.dumps(it.json_schema)
        request = Request(it.full_text, history=it.before, system=it.system, **{**settings, **more})
        questions.append(Question(it.kind, request, it.more))
    return questions


def _file(path: Path, settings: Mapping[str, Any], on_error: OnError, problems: list[str]) -> list[Question]:
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return _preset(load_suite(path), settings)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PlaygroundError(
            f"{path.name} is not a suite ({error}). Name one of {', '.join(suites())}, or a UTF-8 text file. {FORMS}"
        ) from error
    read: Callable[[str], Iterable[tuple[int, Any]]] = {".csv": _csv, ".txt": _text}.get(path.suffix, _json)
    questions = []
    for number, entry in read(text):
        try:
            questions.append(_question(entry, path.stem, settings))
        except PlaygroundError as error:
            problem = f"{path.name}, line {number}: {error}"
            if on_error == "stop":
                raise PlaygroundError(f"{problem} {FORMS}") from None
            problems.append(problem)
    if not questions:
        raise PlaygroundError(f"{path.name} is not a suite: it holds no prompt. {FORMS}")
    return questions


def _lines(text: str) -> Iterable[tuple[int, str]]:
    """Splits a text at line feeds alone, because a prompt may hold the other characters that Python treats as line
    ends."""
    return ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())


def _text(text: str) -> Iterable[tuple[int, Any]]:
    return ((number, {"prompt": line}) for number, line in _lines(text))


def _json(text: str) -> Iterable[tuple[int, Any]]:
    for number, line in _lines(text):
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError):
            yield number, None


def _csv(text: str) -> Iterable[tuple[int, Any]]:
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a prompt may be long
    reader = csv.DictReader(io.StringIO(text, newline=""))
    for entry in reader:
        yield reader.line_num, {name: value for name, value in entry.items() if value}


def _question(entry: Any, name: str, settings: Mapping[str, Any]) -> Question:
    """Reads an entry. `name`: its category if it names none.

    Raises:
        PlaygroundError: the entry has an unknown format.
    """
    check(isinstance(entry, dict), "this is not a JSON object.")
    if (sent := unwrapped(entry)) is not entry:
        entry = {"category": entry.get("category", name), **sent}
    if isinstance(entry.get("question"), list):
        entry = _bfcl(entry)
    history, system, turns = _turns(entry)
    category = entry.get("category", name)
    check(isinstance(category, str) and bool(category), "`category` should be a text.")
    check(bool(history) or all(turn.strip() for turn in turns), "a prompt is empty.")
    check(
        not any(turn.startswith(PLACEHOLDER) for turn in turns),
        "the prompt is a placeholder: SPEED-Bench ships part of its texts as references. Run its prepare.py, which "
        "fetches them, and read the file that it writes.",
    )
    if category in MT_BENCH and "turns" in entry and "source" not in entry:  # SPEED-Bench names sources
        category = "mt_bench"
    tools = settings.get("tools") or (json.dumps(entry["tools"]) if entry.get("tools") else "")
    request = Request(turns[0], history=history, system=system, **{**settings, "tools": tools})
    return Question(category, request, tuple(turns[1:]))


def _turns(entry: Mapping[str, Any]) -> tuple[tuple[Message, ...], str, list[str]]:
    """Returns the conversation before the question, the system prompt, and the user's text of each turn."""
    if isinstance(data := entry.get("messages"), list):
        messages = list(messages_of(data))
        system = messages.pop(0).content if messages[0].role == "system" else ""
        if messages and all(message.role == "user" for message in messages):
            return (), system, [message.content for message in messages]
        check_turns(messages)
        prompt = messages.pop().content if messages[-1].role == "user" else ""
        return tuple(messages), system, [prompt]
    system = entry.get("system", "")
    check(isinstance(system, str), "`system` should be a text.")
    prompts = entry.get("prompt", entry.get("text"))
    turns = entry.get("turns", prompts if isinstance(prompts, list) else None if prompts is None else [prompts])
    if isinstance(turns, list):
        turns = [turn.get("text") if isinstance(turn, dict) else turn for turn in turns]
    check(
        isinstance(turns, list) and bool(turns) and all(isinstance(turn, str) for turn in turns),
        "it has no prompt: no text in `prompt` or `text`, no list of texts in `turns`, no `messages`.",
    )
    return (), system, turns


def _bfcl(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Converts an entry of the Berkeley Function-Calling Leaderboard to the form of `messages`. `question` has the
    messages of each turn, `function` the tools in a dialect of JSON schema, and the category is the beginning of its
    `id`."""
    turns = [turn if isinstance(turn, list) else [turn] for turn in entry["question"]]
    functions = entry.get("function") or []
    category = re.sub(r"(_\d+)?([-_]\d+)*$", "", str(entry.get("id", ""))) or "bfcl"
    return {
        "category": category,
        "messages": [message for turn in turns for message in turn],
        "tools": _schema(functions if isinstance(functions, list) else [functions]),
    }


def _schema(data: Any) -> Any:
    """Replaces BFCL's names of types by those of JSON schema."""
    if isinstance(data, list):
        return [_schema(each) for each in data]
    if not isinstance(data, dict):
        return data
    found = {key: _schema(value) for key, value in data.items()}
    return found | {"type": BFCL.get(found["type"], found["type"])} if isinstance(found.get("type"), str) else found


def spread(group: Sequence[T], n: int) -> Sequence[T]:
    """Returns n of a group, evenly from the first to the last; all where there are no more."""
    return group if len(group) <= n else [group[i * len(group) // n] for i in range(n)]
