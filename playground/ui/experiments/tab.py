"""The tab of a kind of experiment: controls, Run, Stop, progress, and the result as sentences, charts and tables."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import gradio as gr
import plotly.graph_objects as go
from gradio.components import Component

from playground import results
from playground.errors import PlaygroundError
from playground.experiments.kinds.kind import Kind
from playground.experiments.work import Experiment
from playground.ui import deploy, markup, panels
from playground.ui.experiments import controls
from playground.ui.experiments.controls import Models
from playground.ui.experiments.progress import so_far
from playground.ui.experiments.service import Experiments, View

# The address comes to name the experiment, so that it can be opened again.
SHOW_ID = """() => {
  const shown = document.querySelector("#experiment [data-experiment]");
  if (!shown) return;
  const url = new URL(location.href);
  url.searchParams.set("id", shown.dataset.experiment);
  history.replaceState(history.state, "", url);
}"""
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}


@dataclass(frozen=True)
class Panel:
    run: gr.Button
    stop: gr.Button
    resume: gr.Button
    save: gr.DownloadButton
    shown: gr.HTML
    charts: tuple[gr.Plot, gr.Plot]
    tables: gr.HTML
    name: gr.State  # the experiment that is shown

    @property
    def outputs(self) -> list[Any]:
        return [self.name, self.shown, *self.charts, self.tables, self.run, self.stop, self.resume, self.save]


def build(
    page: gr.Blocks,
    kind: Kind,
    experiments: Experiments,
    models: Models,
    addresses: Mapping[str, Callable[[], str]],
) -> None:
    """Lays a tab out and wires it.

    Args:
        addresses: the options that are addresses of servers, each with what tells the one to begin with ("" for none).
    """
    gr.HTML(f"<h1>{kind.name.capitalize()}</h1><p>{kind.intro}</p>", elem_classes="intro")
    asked = controls.lay_out(kind, models)

    def work(*values: Any) -> tuple[Experiment, str]:
        return controls.asked_for(kind, models.pairs, dict(zip(asked, values, strict=True)))

    _wire(page, kind, _panel(kind), experiments, list(asked.values()), work)
    if not kind.pair:
        boxes = [asked[name] for name in addresses]
        page.load(lambda: [url() or gr.skip() for url in addresses.values()], None, boxes, queue=False, **PRIVATE)


def _panel(kind: Kind) -> Panel:
    with gr.Row(elem_id="act"):
        run = gr.Button("Run", variant="primary", elem_id="run-experiment", min_width=110, scale=0)
        stop = gr.Button("Stop", interactive=False, elem_id="stop-experiment", min_width=110, scale=0)
        resume = gr.Button("Resume", visible=False, elem_id="resume-experiment", min_width=110, scale=0)
    shown = gr.HTML(markup.note(kind.hint), elem_id="experiment", apply_default_css=False)
    with gr.Row(elem_id="charts"):
        charts = panels.empty_plot(), panels.empty_plot()
    tables = gr.HTML(elem_id="tables", apply_default_css=False)
    save = gr.DownloadButton(
        "Save as JSON", visible=False, size="sm", min_width=110, scale=0, elem_id="save-experiment"
    )
    return Panel(run, stop, resume, save, shown, charts, tables, gr.State(""))


def _wire(
    page: gr.Blocks,
    kind: Kind,
    panel: Panel,
    experiments: Experiments,
    asked: Sequence[Component],
    work: Callable[..., tuple[Experiment, str]],
) -> None:
    """`work`: what the values of `asked` ask for, and its title."""

    def start(*values: Any) -> tuple[Any, ...]:
        try:
            experiments.allowed()  # before a file is read
            name = experiments.start(*work(*values))
        except PlaygroundError as problem:
            return _failed(str(problem))
        return _shown(experiments.view(name))

    def resume(name: str) -> tuple[Any, ...]:
        try:
            experiments.resume(name)
        except PlaygroundError as problem:
            return _failed(str(problem))
        return _shown(experiments.view(name))

    def opened(request: gr.Request) -> Any:
        """The experiment of the address; without one, the one that runs."""
        name = request.query_params.get("id") or experiments.running(kind.name)
        if not name:
            return [gr.skip()] * len(panel.outputs)
        try:
            return _shown(experiments.view(name))
        except PlaygroundError as problem:
            return _failed(str(problem))

    async def watch(name: str) -> AsyncGenerator[Any, None]:
        if not name:
            yield gr.skip(), gr.skip()  # a generator without a value would empty them
            return
        async with aclosing(experiments.watch(name)) as views:
            async for view in views:
                yield _progress(view)

    def end(name: str) -> Any:
        return _shown(experiments.view(name)) if name else [gr.skip()] * len(panel.outputs)

    begun = [
        panel.run.click(start, list(asked), panel.outputs, **PRIVATE).then(None, None, None, js=SHOW_ID, **PRIVATE),
        panel.resume.click(resume, panel.name, panel.outputs, **PRIVATE),
        page.load(opened, None, panel.outputs, **PRIVATE),
    ]
    for event in begun:
        event.then(watch, panel.name, [panel.shown, panel.tables], concurrency_limit=None, **PRIVATE).then(
            end, panel.name, panel.outputs, **PRIVATE
        )
    panel.stop.click(experiments.stop, panel.name, None, **PRIVATE)


def _progress(view: View) -> tuple[str, str]:
    """How far it is, and the parts that have ended, while it runs."""
    tables = [so_far(view.done)] if view.done else []
    return markup.progress(view.entry, view.done[-1].left_s if view.done else None), markup.tables(tables)


def _shown(view: View) -> tuple[Any, ...]:
    """Updates of `Panel.outputs`."""
    entry, found = view.entry, view.report
    running = entry.status == "running"
    head, tables = _progress(view)
    figures: Sequence[go.Figure] = []
    saved = None
    if found and view.result:
        figures = found.charts
        head += markup.findings(found.findings)
        settings = markup.folded("Settings to deploy", deploy.blocks(found.deploy)) if found.deploy else ""
        tables = settings + markup.tables([*found.tables, *found.folded])
        saved = json.dumps(results.to_json(view.result), indent=1).encode()
    plots = [
        gr.update(value=panels.plot(figure, f"{entry.kind}-{i}"), visible=True) for i, figure in enumerate(figures, 1)
    ]
    return (
        entry.id,
        head,
        *[*plots, *[gr.update(value=None, visible=False)] * 2][:2],
        tables,
        gr.update(interactive=not running),
        gr.update(interactive=running),
        gr.update(visible=entry.status in ("stopped", "failed")),
        {**panels.saved(f"{entry.kind}-{entry.id}.json", saved), "visible": saved is not None},
    )


def _failed(problem: str) -> tuple[Any, ...]:
    """It was not begun. What was shown stays, but for its head."""
    return ("", panels.status(problem, "error"), *[gr.skip()] * 7)
