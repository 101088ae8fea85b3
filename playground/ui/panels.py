"""Components and HTML that show results: the stage, status lines, charts, experiments, tables and settings to deploy.

All text that may come from other people (names, errors, prompts) is escaped here. Model text goes through the stage's
script alone, which writes text and never markup.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from html import escape
from importlib.util import find_spec
from typing import Any

import gradio as gr
import plotly.graph_objects as go
from gradio.components.plot import PlotData
from gradio.processing_utils import save_bytes_to_cache
from gradio.utils import get_upload_folder

from playground.experiments.events import LevelDone, PartDone, PromptDone
from playground.experiments.history import COMPARE, Entry
from playground.experiments.kinds import KINDS
from playground.format import duration, ratio
from playground.ui.wiring import WRITTEN
from playground.views import charts, engines, scripts
from playground.views.engines import Settings
from playground.views.load import by_level
from playground.views.table import Table, folded

if find_spec("bokeh") is None:
    # Gradio tries to import it for each chart of each new session, which blocks all other requests. Python does not
    # remember a failed import by itself.
    sys.modules["bokeh"] = None  # type: ignore[assignment]


def stage(value: dict[str, Any]) -> gr.HTML:
    """Returns status line, both lanes and the figure between them as one component, which draws a `packed` value.

    It is one component because each one that streams costs Gradio time on both ends, and the decoding may share the
    machine.
    """
    return gr.HTML(
        value,
        html_template='<div class="stage"></div>',
        js_on_load=scripts.component("stage/stage.js", "stage"),
        apply_default_css=False,
        elem_id="stage",
    )


def status(sentence: str = "", kind: str = "", fraction: float | None = None) -> str:
    """Returns a status line. `kind` is "", "error", or "busy" (a bar, sweeping where no fraction is known)."""
    if not sentence:
        return ""
    bar = ""
    if kind == "busy":
        value = "" if fraction is None else f' value="{fraction:.3f}"'
        bar = f'<progress max="1"{value} aria-label="{escape(sentence)}"></progress>'
    role = "alert" if kind == "error" else "status"
    return f'<div class="status {kind}" role="{role}"><span>{escape(sentence)}</span>{bar}</div>'


def plot(figure: go.Figure, name: str) -> PlotData:
    """Returns a figure for gr.Plot together with Plotly's settings, which the figure itself cannot carry."""
    return PlotData(type="plotly", plot=json.dumps({**json.loads(figure.to_json()), "config": charts.config(name)}))


def plots(name: str, figures: Sequence[go.Figure]) -> dict[str, Any]:
    """Returns updates of the two plots "first" and "second"; a plot without a figure is hidden."""
    shown = [plot(figure, f"{name}-{i}") for i, figure in enumerate(figures, 1)]
    pair = zip(("first", "second"), [*shown, None, None], strict=False)
    return {which: gr.update(value=value, visible=value is not None) for which, value in pair}


def empty_plot() -> gr.Plot:
    """Returns a plot without a label."""
    return gr.Plot(show_label=False, container=False, min_width=300)


def written() -> gr.DownloadButton:
    """Returns the hidden button that `wiring.download` presses."""
    return gr.DownloadButton("Save", visible="hidden", elem_id=WRITTEN)


def saved(name: str, data: bytes) -> dict[str, Any]:
    """Writes the data to a file, and returns an update of the button that downloads it."""
    return gr.update(value=save_bytes_to_cache(data, re.sub(r"[^\w.-]+", "-", name), get_upload_folder()))


def state(entry: Entry, left_s: float | None = None) -> str:
    """Describes an experiment's state, such as "Prompt 3 of 12: MTP tree. About 4 min left."."""
    match entry.status:
        case "running":
            left = f". About {duration(left_s)} left." if left_s else ""
            return f"{entry.note or 'Running'}{left}"
        case "failed":
            return entry.note
        case "stopped":
            note = f": {entry.note}" if entry.note else ""
            return f"Stopped at {entry.fraction:.0%}{note}. Resume continues from there."
    return "Finished."


def at(seconds: float) -> str:
    """Returns a moment in words, in UTC."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"


def so_far(parts: Sequence[PartDone]) -> Table:
    """Returns a table of the parts that have ended, at least one: the levels of a load test; or the prompts of the last
    stage, with each lane's speed-up, or why it has none."""
    last = parts[-1]
    if isinstance(last, LevelDone):
        return by_level(last.points)
    stage = last.stage
    done = [event for event in parts if isinstance(event, PromptDone) and event.stage == stage]
    lanes = list(dict.fromkeys(lane for event in done for lane in event.speedups))
    rows = []
    for event in reversed(done):
        failure = event.result.failure
        cells = [ratio(event.speedups.get(lane)) for lane in lanes]
        name = f"{event.result.question + 1} {event.category}"
        rows.append((f"{name}: {failure.reason}" if failure else name, *cells))
    return Table(f"{stage or 'So far'}: speed-up by prompt", ("prompt", *lanes), tuple(rows), numbers=len(lanes))


MARKS = {"running": "●", "finished": "✓", "stopped": "■", "failed": "!"}


def moment(seconds: float) -> str:
    """Returns a time since 1970 as HTML that page.js converts to the reader's time zone."""
    return f'<local-time data-s="{seconds:.0f}">{at(seconds)}</local-time>'


def note(sentence: str) -> str:
    """Returns a muted line."""
    return f'<p class="empty">{escape(sentence)}</p>'


