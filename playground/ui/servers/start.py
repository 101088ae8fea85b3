"""Start: llama.cpp on the starter, without and with prompt lookup, by a button each."""

from __future__ import annotations

from functools import partial
from html import escape
from typing import Any

import gradio as gr
from gradio.events import Dependency

from playground.ui import panels
from playground.ui.servers.started import LOOKUP, PLAIN, StartedServers
from playground.ui.wiring import UNBOUNDED

INTRO = (
    "llama.cpp on the starter, on this machine only, at a free port. It ends with the playground. Its lane runs beside "
    "the local ones if its address is chosen on Try, under Advanced."
)
TITLES = {PLAIN: "standard", LOOKUP: "with lookup"}
LOG = '<pre tabindex="0" role="region" aria-label="End of the log">{}</pre>'
EVERY_S = 2


def build(page: gr.Blocks, servers: StartedServers) -> list[Dependency]:
    """Returns the events after which other servers may run."""
    gr.HTML(f"<h2>Start</h2><p>{INTRO}</p>", elem_classes="intro")
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
    timer = gr.Timer(EVERY_S, active=False)
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
    """For each server its state and buttons; and whether to look again."""
    shown: list[Any] = []
    lives = False
    for name in TITLES:
        state = servers.state(name)
        line = panels.status(state.sentence, "" if state.kind == "ready" else state.kind)
        log = LOG.format(escape(state.log)) if state.log else ""
        runs = state.kind in ("busy", "ready")
        lives |= runs
        shown += [line + log, gr.update(interactive=not runs), gr.update(interactive=runs)]
    return [*shown, gr.Timer(active=lives)]
