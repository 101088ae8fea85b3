"""Servers: one that serves traffic, watched; and two under load, to see where speculation stops paying."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from html import escape
from typing import Any

import gradio as gr
import plotly.graph_objects as go

from playground.access import NO_SERVERS, Access
from playground.backends.connect import server_lanes
from playground.backends.http import KEY
from playground.errors import PlaygroundError, check
from playground.experiments import load, monitor
from playground.experiments.events import Event
from playground.metrics.load import Answered, Level, Limits
from playground.metrics.serving import Window
from playground.progress import Progress
from playground.ui import panels
from playground.ui.own_servers import OwnServers
from playground.ui.tabs import markup, prompts, server_start
from playground.ui.tabs.server_runs import ServerRuns
from playground.views import load as load_view
from playground.views import serving

INTRO = (
    "A model server that you run, llama-server or vLLM, watched while it serves traffic; and two of them under load, "
    "to see at how many users speculation stops paying."
)
START = (
    "Or in two terminals, at ports of your choice; docs/servers.md has vLLM and other models. A server's key is read "
    f"from the environment variable {KEY}."
)
COMMANDS = """\
pip install xllamacpp
python -m playground serve llama --port 8081
python -m playground serve llama --port 8082 --lookup ngram-simple
"""
STANDARD, ASSISTED = "http://127.0.0.1:8081", "http://127.0.0.1:8082"
EVERY_S = 5
CHARTED, LINES = 720, 12  # windows that the charts show, and lines under them
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "concurrency_limit": None}
Updates = AsyncGenerator[tuple[Any, ...], None]


def build(page: gr.Blocks, access: Access, own: OwnServers) -> None:
    gr.HTML(f"<h1>Servers</h1><p>{INTRO}</p>", elem_classes="intro")
    if access.public:
        gr.HTML(markup.note(NO_SERVERS), elem_id="refused")
        return
    changed = server_start.build(page, own)
    commands = _pre(COMMANDS, "Commands that start a server")
    gr.HTML(f"<p>{START}</p>{commands}", elem_id="start-server", apply_default_css=False)
    url = _monitor_section(page, ServerRuns(access))
    for event in changed:
        event.then(lambda: own.urls()[-1] if own.urls() else gr.skip(), None, url, **PRIVATE)
    _load_section(page, ServerRuns(access))


def _monitor_section(page: gr.Blocks, runs: ServerRuns) -> gr.Textbox:
    """Returns the box for the address."""
    gr.HTML("<h2>Monitor</h2><p>Reads the server's counters; it sends no prompt.</p>", elem_classes="intro")
    with gr.Row(elem_classes="controls"):
        url = _address("Server", ASSISTED, "llama-server (with --metrics) or vLLM", "monitor-url")
        every = gr.Number(EVERY_S, label="Interval", info="seconds between readings", minimum=1, maximum=3600)
    run, stop = _buttons("Watch", "monitor")
    shown, charts, lines = _outputs(
        "monitor", "lines", "Press Watch while the server answers requests, such as those of a load test."
    )

    def watch(session: str, url: str, every_s: float | None) -> Updates:
        return monitored(runs, session, url, every_s or EVERY_S)

    _wire(page, runs, watch, run, stop, [url, every], [shown, *charts, lines, run, stop])
    return url


def _load_section(page: gr.Blocks, runs: ServerRuns) -> None:
    said = "Sends the prompts of a suite to both servers, level by level, one server after the other."
    gr.HTML(f"<h2>Load</h2><p>{said}</p>", elem_classes="intro")
    with gr.Row(elem_classes="controls"):
        controls: dict[str, Any] = {
            "baseline": _address("Standard server", STANDARD, "without speculation; empty for none", "baseline-url"),
            "server": _address("Assisted server", ASSISTED, "the same model with speculation", "server-url"),
            "model": gr.Textbox(label="Model", info="its name, where a server has several", max_lines=1),
            "levels": gr.Textbox("1, 2, 4, 8", label="Users at the same time", info="with commas between them"),
            **prompts.suite_controls(),
        }
    with gr.Accordion("Advanced: how many requests, length, limits of a good request", open=False, elem_id="advanced"):
        controls |= prompts.repeat_controls("per_category", "max_new_tokens", "temperature")
        with gr.Row(elem_classes="controls"):
            controls |= {
                "requests": gr.Number(16, label="Requests", info="of each level, at least one a user", precision=0,
                                      minimum=1, maximum=100_000),
                "ttft": gr.Number(1.0, label="TTFT limit", info="seconds, for goodput", minimum=0.001),
                "tpot": gr.Number(0.1, label="TPOT limit", info="seconds, for goodput", minimum=0.001),
            }  # fmt: skip
    run, stop = _buttons("Run", "load")
    shown, charts, tables = _outputs(
        "load", "tables", "Start both servers, then press Run. Give llama-server as many --slots as users."
    )

    def send(session: str, *values: Any) -> Updates:
        return loaded(runs, session, dict(zip(controls, values, strict=True)))

    _wire(page, runs, send, run, stop, list(controls.values()), [shown, *charts, tables, run, stop])


async def monitored(runs: ServerRuns, session: str, url: str, every_s: float) -> Updates:
    """What Watch shows, window by window: the advice, both charts, the lines, and the buttons."""
    windows: list[Window] = []

    def work(stop: threading.Event, emit: Callable[[Event], None]) -> None:
        for window in monitor.watch(url, every_s, stop):
            windows.append(window)

    yield panels.status("Reading the server's counters", "busy"), *_plots([], "monitor"), "", *_pressed(True)
    counted, problem = 0, ""
    try:
        async with aclosing(runs.follow(session, work)) as batches:
            async for _ in batches:
                if len(windows) > counted:
                    counted = len(windows)
                    yield *_watched(windows[-CHARTED:], panels.status("Watching", "busy")), *_pressed(True)
    except PlaygroundError as error:
        problem = str(error)
    end = panels.status(problem, "error") if problem else panels.status("Stopped.")
    yield *_watched(windows[-CHARTED:], end), *_pressed(False)


async def loaded(runs: ServerRuns, session: str, asked: Mapping[str, Any]) -> Updates:
    """What Run shows: the progress, then the verdict, both charts, the table, and the buttons."""
    rows: list[Answered] = []
    yield panels.status("Asking the servers", "busy"), *_plots([], "load"), "", *_pressed(True)
    problem = ""
    try:
        runs.allowed()  # before a file is read
        async with aclosing(runs.follow(session, _load(asked, rows))) as batches:
            async for batch in batches:
                for event in batch[-1:]:
                    if isinstance(event, Progress):
                        yield panels.status(event.label, "busy", event.fraction), *[gr.skip()] * 5
    except PlaygroundError as error:
        problem = str(error)
    yield *_answered(rows, Limits(asked["ttft"], asked["tpot"]), problem), *_pressed(False)


def _load(asked: Mapping[str, Any], rows: list[Answered]) -> Callable[..., None]:
    """The load test that the controls ask for. It leaves its rows in `rows`.

    Raises:
        PlaygroundError: a value cannot be used.
    """
    plan = load.Plan(_levels(asked["levels"]), int(asked["requests"] or 1))
    _, questions = prompts.asked_questions(asked)
    check(bool(asked["server"].strip()), "Give the address of the server to measure.")
    urls = [url for url in (asked["baseline"], asked["server"]) if url.strip()]

    def work(stop: threading.Event, emit: Callable[[Event], None]) -> None:
        lanes, backends = server_lanes(urls, asked["model"].strip())
        rows.extend(load.run(lanes, questions, backends, plan, stop=stop, emit=emit))

    return work


def _levels(text: str) -> tuple[Level, ...]:
    """Raises:
    PlaygroundError: they are not numbers of users.
    """
    words = dict.fromkeys(text.replace(",", " ").split())
    check(
        bool(words) and all(word.isdecimal() and len(word) < 4 and 1 <= int(word) <= load.MOST for word in words),
        f"{text!r} are no numbers of users. Give whole numbers from 1 to {load.MOST}, such as 1, 2, 4, 8.",
    )
    return tuple(Level(concurrency=int(word)) for word in words)


def _watched(windows: Sequence[Window], state: str) -> tuple[Any, ...]:
    if not windows:
        return state, *_plots([], "monitor"), ""
    lines = "\n".join([serving.HEAD, *map(serving.line, reversed(windows[-LINES:]))])
    return (
        state + markup.findings(serving.advice(windows[-1])),
        *_plots(serving.over_time(windows), "monitor"),
        _pre(lines, "Last readings"),
    )


def _answered(rows: Sequence[Answered], limits: Limits, problem: str) -> tuple[Any, ...]:
    if not rows:
        none = panels.status(problem, "error") if problem else panels.status("Stopped before a level had ended.")
        return none, *_plots([], "load"), ""
    baseline = rows[0].lane
    figures = [load_view.pareto(rows, limits)]
    if any(row.lane != baseline for row in rows):
        figures.append(load_view.speedup(rows, baseline))
    found = load_view.verdict(rows, baseline) or ["One server has answered. A speed-up takes both."]
    return (
        markup.findings(found) + markup.note(load_view.definitions(limits)),
        *_plots(figures, "load"),
        markup.tables([load_view.table(rows, limits)]),
    )


def _pre(text: str, label: str) -> str:
    return f'<pre tabindex="0" role="region" aria-label="{label}">{escape(text)}</pre>'


def _plots(figures: Sequence[go.Figure], name: str) -> tuple[Any, Any]:
    """Updates of both charts."""
    shown = [panels.plot(figure, f"{name}-{i}") for i, figure in enumerate(figures, 1)]
    first, second = (*shown, None, None)[:2]
    return gr.update(value=first, visible=bool(first)), gr.update(value=second, visible=bool(second))


def _pressed(running: bool) -> tuple[Any, Any]:
    return gr.update(interactive=not running), gr.update(interactive=running)


def _address(label: str, placeholder: str, info: str, name: str) -> gr.Textbox:
    return gr.Textbox(label=label, placeholder=placeholder, info=info, max_lines=1, elem_id=name)


def _buttons(label: str, name: str) -> tuple[gr.Button, gr.Button]:
    with gr.Row(elem_classes="act"):
        run = gr.Button(label, variant="primary", elem_id=f"run-{name}", min_width=110, scale=0)
        stop = gr.Button("Stop", interactive=False, elem_id=f"stop-{name}", min_width=110, scale=0)
    return run, stop


def _outputs(name: str, below: str, empty: str) -> tuple[gr.HTML, tuple[gr.Plot, gr.Plot], gr.HTML]:
    shown = gr.HTML(markup.note(empty), elem_id=f"{name}-shown", apply_default_css=False)
    with gr.Row(elem_classes="charts"):
        charts = panels.empty_plot(), panels.empty_plot()
    return shown, charts, gr.HTML(elem_id=f"{name}-{below}", apply_default_css=False)


def _wire(
    page: gr.Blocks,
    runs: ServerRuns,
    updates: Callable[..., Updates],
    run: gr.Button,
    stop: gr.Button,
    asked: list[Any],
    outputs: list[Any],
) -> None:
    async def start(request: gr.Request, *values: Any) -> Updates:
        async with aclosing(updates(str(request.session_hash), *values)) as each:
            async for update in each:
                yield update

    async def end(request: gr.Request) -> None:
        runs.stop(str(request.session_hash))

    run.click(start, asked, outputs, **PRIVATE)
    stop.click(end, queue=False, **PRIVATE)
    page.unload(end)
