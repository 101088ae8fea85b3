"""The Servers page: llama.cpp servers that it starts, and the monitor of a server that has traffic.

The started servers run the starter on this machine's loopback for as long as the page lives, without and with prompt
lookup, one button each.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any, NamedTuple

import gradio as gr
from gradio.events import Dependency

from playground.backends.connect import programs
from playground.backends.http import KEY
from playground.backends.launch import Running
from playground.backends.llama_server import LOOKUPS, start_llama
from playground.errors import PlaygroundError, Stopped
from playground.experiments.events import Watch
from playground.experiments.kinds.load import watched
from playground.hosting.access import NO_SERVERS, Access
from playground.hosting.turns import Turns
from playground.metrics.load import Window
from playground.models.fetch import starter
from playground.progress import Progress
from playground.ui import panels
from playground.ui.wiring import UNBOUNDED, Filled, Named, filled
from playground.views import monitor as serving

PLAIN, LOOKUP = "none", LOOKUPS[0]  # values of `start_llama`
SLOTS = 8  # users at the first level of a load test
Report = Callable[[Progress], None]


class State(NamedTuple):
    """The state of a server. `kind`: "", "busy" while it starts, "ready" or "error". `log`: the end of its log, after a
    failure."""

    sentence: str = "Not started."
    kind: str = ""
    log: str = ""


@dataclass
class _Server:
    step: str = "Starting"
    stopped: bool = False
    problem: str = ""  # why it did not start
    running: Running | None = None


def start(lookup: str, report: Report) -> Running:
    """Starts a llama.cpp server on the starter, and returns once it is ready."""
    return start_llama(starter.fetch_gguf(report), report, lookup=lookup, slots=SLOTS)


class StartedServers:
    """Servers, at most one of each kind (PLAIN and LOOKUP), shared by everybody who has the page open. `start`: starts
    a server; tests replace it."""

    def __init__(self, start: Callable[[str, Report], Running] = start) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._servers: dict[str, _Server] = {}

    def start(self, lookup: str) -> None:
        """Starts a server unless it is starting or running. Returns once it is ready, has failed or was stopped."""
        with self._lock:
            if self.state(lookup).kind in ("busy", "ready"):
                return
            server = self._servers[lookup] = _Server()

        def report(step: Progress) -> None:
            server.step = step.label
            if server.stopped:
                raise Stopped

        try:
            server.running = self._start(lookup, report)
        except Stopped:
            return
        except PlaygroundError as problem:
            server.problem = str(problem)
        if server.running and server.stopped:
            server.running.stop()

    def stop(self, lookup: str) -> None:
        """Stops the server, also while it starts."""
        if server := self._servers.pop(lookup, None):
            server.stopped = True
            if server.running:
                server.running.stop()

    def state(self, lookup: str) -> State:
        """Returns the state of a server."""
        server = self._servers.get(lookup)
        if server is None:
            return State()
        if server.problem:
            sentence, _, log = server.problem.partition("\n")
            return State(sentence, "error", log)
        if server.running is None:
            return State(server.step, "busy")
        if server.running.process.poll() is not None:
            return State("The server ended. The end of its log:", "error", server.running.log())
        if not server.running.healthy():
            return State(f"{server.running.url} does not answer.", "ready")
        return State(f"{server.running.url} is ready.", "ready")

    def url(self, lookup: str) -> str:
        """Returns the address of a running server; "" if it does not run."""
        server = self._servers.get(lookup)
        return server.running.url if server and server.running and server.running.process.poll() is None else ""

    def urls(self) -> list[str]:
        """Returns the addresses of the running servers, PLAIN first."""
        return [url for lookup in (PLAIN, LOOKUP) if (url := self.url(lookup))]


START_INTRO = (
    "llama.cpp on the starter, on this machine only, at a free port. It ends with the playground. Its lane runs beside "
    "the local ones if its address is chosen on Try, under Settings."
)
TITLES = {PLAIN: "standard", LOOKUP: "with lookup"}
BLOCK = '<pre tabindex="0" role="region" aria-label="{}">{}</pre>'
CHECK = '<p><a href="lossless">Is its output the same?</a> The check takes its address.</p>'
START_EVERY_S = 2


def build_start(page: gr.Blocks, servers: StartedServers) -> list[Dependency]:
    """Lays the buttons out. Returns the events after which other servers may run."""
    gr.HTML(f"<h2>Start</h2><p>{START_INTRO}</p>", elem_classes="intro")
    buttons, outputs = list[tuple[str, gr.Button, gr.Button]](), list[Any]()
    with gr.Row():
        for name, title in TITLES.items():
            with gr.Column(min_width=280, elem_id=f"own-{name}"):
                shown = gr.HTML(elem_classes="own-server", apply_default_css=False)
                with gr.Row(elem_classes="act"):
                    start = gr.Button(f"Start {title}", min_width=220, scale=0)
                    stop = gr.Button("Stop", interactive=False, min_width=110, scale=0)
            buttons.append((name, start, stop))
            outputs += [shown, start, stop]
    timer = gr.Timer(START_EVERY_S, active=False)
    outputs.append(timer)

    def states() -> list[Any]:
        return shown_states(servers)

    events = [page.load(states, None, outputs, **UNBOUNDED)]
    for name, start, stop in buttons:
        start.click(lambda: gr.Timer(active=True), None, timer, queue=False, api_visibility="private")
        for button, act in ((start, servers.start), (stop, servers.stop)):
            events.append(button.click(partial(act, name), **UNBOUNDED).then(states, None, outputs, **UNBOUNDED))
    timer.tick(states, None, outputs, **UNBOUNDED)
    return events


def shown_states(servers: StartedServers) -> list[Any]:
    """Returns updates of each server's state and buttons, and of the timer that polls them."""
    shown: list[Any] = []
    lives = False
    for name in TITLES:
        state = servers.state(name)
        line = panels.status(state.sentence, "" if state.kind == "ready" else state.kind)
        log = BLOCK.format("End of the log", escape(state.log)) if state.log else ""
        line += CHECK if state.kind == "ready" and name == LOOKUP else ""
        runs = state.kind in ("busy", "ready")
        lives |= runs
        shown += [line + log, gr.update(interactive=not runs), gr.update(interactive=runs)]
    return [*shown, gr.Timer(active=lives)]


