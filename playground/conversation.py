"""Conversations as data: messages, tools and template arguments, read from their usual forms. It needs no model."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from playground.errors import PlaygroundError, check

Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)
ANSWERED = ("user", "tool")  # roles that a model answers


@dataclass(frozen=True)
class ToolCall:
    """A call that the assistant made. `arguments`: a JSON object, as text. `id`: refers to the call in the tool's
    answer."""

    name: str
    arguments: str = "{}"
    id: str = ""


@dataclass(frozen=True)
class Message:
    """One message. `reasoning_content`: the assistant's thinking. `tool_call_id`, `name`: of a tool's answer."""

    role: Role
    content: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        """The whole text of the message, calls included."""
        calls = [f"{call.name}({call.arguments})" for call in self.tool_calls]
        return "\n\n".join(filter(None, [self.reasoning_content, self.content, *calls]))


def read_messages(text: str) -> tuple[tuple[Message, ...], str]:
    """Read a conversation in JSON: a list of messages in OpenAI's form, or an object with `messages` and optional
    `tools`.

    Returns:
        The messages, and the tools as text for `read_tools`; "" if there are none.

    Raises:
        PlaygroundError: it is no such conversation.
    """
    data = unwrapped(_json(text, "conversation"))
    tools = data.get("tools") if isinstance(data, dict) else None
    messages = data.get("messages") if isinstance(data, dict) else data
    return messages_of(messages), json.dumps(tools) if tools else ""


def unwrapped(entry: Any) -> Any:
    """Return the request inside a log entry: OpenAI's Batch API has it under `body`, logs of requests under
    `request`."""
    inner = (entry.get(name) for name in ("body", "request")) if isinstance(entry, dict) else ()
    return next((sent for sent in inner if isinstance(sent, dict)), entry)


def messages_of(data: Any) -> tuple[Message, ...]:
    """Return the messages of OpenAI's chat completions.

    Raises:
        PlaygroundError: the data is something else; the sentence says which message it is.
    """
    check(isinstance(data, list) and bool(data), "A conversation should be a list of messages, and not empty.")
    return tuple(_message(each, f"Message {number}") for number, each in enumerate(data, start=1))


def check_turns(messages: Sequence[Message]) -> None:
    """Check that a conversation can be answered.

    Raises:
        PlaygroundError: there is nothing to answer, or a tool's answer has no call.
    """
    check(bool(messages), "The conversation is empty. Give at least one message of the user.")
    last = messages[-1].role
    check(
        last in ANSWERED,
        f"The conversation ends with a message of the role {last}, which leaves nothing to answer. End it with one of "
        f"{' or '.join(ANSWERED)}, or add a prompt.",
    )
    called = False
    for number, message in enumerate(messages, start=1):
        check(message.role != "tool" or called, f"Message {number} is a tool's answer, and no tool was called before.")
        called = bool(message.tool_calls) or (called and message.role == "tool")


def as_dict(message: Message, *, text_arguments: bool = False) -> dict[str, Any]:
    """Return the message in the form of chat templates and servers. `text_arguments`: a call's arguments as JSON text,
    which is OpenAI's form and that of some templates, rather than as an object."""
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    for name in ("reasoning_content", "tool_call_id", "name"):
        if value := getattr(message, name):
            found[name] = value
    if message.tool_calls:
        found["tool_calls"] = [_call_as_dict(call, text_arguments) for call in message.tool_calls]
    return found


def read_tools(text: str) -> list[dict[str, Any]]:
    """Read tools in JSON: a list of OpenAI's tools, or of functions without a wrapper. "" is none.

    Raises:
        PlaygroundError: an entry is no tool.
    """
    if not text.strip():
        return []
    data = _json(text, "list of tools")
    data = data.get("tools", [data]) if isinstance(data, dict) else data
    check(isinstance(data, list), "The tools should be a JSON list.")
    return [_tool(each, f"Tool {number}") for number, each in enumerate(data, start=1)]


THINKING = ("enable_thinking", "thinking")  # template arguments that switch thinking


