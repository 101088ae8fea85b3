"""How often the server holds what a run decoded."""

from __future__ import annotations

import asyncio
import gc
import re
import tempfile
from pathlib import Path

from playground.lane import Lane, Request
from playground.trace import Round
from playground.ui.compare.controls import SERVERS
from playground.ui.compare.prefill import RecommendedSampling
from tests.ui import fakes
from tests.ui.test_turns import ASK, within
from tests.ui.visitors import Visitor, arriving

MARK = "ZQX9"  # a token that only the drafter's lane has, once
IN_JSON = re.compile(rf'"text\\*": ?\\*"{MARK}')


class Marked(fakes.Backend):
    def run(self, lane: Lane, request: Request) -> fakes.Run:
        run = fakes.Run(lane, request)
        if lane.drafter != "none":
            run.rounds = run._decoded(fakes.rounds(lane, 8, [*fakes.pieces(7), MARK]))
        return run


def has_mark(round_: Round) -> bool:
    return MARK in [token.text for token in round_.tokens]


def held(folder: Path) -> dict[str, int]:
    """How many copies of the marked round there are: as objects, in texts in memory, and in files."""
    gc.collect()
    everything = {id(it): it for it in gc.get_referents(*gc.get_objects())}.values()
    return {
        "rounds": sum(type(it) is Round and has_mark(it) for it in everything),
        "texts": sum(type(it) is str and MARK in it and bool(IN_JSON.search(it)) for it in everything),
        "files": sum(len(IN_JSON.findall(path.read_text("utf-8", "replace"))) for path in folder.rglob("*.*")),
    }


async def ends(visitor: Visitor, name: str, data: list) -> None:
    await visitor.join(name, data)
    async for message in visitor.messages():
        if message["msg"] == "process_completed":
            assert message["success"]
            return


def test_a_round_is_held_three_times(serve, monkeypatch, tmp_path):
    """By the comparison, which all that show it share, by Gradio for the stage, and by the history."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "gradio"))
    url = serve(Marked)

    async def visit() -> dict[str, int]:
        async with arriving(url) as arrive:
            visitor = arrive()
            await within(ends(visitor, "stream", [[*ASK, *[""] * len(SERVERS)], ""]))
            sampling = ["fake", "", *[0] * (len(RecommendedSampling.CONTROLS) - 2)]
            await within(ends(visitor, "finish", [None, None, None, sampling, 0]))
            return await asyncio.to_thread(held, tmp_path)

    assert asyncio.run(visit()) == {"rounds": 2, "texts": 1, "files": 2}, "two runs, of which one is shown"
