"""Fifty sessions that send whatever hypothesis thinks of, read it or leave: `python -m pytest -n0 -m soak -s`.

SOAK_REQUESTS sets their number. Everything stays on this machine.
"""

from __future__ import annotations

import collections
import json
import os
import queue
import random
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from playground import export
from playground.ui.compare.controls import SERVERS
from tests.ui import fakes
from tests.ui.test_controls import ASKED

REQUESTS = int(os.environ.get("SOAK_REQUESTS", "10000"))
SESSIONS = 50
ENDS_WITHIN_S = 120
VALID = [*ASKED.values.values(), *[""] * len(SERVERS)]  # the endpoint takes the first of them
TRACE = export.to_json(fakes.comparison(tokens=12))
EVENTS = ("stream", "stream_every", "accept", "repeat", "choose", "open", "finish", "listed", "of_address")
GATHERED = EVENTS[:3]  # take all controls' values as one
PRESSES = ("pick", "write", "stop_own", "clear")

OURS = re.compile(
    r"/playground/(?!hosting/(?:page_head|size_limits|request_filter|quiet_blocks)\.py)"
)  # besides what only passes requests on

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=40)
    | st.sampled_from(["", "own", "fake", "fail", "crash", "echo", "/etc/passwd", "~", "any/model"])
    | st.just(30_000).map("x".__mul__),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


@st.composite
def asked(draw) -> list[Any]:
    """The fields of a request, of which none to four are anything."""
    values = list(VALID)
    for index in draw(st.lists(st.integers(0, len(values) - 1), max_size=4)):
        values[index] = draw(anything)
    return values if draw(st.integers(0, 9)) else values[: draw(st.integers(0, len(values)))]


@st.composite
def trace(draw) -> bytes:
    """A trace file in which one value is anything, or its bytes are cut."""
    data = json.loads(json.dumps(TRACE))
    at: Any = data
    for _ in range(draw(st.integers(1, 6))):
        key = draw(st.sampled_from(sorted(at))) if isinstance(at, dict) else draw(st.integers(0, len(at) - 1))
        if not isinstance(at[key], (dict, list)) or not at[key] or draw(st.integers(0, 3)) == 0:
            at[key] = draw(anything)
            break
        at = at[key]
    content = json.dumps(data).encode("utf-8", "surrogatepass")
    return content[: draw(st.integers(0, len(content)))] if draw(st.integers(0, 4)) == 0 else content


@dataclass(frozen=True)
class Sent:
    """`how`: an event of the page, "compare", "upload" or "raw". `reads`: to its end, its first message, or nothing."""

    how: str
    data: Any
    reads: str


requests = st.one_of(
    st.builds(Sent, st.just("compare"), asked(), st.sampled_from(["end", "first", "nothing"])),
    st.builds(Sent, st.sampled_from(EVENTS), asked(), st.sampled_from(["end", "first", "nothing"])),
    st.builds(Sent, st.sampled_from(PRESSES), asked(), st.just("nothing")),
    st.builds(Sent, st.just("upload"), trace(), st.just("end")),
    st.builds(
        Sent, st.just("raw"), st.binary(max_size=60) | anything.map(lambda x: json.dumps(x).encode()), st.just("")
    ),
)


