"""The Servers tab without a browser: what its handlers show of a server, and of what goes wrong."""

from __future__ import annotations

import asyncio

from playground.experiments.history import History
from playground.experiments.session import Session
from playground.hosting.access import FOR_VISITORS, NO_SERVERS, Access
from playground.hosting.turns import Turns
from playground.metrics.load import Window
from playground.ui import serve as servers

WINDOWS = [Window(5 * i, 5 * i + 5, 100, 0.5, 2.5, (0.8, 0.5), 40.0, 2, 0) for i in range(3)]


def test_a_server_is_watched_until_stop(monkeypatch):
    turns = Turns(Access(), Session(History(None), None))

    def watched(url, every_s, watch):
        yield from WINDOWS
        assert watch.wait(60)

    monkeypatch.setattr(servers, "watched", watched)

    async def stopped_once_it_shows_windows() -> list[dict]:
        seen = []
        async for update in servers.monitored(Access(), turns, "me", "http://127.0.0.1:2", 5):
            seen.append(update)
            if "Watching" in update["shown"]:
                turns.stop("me")
        return seen

    begun, *_, last = asyncio.run(stopped_once_it_shows_windows())
    assert "busy" in begun["shown"] and not begun["run"]["interactive"] and begun["stop"]["interactive"]
    assert "Stopped." in last["shown"] and "low: 50%" in last["shown"] and last["lines"].count("50%") == 3
    assert last["first"]["visible"] and last["second"]["visible"]
    assert last["run"]["interactive"] and not last["stop"]["interactive"]


def test_what_cannot_be_had_is_a_sentence():
    def said(access: Access = Access()) -> str:  # noqa: B008
        async def all_of() -> list[dict]:
            turns = Turns(access, Session(History(None), None))
            return [update async for update in servers.monitored(access, turns, "me", "http://127.0.0.1:1", 5)]

        last = asyncio.run(all_of())[-1]
        assert 'role="alert"' in last["shown"] and last["run"]["interactive"] and not last["stop"]["interactive"]
        return last["shown"]

    assert "No server" in said()
    assert NO_SERVERS in said(Access(public=True, models=(), limits=FOR_VISITORS))
