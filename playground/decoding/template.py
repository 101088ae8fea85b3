"""Chat templates, programs that come with models, are rendered in another process, within limits of time and size.

transformers renders them in a sandbox, which denies them files but does not stop an endless loop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from playground.child import child_of
from playground.errors import PlaygroundError, check

SCRIPT = Path(__file__).with_name("template_process.py")
LIMIT_S = 5.0
LIMIT = 10_000_000  # characters of JSON
ELSE = "Switch the chat template off, or choose another model."


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    arguments: Mapping[str, Any] | None = None,
    open_end: bool = True,
) -> str:
    """Renders a conversation in the tokenizer's chat template, to the text of `apply_chat_template`.

    Args:
        messages: messages in the form of `conversation.as_dict`. The arguments of tool calls are passed as objects, and
            again as text to templates that fail on objects.
        arguments: further variables of the template, such as enable_thinking.
        open_end: whether the text ends with the start of the next answer.

    Raises:
        PlaygroundError: the template does not name an argument, refuses the messages, takes too long, or writes too
            much.
    """
    chosen, arguments = _chosen(tokenizer, bool(tools)), arguments or {}
    if arguments:
        named = names(tokenizer, tools=bool(tools))
        unknown = [name for name in arguments if name not in named]
        check(
            not unknown,
            f"The model's chat template does not read {', '.join(unknown)}. It reads {', '.join(named) or 'none'}.",
        )
    question = {
        **arguments,
        "tools": list(tools) or None,
        "chat_template": chosen,
        "add_generation_prompt": open_end,
        **tokenizer.special_tokens_map,
    }
    answer = _ask({**question, "conversations": [messages]})
    if "error" in answer and any("tool_calls" in message for message in messages):
        as_text = _ask({**question, "conversations": [[_text_arguments(message) for message in messages]]})
        answer = answer if "error" in as_text else as_text
    if "error" in answer:
        raise PlaygroundError(
            f"The model's chat template refuses these messages ({answer['error']}). "
            "Leave the system prompt empty, or switch the chat template off."
        )
    return answer["text"]


def names(tokenizer: PreTrainedTokenizerBase, *, tools: bool = False) -> list[str]:
    """Returns the arguments that the tokenizer's chat template reads in addition to messages and tools, from its
    source.

    Raises:
        PlaygroundError: the tokenizer has several templates and no default, or parsing takes too long.
    """
    found = _ask({"names_of": _chosen(tokenizer, tools)}).get("names", [])
    return [name for name in found if name not in tokenizer.special_tokens_map]


def _chosen(tokenizer: PreTrainedTokenizerBase, tools: bool) -> str:
    try:
        return tokenizer.get_chat_template(tools=[{}] if tools else None)
    except ValueError as error:  # it has several, and none is the default
        raise PlaygroundError(f"{error} {ELSE}") from None


def _text_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", [])
    ]
    return {**message, "tool_calls": calls} if calls else dict(message)


def _ask(question: Mapping[str, Any]) -> dict[str, Any]:
    """Sends a question to the process of template_process.py and returns its answer.

    Raises:
        PlaygroundError: the answer took longer than LIMIT_S, is longer than LIMIT, or never came.
    """
    line = child_of(SCRIPT).ask(json.dumps(question, default=str), seconds=LIMIT_S, characters=LIMIT)
    check(len(line) <= LIMIT, f"The model's chat template writes more than {LIMIT:,} characters. {ELSE}")
    check(
        line.endswith("\n"),
        f"The model's chat template did not end within {LIMIT_S:.0f} s, or took too much memory. {ELSE}",
    )
    return json.loads(line)