INTRO = f"A model server ({programs()}): started here, or watched while it serves traffic."
START = (
    "Or in two terminals, at ports of your choice; Docs, under servers, has vLLM and other models. A server's key is "
    f"read from the environment variable {KEY}."
)
COMMANDS = """\
pip install xllamacpp
python -m playground serve llama --port 8081
python -m playground serve llama --port 8082 --lookup ngram-simple
"""
EMPTY = "Press Watch while the server answers requests, such as those of a load test."
EVERY_S = 5
CHARTED, LINES = 720, 12  # windows in the charts, and lines under them


def build(page: gr.Blocks, access: Access, servers: StartedServers, turns: Turns) -> None:
    """Lays the page out."""
    gr.HTML(f"<h1>Servers</h1><p>{INTRO}</p>", elem_classes="intro")
    if access.public:
        gr.HTML(panels.note(NO_SERVERS), elem_id="refused")
        return
    changed = build_start(page, servers)
    commands = BLOCK.format("Commands that start a server", escape(COMMANDS))
    gr.HTML(f"<p>{START}</p>{commands}", elem_id="start-server", apply_default_css=False)
    url = _monitor_section(page, access, turns)
    for event in changed:
        event.then(lambda: servers.urls()[-1] if servers.urls() else gr.skip(), None, url, **UNBOUNDED)


def _monitor_section(page: gr.Blocks, access: Access, turns: Turns) -> gr.Textbox:
    """Lays the monitor out. Returns the box for the address."""
    gr.HTML("<h2>Monitor</h2><p>Reads the server's counters; it sends no prompt.</p>", elem_classes="intro")
    with gr.Row(elem_classes="controls"):
        url = gr.Textbox(
            label="Server", placeholder="http://127.0.0.1:8082", max_lines=1, elem_id="monitor-url",
            info=f"{programs()}; llama-server needs its option --metrics",
        )  # fmt: skip
        every = gr.Number(EVERY_S, label="Interval", info="seconds between readings", minimum=1, maximum=3600)
    with gr.Row(elem_classes="act"):
        run = gr.Button("Watch", variant="primary", elem_id="run-monitor", min_width=110, scale=0)
        stop = gr.Button("Stop", interactive=False, elem_id="stop-monitor", min_width=110, scale=0)
    parts: dict[str, Any] = {"run": run, "stop": stop}
    parts["shown"] = gr.HTML(panels.note(EMPTY), elem_id="monitor-shown", apply_default_css=False)
    with gr.Row(elem_classes="charts"):
        parts["first"], parts["second"] = panels.empty_plot(), panels.empty_plot()
    parts["lines"] = gr.HTML(elem_id="monitor-lines", apply_default_css=False)

    async def watch(request: gr.Request, url: str, every_s: float | None) -> AsyncGenerator[Filled, None]:
        async with aclosing(monitored(access, turns, str(request.session_hash), url, every_s or EVERY_S)) as updates:
            async for update in updates:
                yield filled(parts, update)

    async def end(request: gr.Request) -> None:
        turns.stop(str(request.session_hash))

    run.click(watch, [url, every], [*parts.values()], **UNBOUNDED)
    stop.click(end, queue=False, **UNBOUNDED)
    page.unload(end)
    return url


async def monitored(
    access: Access, turns: Turns, session: str, url: str, every_s: float
) -> AsyncGenerator[Named, None]:
    """Yields what Watch shows, window by window: the advice, both charts, the lines, and the buttons."""
    windows: list[Window] = []

    def work(watch: Watch) -> None:
        for window in watched(url, every_s, watch):
            watch.emit(window)

    yield _watched([], panels.status("Reading the server's counters", "busy"), running=True)
    problem = ""
    try:
        access.check_servers()
        async with aclosing(turns.run(session, "", work, device=False)) as batches:
            async for batch in batches:
                windows += [event for event in batch if isinstance(event, Window)]
                yield _watched(windows[-CHARTED:], panels.status("Watching", "busy"), running=True)
    except PlaygroundError as error:
        problem = str(error)
    end = panels.status(problem, "error") if problem else panels.status("Stopped.")
    yield _watched(windows[-CHARTED:], end, running=False)


def _watched(windows: Sequence[Window], state: str, *, running: bool) -> Named:
    return {
        "shown": state + (panels.findings(serving.advice(windows)) if windows else ""),
        **panels.plots("monitor", serving.over_time(windows) if windows else ()),
        "lines": serving.readings(reversed(windows[-LINES:])).html() if windows else "",
        "run": gr.update(interactive=not running),
        "stop": gr.update(interactive=running),
    }
