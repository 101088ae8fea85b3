"""The kinds of model server: llama-server, vLLM and any OpenAI-compatible one, and those that other packages add.

docs/add-a-backend.md shows how to add one.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from playground.backends.counters import counters
from playground.backends.http import Http
from playground.backends.llama_server import LlamaServer
from playground.backends.openai import OpenAiServer
from playground.backends.server import ServerBackend
from playground.backends.vllm import VllmServer
from playground.errors import PlaygroundError, check
from playground.metrics.load import Counts
from playground.plugins import load_plugins

# In the order in which they are tried. OpenAiServer is not listed: it is the default for any other server.
KINDS: list[type[ServerBackend]] = [LlamaServer, VllmServer]


def _add(kind: type[ServerBackend], package: str) -> None:
    check(isinstance(kind, type) and issubclass(kind, ServerBackend), "it is no subclass of ServerBackend")
    check(not inspect.isabstract(kind), f"it lacks {', '.join(sorted(kind.__abstractmethods__))}")
    taken = _names(kind) & _names(OpenAiServer).union(*map(_names, KINDS))
    check(not taken, f"there is a server named {' and '.join(sorted(taken))} already")
    KINDS.append(kind)


def _names(kind: type[ServerBackend]) -> set[str]:
    """Returns the name of the program, and that of the command that starts it."""
    return {kind.kind, kind.launch.name} if kind.launch else {kind.kind}


load_plugins("playground.backends", _add, first="playground_servers:KINDS")


def programs() -> str:
    """Returns the names of all kinds, such as "llama-server, vLLM or OpenAI-compatible server"."""
    every: list[type[ServerBackend]] = [*KINDS, OpenAiServer]
    return either(every)


def either(kinds: Sequence[type[ServerBackend]]) -> str:
    """Joins the names of two or more kinds, such as "llama-server or vLLM"."""
    *first, last = (kind.kind for kind in kinds)
    return f"{', '.join(first)} or {last}"


def kind_of(http: Http, listing: Sequence[Mapping[str, Any]]) -> type[ServerBackend]:
    """Returns the kind of server that has this listing at /v1/models; by default an OpenAI-compatible one."""
    for kind in KINDS:
        with suppress(PlaygroundError):  # it may ask for a path that other servers do not have
            if kind.is_at(http, listing):
                return kind
    return OpenAiServer


def counts_of(text: str) -> Counts:
    """Reads the text at /metrics of a server of any kind.

    Raises:
        PlaygroundError: these are the metrics of another program.
    """
    counted = [kind for kind in KINDS if kind.counter_names]
    for kind in counted:
        if kind.counter_names and f"\n{kind.counter_names.prefix}" in f"\n{text}":
            return counters(text, kind.counter_names)
    raise PlaygroundError(f"The server's /metrics has no counters of {either(counted)}.")