def progress(entry: Entry, left_s: float | None) -> str:
    """Returns title, start and progress of an experiment."""
    kind = {"running": "busy", "failed": "error"}.get(entry.status, "")
    line = status(state(entry, left_s), kind, entry.fraction if entry.status == "running" else None)
    title = f"{escape(entry.title)} <small>{moment(entry.created)}</small>"
    return f'<div data-experiment="{escape(entry.id)}"><h2>{title}</h2>{line}</div>'


def findings(sentences: Sequence[str]) -> str:
    """Returns the findings as HTML; the first sentence is emphasised."""
    return f'<ul class="findings">{"".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)}</ul>'


def tables(shown: Sequence[Table], *, drawn: bool = False) -> str:
    """Returns tables as HTML. The first one is open, the others are folded; `drawn`: a chart shows what it says, so
    that it is folded too."""
    return "".join(folded(each.caption, each.html(), opened=not (i or drawn)) for i, each in enumerate(shown))


def history(entries: Sequence[Entry], *, searched: bool) -> str:
    """Returns a line for each entry: a box to choose it, and a link that opens it on its page."""
    if not entries:
        return note("Nothing matches." if searched else "Nothing was run yet. What you run is listed here.")
    return f'<ul class="history">{"".join(map(_entry, entries))}</ul>'


def _entry(entry: Entry) -> str:
    state = f"{MARKS[entry.status]} {entry.status}" + (f", {entry.fraction:.0%}" if entry.status == "running" else "")
    said = f"<small>{escape(entry.note)}</small>" if entry.status in ("running", "failed") else ""
    return (
        f'<li class="{entry.status}"><input type="checkbox" id="choose-{escape(entry.id)}" value="{escape(entry.id)}" '
        f'aria-label="Choose {escape(entry.title)}"><div>{_name(entry)}<span class="chip">{state}</span>'
        f"<small>{escape(entry.kind)}</small><small>{moment(entry.created)}</small><small>{escape(entry.id)}</small>"
        f"{said}</div></li>"
    )


def _name(entry: Entry) -> str:
    kind = KINDS.get(entry.kind)  # an earlier release may have had more
    page = "./" if entry.kind == COMPARE else kind.page if kind else entry.kind
    id_ = escape(entry.id)
    return f'<a id="open-{id_}" href="{page}?id={id_}">{escape(entry.title)}</a>'


def side_by_side(entries: Sequence[Entry], sentences: Sequence[str], figures: Table) -> str:
    """Returns two entries with the settings in which they differ, and the figures of both."""
    named = "".join(
        f"<li>{name}: {escape(entry.title)}, {moment(entry.created)}</li>"
        for name, entry in zip(("First", "Second"), entries, strict=True)
    )
    asked = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) or "<li>Both were asked the same.</li>"
    shown = figures.html() if figures.rows else note("They have no lane in common.")
    return f'<section role="status"><h2>Side by side</h2><ul>{named}{asked}</ul>{shown}</section>'


def blocks(found: Sequence[Settings]) -> str:
    """Returns a block with a copy button for each engine that can decode this way; the others say why not, at the
    end. What several notes begin with is said once, above their engines. "" for no settings."""
    groups: dict[str, list[Settings]] = {}
    for it in filter(lambda it: it.text, found):
        groups.setdefault(it.about, []).append(it)
    able = list[str]()
    for about, group in groups.items():
        if about and len(group) > 1:
            able.append(_noted(about, group[0]))
            group = [replace(it, note=it.note.removeprefix(about).strip(), drafter="") for it in group]
        able += map(_engine, group)
    reasons: dict[str, list[str]] = {}
    for it in found:
        if not it.text:
            reasons.setdefault(it.note, []).append(it.engine)
    unable = [_engine(Settings(", ".join(names), "", "", "", note)) for note, names in reasons.items()]
    return f'<div class="deploy">{"".join([*able, *unable])}</div>' if found else ""


def first(found: Sequence[Settings]) -> str:
    """Returns the block to show under a verdict; "" if there is none."""
    if not (it := engines.first(found)):
        return ""
    return f'<div class="deploy">{_engine(replace(it, engine=f"In {it.engine}"))}</div>'


def _engine(it: Settings) -> str:
    """Returns the block of an engine."""
    name = escape(it.engine)
    head = f"<h3>{name} <small>{escape(it.written_for)}</small></h3>"
    said = _noted(it.note, it) if it.note else ""
    if not it.text:
        return f"<section>{head}{said}</section>"
    # page.js copies the text of the section's block.
    copy = (
        f'<span class="said" role="status"></span>'
        f'<button type="button" class="copy" aria-label="Copy the settings of {name}">Copy</button>'
    )
    block = f'<pre tabindex="0" role="region" aria-label="Settings of {name}">{escape(it.text)}</pre>'
    return f"<section><header>{head}{copy}</header>{said}{block}</section>"


def _noted(note: str, of: Settings) -> str:
    """Returns a note on a command, with a link that measures its setting where that did not run here."""
    # On Try the stage takes the press; elsewhere the link leads there.
    lane = f"drafter={of.drafter}&amp;lookahead={of.lookahead}&amp;policy=constant"
    measure = f' <a href="./?{lane}" data-measure="{of.drafter}" data-lookahead="{of.lookahead}">Measure it here</a>'
    return f"<p>{escape(note)}{measure if of.drafter else ''}</p>"