class Visitors:
    """Threads that send what they are given. `unanswered`: requests that were to be read and did not end in time."""

    def __init__(self, url: str) -> None:
        self.url, self.answers = url, collections.Counter[str]()
        self.unanswered: list[Sent] = []
        config = httpx.get(f"{url}/config").json()
        self.events = {it["api_name"]: it["id"] for it in config["dependencies"]}
        self.inputs = {it["api_name"]: len(it["inputs"]) for it in config["dependencies"]}
        self.queue: queue.Queue[Sent | None] = queue.Queue(SESSIONS)
        self.threads = [threading.Thread(target=self._visit, daemon=True) for _ in range(SESSIONS)]
        for thread in self.threads:
            thread.start()

    def end(self) -> None:
        for _ in self.threads:
            self.queue.put(None)
        for thread in self.threads:
            thread.join()

    def _visit(self) -> None:
        while (sent := self.queue.get()) is not None:
            session = uuid.uuid4().hex
            with httpx.Client(base_url=self.url, timeout=ENDS_WITHIN_S) as client:
                try:
                    self.answers[self._send(client, session, sent)] += 1
                except httpx.TimeoutException:
                    self.unanswered.append(sent)

    def _send(self, client: httpx.Client, session: str, sent: Sent) -> str:
        if sent.how == "raw":
            path = random.choice(["queue/join", "call/compare", "run/predict", "upload", "cancel", "component_server"])
            return str(client.post(f"/gradio_api/{path}", content=sent.data).status_code)
        if sent.how == "compare":
            answer = client.post("/gradio_api/call/compare", json={"data": sent.data[: self.inputs[sent.how]]})
            if answer.status_code != 200:
                return str(answer.status_code)
            return self._read(client, f"/gradio_api/call/compare/{answer.json()['event_id']}", {}, sent.reads)
        if sent.how in PRESSES:
            body = {"data": sent.data, "fn_index": self.events[sent.how], "session_hash": session}
            return str(client.post("/gradio_api/run/predict", json=body).status_code)
        if sent.how == "upload":
            files = {"files": ("trace.json", sent.data, "application/json")}
            answer = client.post("/gradio_api/upload", files=files)
            if answer.status_code != 200:
                return str(answer.status_code)
            data = [{"path": answer.json()[0], "meta": {"_type": "gradio.FileData"}}]
            return self._join(client, session, Sent("open", data, "end"))
        return self._join(client, session, sent)

    def _join(self, client: httpx.Client, session: str, sent: Sent) -> str:
        data = [sent.data, ""] if sent.how in GATHERED else sent.data[: self.inputs[sent.how]]
        body = {"data": data, "fn_index": self.events[sent.how], "session_hash": session}
        answer = client.post("/gradio_api/queue/join", json=body)
        if answer.status_code != 200:
            return str(answer.status_code)
        return self._read(client, "/gradio_api/queue/data", {"session_hash": session}, sent.reads)

    def _read(self, client: httpx.Client, path: str, params: dict[str, str], reads: str) -> str:
        if reads == "nothing":
            return "left"
        with client.stream("GET", path, params=params) as answer:
            for line in answer.iter_lines():
                if reads == "first":
                    return "left"
                if "process_completed" in line or line.startswith(("event: complete", "event: error")):
                    return "ended"
        return "closed"


@pytest.fixture
def server(tmp_path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"GRADIO_TEMP_DIR": str(tmp_path / "files")},
        )
        assert process.stdout
        yield process, process.stdout.readline().strip()
        process.kill()
        process.communicate()


@pytest.mark.soak
def test_fifty_hostile_sessions_lose_no_run_and_leave_nothing_behind(server, tmp_path):
    process, url = server
    visitors, watched = Visitors(url), psutil.Process(process.pid)
    levels: list[tuple[int, int]] = []
    begun = time.monotonic()

    def level() -> tuple[int, int]:
        return watched.memory_info().rss // 10**6, watched.num_threads()

    @settings(
        max_examples=REQUESTS, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )  # fmt: skip
    @given(requests)
    def send(sent: Sent) -> None:
        visitors.queue.put(sent)
        sends.append(1)
        if len(sends) % max(1, REQUESTS // 10) == 0:
            levels.append(level())

    sends: list[int] = []
    send()
    visitors.end()
    time.sleep(15)
    levels.append(level())
    print(f"\n{len(sends):,} requests in {time.monotonic() - begun:.0f} s; {dict(visitors.answers)}")
    print("MB and threads, by tenths and at the end:", levels)
    log = (tmp_path / "log").read_text()
    parts = re.split(r"Traceback \(most", log)[1:]  # Gradio logs some of its own, of what no component takes
    ours = [part for part in parts if OURS.search(part) and "ZeroDivisionError: a bug" not in part]
    print(f"{len(parts):,} tracebacks in the log, {len(ours)} of the playground")
    frames = collections.Counter(
        (re.findall(r"playground/(.*?), in", part)[-1], re.findall(r"^(\w+(?:\.\w+)*): ", part, re.MULTILINE)[-1])
        for part in ours
    )
    assert not frames, frames
    assert not visitors.unanswered, str(visitors.unanswered)[:1000]
    assert levels[-1][0] < levels[1][0] + 150 and levels[-1][1] <= levels[1][1] + 5
    with httpx.Client(base_url=url, timeout=30) as client:
        assert visitors._send(client, uuid.uuid4().hex, Sent("compare", VALID, "end")) == "ended", "nobody is ahead"
