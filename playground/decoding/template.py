"""Chat templates, the programs that come with models: rendered in another process, within limits of time and size.

transformers renders them in a sandbox, which keeps them from files but not from looping for ever.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from playground.errors import PlaygroundError, check

SCRIPT = Path(__file__).with_name("template_process.py")
ENVIRONMENT = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH", "TZ")  # what the process is given of ours
LIMIT_S = 5.0
STARTS_WITHIN_S = 180.0
LIMIT = 10_000_000  # characters of JSON
ELSE = "Switch the chat template off, or choose another model."


def render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, str]]) -> str:
    """A conversation in the tokenizer's chat template, up to the start of the next answer: the text that
    `apply_chat_template` makes of it.

    Raises:
        PlaygroundError: the template refuses the messages, takes too long, or writes too much.
    """
    try:
        chosen = tokenizer.get_chat_template()
    except ValueError as error:  # it has several, and none is the default
        raise PlaygroundError(f"{error} {ELSE}") from None
    asked = {
        "conversations": [messages],
        "chat_template": chosen,
        "add_generation_prompt": True,
        **tokenizer.special_tokens_map,
    }
    answer = _process_of(os.getpid()).ask(json.dumps(asked, default=str))
    if "error" in answer:
        raise PlaygroundError(
            f"The model's chat template refuses these messages ({answer['error']}). "
            "Leave the system prompt empty, or switch the chat template off."
        )
    return answer["text"]


@cache
def _process_of(pid: int) -> Process:
    """One for each process of ours: a fork must not write into the pipes of its parent's."""
    return Process()


class Process:
    """Started when it is first asked; killed, and started again for the next question, when an answer is late."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def ask(self, question: str) -> dict[str, str]:
        """Raises:
        PlaygroundError: the answer took longer than LIMIT_S, is longer than LIMIT, or never came.
        """
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = _started()
            process = self._process
            assert process.stdin
            process.stdin.write(f"{question}\n")
            process.stdin.flush()
            line = _line(process, LIMIT_S)
            if not line.endswith("\n"):
                process.kill()
                process.communicate()
                self._process = None
        check(len(line) <= LIMIT, f"The model's chat template writes more than {LIMIT:,} characters. {ELSE}")
        check(
            line.endswith("\n"),
            f"The model's chat template did not end within {LIMIT_S:.0f} s, or took too much memory. {ELSE}",
        )
        return json.loads(line)


def _started() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-I", str(SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
    )
    check(
        _line(process, STARTS_WITHIN_S) == "ready\n",
        "The process that renders chat templates does not start. Switch the chat template off.",
    )
    return process


def _line(process: subprocess.Popen[str], limit_s: float) -> str:
    """The next line, or what there is of it when the limit of time or size is met."""
    assert process.stdout
    late = threading.Timer(limit_s, process.kill)
    late.start()
    try:
        return process.stdout.readline(LIMIT + 1)
    finally:
        late.cancel()
