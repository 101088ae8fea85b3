"""Traces that strangers open: one at a time, kept within bounds."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import pickle
import threading
from pathlib import Path

import gradio as gr
import pytest

from playground import export
from playground.hosting.access import FOR_VISITORS, Access
from playground.trace import Comparison
from playground.ui.compare.handlers import Handlers
from playground.ui.compare.shown import Opened
from tests.ui import fakes
from tests.ui.driven import unpacked

PAIRS = {"fake": fakes.PAIR}
COMPARISON = fakes.comparison(tokens=12)
FILE = json.dumps(export.to_json(COMPARISON)).encode()


def events(**limits) -> Handlers:
    access = Access(public=True, models=(), limits=dataclasses.replace(FOR_VISITORS, **limits))
    return fakes.handlers(PAIRS, fakes.Backend, access=access)


def test_a_trace_is_opened_saved_and_shown_with_another_lane(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    visitors = events()

    async def visit() -> None:
        drawn, own = await visitors.open(FILE, "a", "8.8.8.8"), visitors.show(COMPARISON, "a file")
        shown = drawn.pop("shown")
        assert shown.comparison == COMPARISON and not shown.repeatable
        assert (shown.chosen, str(drawn)) == (own.pop("shown").chosen, str(own))
        assert not [*tmp_path.rglob("*.*")], "no file is asked for"
        written = (await visitors.save(shown, "json", "", "a", "8.8.8.8"))["file"]["value"]
        assert export.from_json(json.loads(Path(written).read_bytes())) == COMPARISON
        stage, again = unpacked(await visitors.choose(shown, shown.chosen, "a"))
        assert (again.chosen, again.held) == (shown.chosen, shown.held) and stage["lanes"][1]["log"]
        with pytest.raises(gr.Error, match="longer kept"):
            await visitors.choose(shown, {"lane": 1}, "a")
        with pytest.raises(gr.Error, match="not JSON"):
            await visitors.open(b"{", "a", "8.8.8.8")

    asyncio.run(visit())


def test_one_trace_is_read_at_a_time_and_one_of_a_visitor_s_waits(monkeypatch):
    visitors, going_on, reading = events(), threading.Event(), []

    def slow(*arguments) -> Comparison:
        reading.append(arguments)
        assert going_on.wait(60)
        return COMPARISON

    monkeypatch.setattr(export, "load", slow)

    async def visit() -> None:
        mine = [asyncio.create_task(visitors.open(FILE, name, "8.8.8.8")) for name in ("a", "b")]
        await asyncio.sleep(0)
        with pytest.raises(gr.Error, match="2 of your"):
            await visitors.open(FILE, "c", "8.8.8.8")
        another = asyncio.create_task(visitors.open(FILE, "a", "1.1.1.1"))
        while not reading:
            await asyncio.sleep(0.01)
        assert len(reading) == 1
        going_on.set()
        await asyncio.gather(*mine, another)
        await visitors.open(FILE, "c", "8.8.8.8")

    asyncio.run(visit())


def test_a_stranger_s_trace_has_a_limit_that_one_s_own_has_not():
    assert FOR_VISITORS.trace_tokens == 20_000
    length = sum(1 + len(round_.drafted) for trace in COMPARISON.lanes for round_ in trace.rounds)
    with pytest.raises(gr.Error, match=f"{length} tokens, .* 5 "):
        asyncio.run(events(trace_tokens=5).open(FILE, "a"))
    assert asyncio.run(events(trace_tokens=length).open(FILE, "a"))


def test_what_is_kept_of_them_is_bounded_in_bytes():
    packed = pickle.dumps(COMPARISON)
    opened = Opened(2.5 * len(packed), 2)
    first, second, third = (opened.keep(packed) for _ in range(3))
    assert second.comparison == COMPARISON
    opened.keep(packed)
    assert second.comparison == COMPARISON, "it was shown last"
    for gone in (first, third):
        with pytest.raises(gr.Error, match="Open it"):
            _ = gone.comparison
