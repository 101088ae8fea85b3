"""The kinds of model server, one registration each. docs/add-a-backend.md shows how to add one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from playground.backends.counters import counters
from playground.backends.llama_server import LlamaServer
from playground.backends.server import ServerBackend
from playground.backends.vllm import VllmServer
from playground.errors import PlaygroundError
from playground.metrics.serving import Counts

KINDS: list[type[ServerBackend]] = [LlamaServer, VllmServer]


def programs() -> str:
    """Their names, such as "llama-server or vLLM"."""
    *first, last = (kind.kind for kind in KINDS)
    return f"{', '.join(first)} or {last}"


def kind_of(listing: Sequence[Mapping[str, Any]]) -> type[ServerBackend] | None:
    """The kind of server that lists its models so at /v1/models; None for another program."""
    owner = listing[0].get("owned_by")
    return next((kind for kind in KINDS if kind.owner == owner), None)


def counts_of(text: str) -> Counts:
    """What a server of any kind shows at /metrics.

    Raises:
        PlaygroundError: these are the metrics of another program.
    """
    for kind in KINDS:
        if kind.counter_names and f"\n{kind.counter_names.prefix}" in f"\n{text}":
            return counters(text, kind.counter_names)
    raise PlaygroundError(f"The server's /metrics has no counters of {programs()}.")
