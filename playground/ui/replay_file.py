"""A comparison as one HTML file: the stage with its replay, the run's details and the trace itself. It opens without a
server and without a network, which its content security policy also forbids."""

from __future__ import annotations

import json
from html import escape
from string import Template
from typing import Any

from playground import export, metrics
from playground.trace import Comparison, Trace
from playground.ui import panels
from playground.ui.compare.screen import Screen
from playground.views import facts, run_details, scripts

TITLE = "Speculative Decoding Playground"


def build(comparison: Comparison, chosen: str = "") -> str:
    """The file's text. Names, prompts and tokens stay text, whatever they contain.

    Args:
        chosen: the name of the lane that is shown beside the baseline; "" for the fastest.
    """
    screen = Screen()
    screen.load(comparison)
    screen.choose(chosen or screen.chosen)
    pair = comparison.beside(screen.chosen)
    other = pair.others[0]
    banner = f"Run at {facts.run_at(other.environment)} on {facts.environment_line(other.environment)}."
    value = screen.value() | {"banner": banner, "replay": True}
    template = Template((panels.ASSETS / "shared.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(f"{value['verdict']['figure']} · {other.lane.name} · {other.lane.target} · {TITLE}"),
        styles="\n".join(path.read_text(encoding="utf-8") for path in panels.styles()),
        prompt=escape(other.request.prompt),
        legend=panels.LEGEND,
        acceptance=_acceptance(other),
        memory=panels.memory(facts.memory(comparison)),
        details=panels.details(run_details.details(pair)),
        value=_json(panels.packed(value)),
        trace=_json(export.to_json(comparison)),
        script=f"{scripts.bundle('shared.js')}.shared();",
    )


def _json(data: Any) -> str:
    """JSON that is safe inside a script element: without "<" it can neither end the element nor open a comment."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _acceptance(trace: Trace) -> str:
    """Acceptance by position as a table with bars; "" if nothing was drafted."""
    rows = "".join(
        f'<tr><th scope="row">{at.position}</th><td>{at.drafted:,}</td><td>{at.reached:,}</td>'
        f"<td>{at.accepted:,}</td><td>{_percent(at.accepted, at.reached)}</td>"
        f"<td>{_percent(at.accepted, at.drafted)}</td>"
        f'<td><span class="share" style="width:{100 * at.accepted / at.drafted:.1f}%"></span></td></tr>'
        for at in metrics.acceptance_by_position(trace.rounds)
    )
    if not rows:
        return ""
    names = ("Position", "Drafted", "Reached", "Accepted", "If reached", "Of all drafts")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return f"<table><caption>Acceptance by position</caption><tr>{head}<td></td></tr>{rows}</table>"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"
