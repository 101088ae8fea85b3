"""The Servers tab without a browser: what its handlers show of servers, and of what goes wrong."""

from __future__ import annotations

import asyncio

from playground.access import FOR_VISITORS, NO_SERVERS, Access
from playground.metrics.load import Answered, Level
from playground.metrics.serving import Window
from playground.ui.tabs import servers
from playground.ui.tabs.server_runs import ServerRuns

ASKED = {
    "baseline": "http://127.0.0.1:1", "server": "http://127.0.0.1:2", "model": "", "levels": "1, 2", "requests": 8,
    "ttft": 1.0, "tpot": 0.1, "suite": "examples", "file": None, "per_category": 1, "max_new_tokens": 4,
}  # fmt: skip
WINDOWS = [Window(5 * i, 5 * i + 5, 100, 0.5, 2.5, (0.8, 0.5), 40.0, 2, 0) for i in range(3)]


def collected(updates) -> list[tuple]:
    async def all_of() -> list[tuple]:
        return [update async for update in updates]

    return asyncio.run(all_of())


def rows(lane: str, latency: float) -> list[Answered]:
    return [Answered(Level(concurrency=1), lane, i, 0, 0.0, ((0.1, 1), (latency, 9))) for i in range(8)]


def test_a_server_is_watched_until_stop(monkeypatch):
    runs = ServerRuns(Access())

    def watch(url, every_s, stop):
        yield from WINDOWS
        assert stop.wait(10)

    monkeypatch.setattr(servers.monitor, "watch", watch)

    async def stopped_once_it_shows_windows() -> list[tuple]:
        seen = []
        async for update in servers.monitored(runs, "me", "http://127.0.0.1:2", 5):
            seen.append(update)
            if "Watching" in update[0]:
                runs.stop("me")
        return seen

    begun, *_, last = asyncio.run(stopped_once_it_shows_windows())
    assert "busy" in begun[0] and not begun[-2]["interactive"] and begun[-1]["interactive"]
    head, first, second, lines, run, stop = last
    assert "Stopped." in head and "Acceptance is low: 50%" in head and lines.count("50%") == 3
    assert first["visible"] and second["visible"] and run["interactive"] and not stop["interactive"]


def test_a_load_test_ends_with_verdict_charts_and_table(monkeypatch):
    monkeypatch.setattr(servers, "server_lanes", lambda urls, model: ([], {}))
    answered = [*rows("<b>plain</b>", 2.0), *rows("lookup", 1.0)]
    monkeypatch.setattr(servers.load, "run", lambda *args, **more: answered)
    head, pareto, speedup, table, run, _ = collected(servers.loaded(ServerRuns(Access()), "me", ASKED))[-1]
    assert "2.00× at 1 (2.00 to 2.00)" in head and "<b>" not in head + table and table.count("<tr>") == 3
    assert pareto["visible"] and speedup["visible"] and run["interactive"]


def test_what_cannot_be_had_is_a_sentence():
    def said(access: Access = Access(), **changes) -> str:  # noqa: B008
        head, *_, run, stop = collected(servers.loaded(ServerRuns(access), "me", {**ASKED, **changes}))[-1]
        assert 'role="alert"' in head and run["interactive"] and not stop["interactive"]
        return head

    assert "http://127.0.0.1:1" in said()
    assert "no numbers of users" in said(levels="1, many")
    assert "Give the address" in said(server=" ")
    visitors = Access(public=True, models=(), limits=FOR_VISITORS)
    assert NO_SERVERS in said(visitors)
    assert NO_SERVERS in collected(servers.monitored(ServerRuns(visitors), "me", "http://127.0.0.1:2", 5))[-1][0]
