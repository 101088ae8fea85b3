"""The kinds of model server, one registration each. docs/add-a-backend.md shows how to add one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from playground.backends.counters import counters
from playground.backends.http import Http
from playground.backends.llama_server import LlamaServer
from playground.backends.openai import OpenAiServer
from playground.backends.others import LmStudio, MlxVlm, Ollama, SglangServer
from playground.backends.server import ServerBackend
from playground.backends.vllm import VllmServer
from playground.errors import PlaygroundError
from playground.metrics.load import Counts

# Without OpenAiServer, which any other server is taken for.
KINDS: list[type[ServerBackend]] = [LlamaServer, VllmServer, SglangServer, LmStudio, MlxVlm, Ollama]


def programs() -> str:
    """Their names, such as "llama-server, vLLM or OpenAI-compatible server"."""
    every: list[type[ServerBackend]] = [*KINDS, OpenAiServer]
    return either(every)


def either(kinds: Sequence[type[ServerBackend]]) -> str:
    """Two or more kinds by name, such as "llama-server or vLLM"."""
    *first, last = (kind.kind for kind in kinds)
    return f"{', '.join(first)} or {last}"


def kind_of(http: Http, listing: Sequence[Mapping[str, Any]]) -> type[ServerBackend]:
    """The kind of server that lists its models so at /v1/models; at least an OpenAI-compatible one."""
    return next((kind for kind in KINDS if kind.is_at(http, listing)), OpenAiServer)


def counts_of(text: str) -> Counts:
    """What a server of any kind shows at /metrics.

    Raises:
        PlaygroundError: these are the metrics of another program.
    """
    counted = [kind for kind in KINDS if kind.counter_names]
    for kind in counted:
        if kind.counter_names and f"\n{kind.counter_names.prefix}" in f"\n{text}":
            return counters(text, kind.counter_names)
    raise PlaygroundError(f"The server's /metrics has no counters of {either(counted)}.")
