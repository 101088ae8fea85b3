"""The tools and the view of a run, as a client of MCP gets them from a page that serves them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from playground.hosting.access import FOR_VISITORS, Access
from playground.hosting.request_filter import NOT_JSON
from playground.ui.compare.api import NO_ADDRESS, VIEW
from tests.ui import fakes

STRANGERS = Access(public=True, models=(), limits=FOR_VISITORS)


def ask(address: str, asking: Callable[[ClientSession], Awaitable[Any]]) -> Any:
    async def connected() -> Any:
        async with (
            streamable_http_client(f"{address}/gradio_api/mcp/") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            return await asking(session)

    return anyio.run(connected)


def test_the_tool_has_a_view_and_only_the_view_asks_for_the_run(serve):
    async def asking(session: ClientSession) -> Any:
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        return tools, (await session.read_resource(VIEW)).contents[0]

    tools, view = ask(serve(fakes.Backend, mcp_server=True), asking)
    assert tools["watch"].meta == {"ui": {"resourceUri": VIEW}}
    assert tools["watched"].meta["ui"]["visibility"] == ["app"]
    assert set(tools["watch"].inputSchema["properties"]) == set(tools["compare"].inputSchema["properties"])
    assert view.mimeType == "text/html;profile=mcp-app"
    assert view.text.startswith("<!doctype html>") and "default-src 'none'" in view.text


@pytest.mark.parametrize("access", [Access(), STRANGERS], ids=["own", "strangers"])
def test_a_run_is_told_in_few_words_and_the_view_gets_all_of_it(serve, access):
    async def asking(session: ClientSession) -> Any:
        told = json.loads(
            (await session.call_tool("watch", {"prompt": "echo one two three", "pair": "fake"})).content[0].text
        )
        got = await session.call_tool("watched", {"replay": told["replay"]})
        return told, json.loads(got.content[0].text)

    told, packed = ask(serve(fakes.Backend, access, mcp_server=True), asking)
    assert told["summary"].startswith("|  | Standard |") and "Identical output" in told["summary"]
    assert [*parse_qs(urlsplit(told["replay"]).query)] == (["shared"] if access.public else ["id"])
    value = json.loads(packed["rest"])
    assert value["asked"] == "echo one two three" and value["replay"] == "loop" and all(packed["logs"])
    assert [lane["state"] for lane in value["lanes"]] == ["done", "done"]


def test_a_malformed_request_is_answered_in_words_and_fills_no_log(serve, caplog):
    address = serve(fakes.Backend, STRANGERS, mcp_server=True)

    def call(arguments: Any) -> dict:
        return {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "watched", "arguments": arguments},
        }

    accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    expected = {
        "{": NOT_JSON,
        json.dumps(call({"replay": "\ud800"})): NOT_JSON,
        json.dumps(call({"replay": "http://["})): NO_ADDRESS,
        json.dumps(call([1])): "Invalid request parameters",
        json.dumps(call({"replay": "x" * 500_000})): "up to 500,000 bytes",
    }
    for body, answer in expected.items():
        assert answer in httpx.post(f"{address}/gradio_api/mcp/", content=body, headers=accept).text
    assert not any(record.exc_info or "\n" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("access", [Access(), STRANGERS], ids=["own", "strangers"])
def test_another_address_is_refused_in_words(serve, access):
    refused = {"http://a/?id=00000000": "private or deleted", "http://a/": NO_ADDRESS, "": NO_ADDRESS}

    async def asking(session: ClientSession) -> Any:
        return [await session.call_tool("watched", {"replay": replay}) for replay in refused]

    answers = ask(serve(fakes.Backend, access, mcp_server=True), asking)
    for answer, reason in zip(answers, refused.values(), strict=True):
        assert answer.isError and reason in answer.content[0].text
