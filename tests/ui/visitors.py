"""Programs that use the page as its script does, or worse: without a browser and without Gradio's client."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx


class Visitor:
    """One session on a page. To be used in one event loop."""

    def __init__(self, client: httpx.AsyncClient, events: dict[str, int]) -> None:
        self.client, self.events, self.session = client, events, uuid.uuid4().hex

    async def join(self, name: str, data: list[Any]) -> str:
        """Asks for one of the page's events; its id."""
        body = {"data": data, "fn_index": self.events[name], "session_hash": self.session}
        answer = await self.client.post("/gradio_api/queue/join", json=body)
        answer.raise_for_status()
        return answer.json()["event_id"]

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """What the session is sent. Leaving it closes the connection."""
        async with self.client.stream("GET", "/gradio_api/queue/data", params={"session_hash": self.session}) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    yield json.loads(line.removeprefix("data:"))

    async def press(self, name: str, data: list[Any] | None = None) -> httpx.Response:
        """A short event, which does not go through Gradio's queue."""
        body = {"data": data or [], "fn_index": self.events[name], "session_hash": self.session}
        return await self.client.post("/gradio_api/run/predict", json=body)


@asynccontextmanager
async def arriving(url: str) -> AsyncIterator[Any]:
    """`arrive()` makes a visitor of the page at this address."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        config = (await client.get("/config")).json()
        events = {it["api_name"]: it["id"] for it in config["dependencies"]}
        yield lambda: Visitor(client, events)
