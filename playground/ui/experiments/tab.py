"""The page of a kind of experiment: controls, Run, Stop, progress, and the result as sentences, charts and tables."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import gradio as gr
import plotly.graph_objects as go
from gradio.components import Component

from playground.errors import PlaygroundError
from playground.experiments.kinds.kind import Kind
from playground.experiments.work import Experiment
from playground.ui import panels
from playground.ui.experiments import controls
from playground.ui.experiments.controls import Models
from playground.ui.experiments.service import Experiments, View
from playground.ui.wiring import PRIVATE, QUIET, UNBOUNDED, Filled, Named, download, filled
from playground.views import report, scripts
from playground.views.table import folded

# Evaluated once for all events, which share its state.
ROOMS = f"(globalThis.playgroundRooms ??= {scripts.bundle('rooms.js')})"


def build(
    page: gr.Blocks,
    kind: Kind,
    experiments: Experiments,
    models: Models,
    addresses: Mapping[str, Callable[[], str]],
) -> None:
    """Lays the page of a kind out and wires it.

    Args:
        addresses: for each of `controls.ADDRESSES`, a function that returns that of a server that was started here (""
            for none): a choice, or the first value where servers alone decode.
    """
    gr.HTML(f"<h1>{kind.label}</h1><p>{kind.intro}</p>", elem_classes="intro")
    if experiments.refusal:
        gr.HTML(panels.note(experiments.refusal), elem_id="refused")
        return
    made = controls.lay_out(kind, models)

    def begin_with(settings: Mapping[str, Any], earlier: Mapping[str, Any]) -> Named:
        if earlier:
            return controls.restored(kind, models.pairs, earlier)
        return controls.carried(kind, models.pairs, settings)

    def work(values: Mapping[str, Any]) -> tuple[Experiment, str, Mapping[str, Any]]:
        return controls.work_of(kind, models.pairs, values)

    wire(page, experiments, made, (kind.name,), begin_with, work, kind.hint)
    if "server" in made:

        def offered() -> list[Any]:
            found = [url() for url in addresses.values()]
            shown: list[dict[str, Any]] = [{"value": url} if url and not kind.pair else {} for url in found]
            return [gr.update(choices=[*filter(None, found)], **it) for it in shown]

        page.load(offered, None, [made[name] for name in addresses], **QUIET)


def wire(
    page: gr.Blocks,
    experiments: Experiments,
    made: Mapping[str, Component],
    kinds: Sequence[str],
    begin_with: Callable[[Mapping[str, Any], Mapping[str, Any]], Named],
    work: Callable[[Mapping[str, Any]], tuple[Experiment, str, Mapping[str, Any]]],
    hint: str,
) -> None:
    """Lays buttons and outputs out under the controls, and wires all of them.

    Args:
        made: the controls by their names.
        kinds: names of the kinds that the controls start.
        begin_with: returns updates of the controls from what other rooms and the address give, and from what the
            experiment that is shown was asked for (empty without one).
        work: returns what the controls' values ask for, see `controls.work_of`.
        hint: the text of the empty page.
    """
    settings, every = gr.JSON(visible=False), list[Any](made.values())

    def fill(values: dict[str, Any] | None, request: gr.Request) -> Filled:
        name = _of_address(experiments, kinds, request)
        earlier = experiments.started_with(name) if name else {}
        return filled(made, begin_with({**(values or {}), **dict(request.query_params)}, earlier))

    begun = page.load(fill, settings, every, js=f"() => {ROOMS}.settings()", **QUIET)
    begun.then(None, every, None, js=f"(...values) => {ROOMS}.ran(values)", **PRIVATE)
    for control in every:
        control.change(None, every, None, js=f"(...values) => {ROOMS}.changed(values)", **PRIVATE)
    _wire(page, kinds, _panel(hint), experiments, every, lambda *values: work(dict(zip(made, values, strict=True))))


def _panel(hint: str) -> dict[str, Any]:
    """Lays out the buttons and outputs, by name. `name` holds the id of the experiment that is shown."""
    with gr.Row(elem_id="act"):
        run = gr.Button("Run", variant="primary", elem_id="run-experiment", min_width=110, scale=0)
        stop = gr.Button("Stop", interactive=False, elem_id="stop-experiment", min_width=110, scale=0)
        resume = gr.Button("Resume", visible=False, elem_id="resume-experiment", min_width=110, scale=0)
    refused = gr.HTML(visible=False, elem_id="refused", apply_default_css=False)
    shown = gr.HTML(panels.note(hint), elem_id="experiment", apply_default_css=False)
    with gr.Row(elem_id="charts"):
        charts = {"first": panels.empty_plot(), "second": panels.empty_plot()}
    tables = gr.HTML(elem_id="tables", apply_default_css=False)
    save = gr.Button("Save as JSON", visible=False, size="sm", min_width=110, scale=0, elem_id="save-experiment")
    return {
        "name": gr.State(""), "refused": refused, "shown": shown, **charts, "tables": tables, "run": run,
        "stop": stop, "resume": resume, "save": save, "file": panels.written(),
    }  # fmt: skip


def _wire(
    page: gr.Blocks,
    kinds: Sequence[str],
    parts: Mapping[str, Any],
    experiments: Experiments,
    chosen: Sequence[Component],
    work: Callable[..., tuple[Experiment, str, Mapping[str, Any]]],
) -> None:
    """Wires the buttons. `work` turns the values of `chosen` into an experiment."""

    def shown(act: Callable[[], str], **more: Any) -> Filled:
        """Shows the experiment whose id `act` returns; or why there is none, above the one that is shown. `more`:
        further updates with an experiment."""
        try:
            name = act()
            return filled(parts, {**_shown(experiments.view(name)), **more} if name else {})
        except PlaygroundError as problem:
            return filled(parts, _refusal(problem))

    def start(*values: Any) -> Filled:
        # `session` is checked before `work` reads a file.
        return shown(lambda: experiments.session.start(*work(*values)), **ACCEPTED)

    def resume(name: str) -> Filled:
        def go_on() -> str:
            experiments.session.resume(name)
            return name

        return shown(go_on, **ACCEPTED)

    def opened(request: gr.Request) -> Filled:
        return shown(lambda: _of_address(experiments, kinds, request))

    def save(name: str) -> Filled:
        try:
            view = experiments.view(name)
        except PlaygroundError as problem:
            return filled(parts, {"file": None, **_refusal(problem)})
        assert view.result, "otherwise the button is hidden"
        text = report.file(view.result, ".json")
        return filled(parts, {"file": panels.saved(f"{view.entry.kind}-{name}.json", text.encode())})

    async def watch(name: str) -> AsyncGenerator[Filled, None]:
        yield filled(parts, {})  # a generator that yields nothing would empty the outputs
        if not name:
            return
        async with aclosing(experiments.watch(name)) as views:
            async for view in views:
                if view.entry.status == "running":
                    yield filled(parts, _progress(view))

    outputs, name = [*parts.values()], parts["name"]
    begun = [
        parts["run"]
        .click(start, [*chosen], outputs, **PRIVATE)
        .then(None, [*chosen], None, js=f"(...values) => {ROOMS}.showExperiment(values)", **PRIVATE),
        parts["resume"].click(resume, name, outputs, **PRIVATE),
        page.load(opened, None, outputs, **PRIVATE),
    ]
    for event in begun:
        event.then(watch, name, [parts["shown"], parts["tables"]], **UNBOUNDED).then(
            lambda name: shown(lambda: name), name, outputs, **PRIVATE
        )
    download(parts["save"].click, save, name, [parts["file"], parts["refused"]])
    parts["stop"].click(lambda name: experiments.session.stop(name), name, None, **PRIVATE)


ACCEPTED = {"refused": gr.update(visible=False)}


def _refusal(problem: PlaygroundError) -> Named:
    return {"refused": gr.update(value=panels.status(str(problem), "error"), visible=True)}


def _of_address(experiments: Experiments, kinds: Sequence[str], request: gr.Request) -> str:
    """Returns the id of the experiment that the address names; without one, of a running one of these kinds; "" for
    none."""
    return request.query_params.get("id") or next(filter(None, map(experiments.running, kinds)), "")


def _progress(view: View) -> Named:
    """Returns updates that show a running experiment's progress and the parts that have ended."""
    return {
        "shown": panels.progress(view.entry, view.done[-1].left_s if view.done else None),
        "tables": panels.tables([panels.so_far(view.done)] if view.done else []),
    }


def _shown(view: View) -> Named:
    entry, found = view.entry, view.report
    running = entry.status == "running"
    values = _progress(view)
    figures: Sequence[go.Figure] = []
    if found and view.result:
        figures = found.charts
        settings = folded("Settings for every engine", panels.blocks(found.deploy)) if found.deploy else ""
        values["shown"] += panels.findings(found.findings) + panels.first(found.deploy)
        values["tables"] = panels.tables([*found.tables, *found.folded], drawn=bool(figures)) + settings
    return {
        **values,
        "name": entry.id,
        **panels.plots(entry.kind, figures),
        "run": gr.update(interactive=not running),
        "stop": gr.update(interactive=running),
        "resume": gr.update(visible=entry.status in ("stopped", "failed")),
        "save": gr.update(visible=bool(view.result)),
    }
