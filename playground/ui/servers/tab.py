"""Servers: how to start one, and one that serves traffic, watched."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from html import escape
from typing import Any

import gradio as gr

from playground.backends.http import KEY
from playground.backends.kinds import programs
from playground.errors import PlaygroundError
from playground.experiments import monitor
from playground.experiments.watch import Watch
from playground.hosting.access import NO_SERVERS, Access
from playground.hosting.turns import Turns
from playground.metrics.serving import Window
from playground.ui import markup, panels
from playground.ui.servers import start
from playground.ui.servers.started import StartedServers
from playground.ui.wiring import UNBOUNDED, Filled, Named, filled
from playground.views import monitor as serving

INTRO = f"A model server ({programs()}): started here, or watched while it serves traffic."
START = (
    "Or in two terminals, at ports of your choice; docs/servers.md has vLLM and other models. A server's key is read "
    f"from the environment variable {KEY}."
)
COMMANDS = """\
pip install xllamacpp
python -m playground serve llama --port 8081
python -m playground serve llama --port 8082 --lookup ngram-simple
"""
EMPTY = "Press Watch while the server answers requests, such as those of a load test."
EVERY_S = 5
CHARTED, LINES = 720, 12  # windows that the charts show, and lines under them


def build(page: gr.Blocks, access: Access, servers: StartedServers, turns: Turns) -> None:
    gr.HTML(f"<h1>Servers</h1><p>{INTRO}</p>", elem_classes="intro")
    if access.public:
        gr.HTML(markup.note(NO_SERVERS), elem_id="refused")
        return
    changed = start.build(page, servers)
    commands = _pre(COMMANDS, "Commands that start a server")
    gr.HTML(f"<p>{START}</p>{commands}", elem_id="start-server", apply_default_css=False)
    url = _monitor_section(page, access, turns)
    for event in changed:
        event.then(lambda: servers.urls()[-1] if servers.urls() else gr.skip(), None, url, **UNBOUNDED)


def _monitor_section(page: gr.Blocks, access: Access, turns: Turns) -> gr.Textbox:
    """Returns the box for the address."""
    gr.HTML("<h2>Monitor</h2><p>Reads the server's counters; it sends no prompt.</p>", elem_classes="intro")
    with gr.Row(elem_classes="controls"):
        url = gr.Textbox(
            label="Server", placeholder="http://127.0.0.1:8082", info=f"{programs()}; llama-server needs --metrics",
            max_lines=1, elem_id="monitor-url",
        )  # fmt: skip
        every = gr.Number(EVERY_S, label="Interval", info="seconds between readings", minimum=1, maximum=3600)
    with gr.Row(elem_classes="act"):
        run = gr.Button("Watch", variant="primary", elem_id="run-monitor", min_width=110, scale=0)
        stop = gr.Button("Stop", interactive=False, elem_id="stop-monitor", min_width=110, scale=0)
    parts: dict[str, Any] = {"run": run, "stop": stop}
    parts["shown"] = gr.HTML(markup.note(EMPTY), elem_id="monitor-shown", apply_default_css=False)
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
    """What Watch shows, window by window: the advice, both charts, the lines, and the buttons."""
    windows: list[Window] = []

    def work(watch: Watch) -> None:
        for window in monitor.watched(url, every_s, watch):
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
        "shown": state + (markup.findings(serving.advice(windows)) if windows else ""),
        **panels.plots("monitor", serving.over_time(windows) if windows else ()),
        "lines": serving.readings(reversed(windows[-LINES:])).html() if windows else "",
        "run": gr.update(interactive=not running),
        "stop": gr.update(interactive=running),
    }


def _pre(text: str, label: str) -> str:
    return f'<pre tabindex="0" role="region" aria-label="{label}">{escape(text)}</pre>'