def read_arguments(text: str) -> dict[str, Any]:
    """Read template arguments: KEY=VALUE, separated by spaces or line ends, a value with spaces in quotes; or a JSON
    object. A value that is JSON, such as true or 3, is read as such, else as text. "" is none.

    Raises:
        PlaygroundError: a part has no name or no "=".
    """
    if text.lstrip().startswith("{"):
        data = _json(text, "set of template arguments")
        check(isinstance(data, dict), "The template arguments should be a JSON object.")
        return data
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise PlaygroundError(f"The template arguments cannot be read ({error}). Close the quotes.") from None
    found = {}
    for part in parts:
        name, equals, value = part.partition("=")
        check(
            bool(equals) and name.isidentifier(),
            f"The template argument {part!r} should be KEY=VALUE, such as enable_thinking=false.",
        )
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads({"True": "true", "False": "false"}.get(text, text))
    except (ValueError, RecursionError):
        return text


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise PlaygroundError(f"The {what} is not JSON ({error}).") from None


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _message(data: Any, where: str) -> Message:
    check(isinstance(data, dict), f"{where} should be an object with `role` and `content`.")
    role = data.get("role")
    check(role in ROLES, f"{where} has the role {role!r}; it should be one of {', '.join(ROLES)}.")
    calls = data.get("tool_calls") or []
    check(isinstance(calls, list) and (not calls or role == "assistant"), f"{where} has tool_calls that are none.")
    content = _content(data.get("content"), where)
    thinking = _text(data.get("reasoning_content") or data.get("reasoning") or "", f"{where}: reasoning_content")
    message = Message(
        role,
        content,
        thinking,
        tuple(_call(call, where) for call in calls),
        _text(data.get("tool_call_id") or "", f"{where}: tool_call_id"),
        _text(data.get("name") or "", f"{where}: name"),
    )
    check(bool(message.text.strip()) or role in ("assistant", "tool"), f"{where}, of the role {role}, is empty.")
    return message


def _content(content: Any, where: str) -> str:
    """Return the content's text, which is a string or OpenAI's list of parts."""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        check(
            all(isinstance(part, str) for part in parts),
            f"{where} holds something other than text, such as an image. Leave it out: the models here read text.",
        )
        return "\n\n".join(map(str, parts))
    return _text("" if content is None else content, f"{where}: content")


def _text(value: Any, where: str) -> str:
    check(isinstance(value, str), f"{where} should be text.")
    check_unicode(where, value)
    return value


def check_unicode(where: str, text: str) -> None:
    """Check that a text can be written as Unicode. `where`: what holds it.

    Raises:
        PlaygroundError: it cannot.
    """
    at = next((i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
    check(
        at is None,
        f"{where} holds half of a surrogate pair at character {at}, which is not text and cannot be tokenised. Remove "
        "that character.",
    )


def _function(data: Any, refusal: str) -> dict[str, Any]:
    """Returns the named function of a tool or of a call, in OpenAI's form or without its wrapper."""
    function = data.get("function", data) if isinstance(data, dict) else None
    known = isinstance(function, dict) and isinstance(function.get("name"), str) and bool(function["name"])
    check(known, refusal)
    return cast(dict[str, Any], function)


def _call(data: Any, where: str) -> ToolCall:
    function = _function(data, f"{where} has a tool call without the name of a function.")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    check(
        isinstance(arguments, dict), f"{where}: the arguments of the call of {function['name']} are not a JSON object."
    )
    return ToolCall(function["name"], json.dumps(arguments, ensure_ascii=False), str(data.get("id") or ""))


def _call_as_dict(call: ToolCall, text_arguments: bool) -> dict[str, Any]:
    arguments = call.arguments if text_arguments else json.loads(call.arguments)
    found: dict[str, Any] = {"type": "function", "function": {"name": call.name, "arguments": arguments}}
    return {"id": call.id, **found} if call.id else found


def _tool(data: Any, where: str) -> dict[str, Any]:
    function = _function(data, f"{where} is no tool: it should be an object with `function`, which has a name.")
    where = f"{where}, {function['name']},"
    check(isinstance(function.get("description", ""), str), f"{where} has a description that is no text.")
    schema = function.get("parameters", {"type": "object", "properties": {}})
    properties = schema.get("properties", {}) if isinstance(schema, dict) else None
    check(
        isinstance(schema, dict)
        and schema.get("type", "object") in ("object", "dict")
        and isinstance(properties, dict)
        and all(isinstance(each, (dict, bool)) for each in properties.values()),
        f"{where} has parameters that are no JSON schema of an object.",
    )
    return {"type": "function", "function": {**function, "parameters": {**schema, "type": "object"}}}
