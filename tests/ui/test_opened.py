"""Traces that strangers open: one at a time, in a process of its own, kept within bounds."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import pickle
import time
from pathlib import Path

import gradio as gr
import pytest

from playground import export
from playground.errors import PlaygroundError
from playground.hosting import side_process
from playground.hosting.access import FOR_VISITORS, Access
from playground.hosting.side_process import SideProcess
from playground.ui.compare import rendered
from playground.ui.compare.handlers import Handlers
from playground.ui.compare.shown import Opened
from tests.ui import fakes
from tests.ui.driven import unpacked

PAIRS = {"fake": fakes.PAIR}
COMPARISON = fakes.comparison(tokens=12)
FILE = json.dumps(export.to_json(COMPARISON)).encode()


def events(**limits) -> Handlers:
    access = Access(public=True, models=(), limits=dataclasses.replace(FOR_VISITORS, **limits))
    return Handlers(PAIRS, fakes.Backend, fakes.Store().fit, access=access)


def test_what_is_drawn_in_the_other_process_is_what_this_one_draws(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    ours = rendered.file(FILE, 1_000, PAIRS)
    monkeypatch.setattr(export, "load", None)  # nothing is read here
    visitors = events()

    async def visit() -> None:
        drawn = await visitors.open(FILE, "a", "8.8.8.8")
        shown = drawn.pop("shown")
        assert shown.comparison == COMPARISON and not shown.repeatable
        assert (shown.chosen, str(drawn)) == (ours[1], str(ours[2]))
        assert not [*tmp_path.rglob("*.*")], "no file is asked for"
        written = (await visitors.save(shown, "json", "", "a", "8.8.8.8"))["file"]["value"]
        assert export.from_json(json.loads(Path(written).read_bytes())) == COMPARISON
        stage, again = unpacked(await visitors.choose(shown, shown.chosen, "a"))
        assert again.chosen == shown.chosen and stage["lanes"][1]["log"]
        with pytest.raises(gr.Error, match="no longer kept"):
            await visitors.choose(shown, {"lane": 1}, "a")
        with pytest.raises(gr.Error, match="not JSON"):
            await visitors.open(b"{", "a", "8.8.8.8")

    asyncio.run(visit())


def test_one_of_a_visitor_s_is_opened_and_one_waits(monkeypatch):
    visitors, going_on = events(), asyncio.Event()

    async def slow(*arguments) -> tuple:
        await going_on.wait()
        return pickle.dumps(COMPARISON), "", {}

    monkeypatch.setattr(visitors._other, "call", slow)

    async def visit() -> None:
        mine = [asyncio.create_task(visitors.open(FILE, name, "8.8.8.8")) for name in ("a", "b")]
        await asyncio.sleep(0)
        with pytest.raises(gr.Error, match="2 of your traces are being opened"):
            await visitors.open(FILE, "c", "8.8.8.8")
        another = asyncio.create_task(visitors.open(FILE, "a", "1.1.1.1"))
        await asyncio.sleep(0)
        going_on.set()
        await asyncio.gather(*mine, another)
        await visitors.open(FILE, "c", "8.8.8.8")

    asyncio.run(visit())


def test_a_stranger_s_trace_has_a_limit_that_one_s_own_has_not():
    assert FOR_VISITORS.trace_tokens == 20_000
    length = sum(1 + len(round_.drafted) for trace in COMPARISON.lanes for round_ in trace.rounds)
    with pytest.raises(PlaygroundError, match=f"it has {length} tokens, of which 5 can be shown"):
        rendered.file(FILE, 5, PAIRS)
    assert rendered.file(FILE, length, PAIRS)


def test_what_is_kept_of_them_is_bounded_in_bytes():
    packed = pickle.dumps(COMPARISON)
    opened = Opened(2.5 * len(packed), 2)
    first, second, third = (opened.keep(packed) for _ in range(3))
    assert second.comparison == COMPARISON
    opened.keep(packed)
    assert second.comparison == COMPARISON, "it was shown last"
    for gone in (first, third):
        with pytest.raises(gr.Error, match="Open it again"):
            _ = gone.comparison


def test_a_process_that_is_late_is_ended_and_the_next_call_has_another(monkeypatch):
    monkeypatch.setattr(side_process, "LIMIT_S", 0.2)
    other = SideProcess()
    with pytest.raises(PlaygroundError, match="was ended"):
        asyncio.run(other.call(time.sleep, 60))
    monkeypatch.setattr(side_process, "LIMIT_S", 60)
    assert asyncio.run(other.call(os.getpid)) != os.getpid()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(other.call(divmod, 1, 0))
    loads_torch = "(__import__('playground.ui.compare.rendered'), 'torch' in __import__('sys').modules)[1]"
    assert not asyncio.run(other.call(eval, loads_torch)), "it would hold three times the memory"
