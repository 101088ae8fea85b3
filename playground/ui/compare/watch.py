"""A comparison for chats: an MCP tool that answers in a few lines, and the view of the replay that clients of MCP Apps
show beside them (the extension io.modelcontextprotocol/ui, version 2026-01-26)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr
from anyio import to_thread

from playground.errors import PlaygroundError, check
from playground.hosting.access import visitor
from playground.hosting.readers import address_of
from playground.presets import Pair
from playground.ui import rooms
from playground.ui.compare.api import add, asked, descriptions
from playground.ui.compare.controls import CompareOptions
from playground.ui.compare.handlers import Handlers
from playground.ui.history.visible import VisibleHistory
from playground.views import markdown, replay_file, stage

VIEW = "ui://playground/replay.html"
NO_ADDRESS = "`replay` is the address that the tool `watch` gave."


def publish(
    page: gr.Blocks, events: Handlers, past: VisibleHistory, pairs: Mapping[str, Pair], concurrency: Mapping[str, Any]
) -> None:
    """Adds the tool `watch`, the view, and what the view asks for."""
    watch = gr.mcp.tool(_meta={"ui": {"resourceUri": VIEW}})(asked(_watch(events, past, pairs)))
    add(page, "watch", watch, descriptions(pairs), **concurrency)
    watched = gr.mcp.tool(_meta={"ui": {"resourceUri": VIEW, "visibility": ["app"]}})(_watched(past))
    add(page, "watched", watched, {"replay": NO_ADDRESS})
    add(page, "replay_view", gr.mcp.resource(VIEW, mime_type="text/html;profile=mcp-app")(_view()), {})


def _watch(
    events: Handlers, past: VisibleHistory, pairs: Mapping[str, Pair]
) -> Callable[[gr.Request, CompareOptions], Awaitable[str]]:
    async def watch(request: gr.Request, options: CompareOptions) -> str:
        """Runs a prompt through a language model twice, with standard and with speculative decoding, and shows the
        reader the replay in clients that show views of tools. Returns JSON: `summary`, the figures of both lanes as
        Markdown, and `replay`, the address of a page that shows the run, to give to the reader ("" if it was stopped,
        or cannot be kept). On a public link that address is kept for a while, for whoever has it. It can take minutes;
        `compare` returns every round.
        `pair` is a preset's name, or "own" to use `target` and `assistant`.
        """
        session, address = str(request.session_hash), address_of(request)
        shown = await events.compare(session, options, address=address)
        summary = await to_thread.run_sync(markdown.table, shown.comparison, [*pairs.values()])
        query = ""
        with suppress(PlaygroundError):  # it was stopped, or the history cannot be written
            query = past.share(past.client(visitor(address, session)), shown)
        return json.dumps(
            {"summary": summary, "replay": f"{rooms.home() or request.base_url}?{query}" if query else ""}
        )

    return watch


def _watched(past: VisibleHistory) -> Callable[[str], str]:
    def watched(replay: str) -> str:
        """For the view of `watch`: the run at an address, as JSON that the view draws."""
        try:
            comparison = past.linked("", dict(parse_qsl(replay.partition("?")[2])))
            check(comparison is not None, NO_ADDRESS)
        except PlaygroundError as problem:
            raise gr.Error(str(problem), print_exception=False) from problem
        assert comparison
        return json.dumps(stage.packed(stage.replaying(comparison).value()), separators=(",", ":"))

    return watched


def _view() -> Callable[[], str]:
    def replay_view() -> str:
        """The replay of a run that `watch` made, as HTML for clients of MCP Apps."""
        return replay_file.in_chat()

    return replay_view
