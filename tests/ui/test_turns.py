"""Many visitors at once, and visitors who leave, through a real server on this machine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from playground.hosting.turns import _place
from playground.ui.compare.controls import SERVERS
from tests.ui.test_controls import ASKED
from tests.ui.test_events import endless
from tests.ui.visitors import Visitor, arriving

ASK = list(ASKED.values.values())
IN_TIME_S = 40  # a frozen page answers after a minute, or never
EMITTED, STOPPED = threading.Event(), threading.Event()
ENDLESS = endless(EMITTED, STOPPED)


@pytest.fixture
def url(serve) -> Iterator[str]:
    yield serve(ENDLESS)
    while any(thread.name == "decoding" for thread in threading.enumerate()):
        time.sleep(0.01)
    EMITTED.clear()
    STOPPED.clear()


async def within(answer: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(answer, IN_TIME_S)


async def waits(visitor: Visitor, waiting: asyncio.Event) -> None:
    """Presses Run; `waiting` is set once the run has something to tell."""
    await visitor.join("stream", [[*ASK, *[""] * len(SERVERS)], ""])
    seen = 0
    async for message in visitor.messages():
        seen += message["msg"] == "process_generating"
        if seen == 2:
            waiting.set()


@pytest.mark.parametrize("runs", [45, pytest.param(200, marks=pytest.mark.slow)])
def test_the_page_answers_while_more_runs_wait_than_there_are_threads(url, runs):
    async def visit() -> None:
        async with arriving(url) as arrive:
            waiting = [asyncio.Event() for _ in range(runs)]
            visits = [asyncio.create_task(waits(arrive(), event)) for event in waiting]
            for event in waiting:
                await asyncio.wait_for(event.wait(), 300)
            decoding = [thread for thread in threading.enumerate() if thread.name == "decoding"]
            assert len(decoding) == 1
            newcomer = arrive()
            assert (await within(newcomer.press("stop_own"))).status_code == 200
            for each in visits:
                each.cancel()
            await asyncio.gather(*visits, return_exceptions=True)

    asyncio.run(visit())
    assert STOPPED.wait(IN_TIME_S), "all tabs were closed"


async def posts_and_never_reads(client: httpx.AsyncClient) -> None:
    await client.post("/gradio_api/call/compare", json={"data": ASK})


async def reads_and_leaves(client: httpx.AsyncClient, began: Callable[[], Awaitable[Any]]) -> None:
    event = (await client.post("/gradio_api/call/compare", json={"data": ASK})).json()["event_id"]
    async with client.stream("GET", f"/gradio_api/call/compare/{event}"):
        await began()


@pytest.mark.parametrize("reads", [False, True])
def test_a_run_of_the_endpoint_ends_when_nobody_reads_it(url, reads):
    async def call() -> None:
        async with httpx.AsyncClient(base_url=url) as client:
            if reads:
                await reads_and_leaves(client, lambda: asyncio.to_thread(EMITTED.wait, IN_TIME_S))
            else:
                await posts_and_never_reads(client)

    asyncio.run(call())
    assert EMITTED.wait(IN_TIME_S) and STOPPED.wait(IN_TIME_S)


def test_nobody_gets_past_the_queue(url):
    answer = httpx.post(f"{url}/gradio_api/run/compare", json={"data": ASK})
    assert answer.status_code == 404 and not EMITTED.is_set()


def test_places_are_told_exactly_where_they_are_near():
    assert [_place(n) for n in (1, 10)] == ["You are 2nd in the queue.", "You are 11th in the queue."]
    assert _place(11) == _place(20) == "More than 10 runs are ahead of yours."
    assert _place(21) == "More than 20 runs are ahead of yours."
