"""A comparison as one HTML file: the stage with its replay, the run's details and the trace itself. It opens without a
server and without a network, which its content security policy also forbids. So does the view of a run in a chat."""

from __future__ import annotations

from html import escape
from string import Template

from playground import export, metrics
from playground.format import percent
from playground.trace import Comparison, Trace
from playground.views import facts, run_details, scripts, stage

TITLE = "Speculative Decoding Playground"


def build(comparison: Comparison, chosen: str = "", home: str = "") -> str:
    """The file's text. Names, prompts and tokens stay text, whatever they contain.

    Args:
        chosen: the name of the lane that is shown beside the baseline; "" for the fastest.
        home: the address of a page that everyone reaches, to which the file links; "" for none.
    """
    shown = stage.replaying(comparison, chosen)
    pair = metrics.beside(comparison, shown.chosen)
    other = pair.others[0]
    shown.banner = f"Run at {facts.run_at(other.environment)} on {facts.environment_line(other.environment)}."
    value = shown.value()
    body = _template("shared.html").substitute(
        home=f'<a href="{escape(home)}">{TITLE}</a>' if home else TITLE,
        prompt=escape(other.request.asked),
        acceptance=_acceptance(other),
        details=run_details.by_segment(comparison, shown.chosen) + run_details.html(run_details.details(pair)),
        value=scripts.embedded(stage.packed(value)),
        trace=scripts.embedded(export.to_json(comparison)),
    )
    title = f"{value['verdict']['figure']} · {other.lane.name} · {other.lane.target} · {TITLE}"
    return _framed(title, body, f"{scripts.bundle('shared.js')}.shared();")


def in_chat() -> str:
    """A file for clients of MCP Apps. It has no run: it asks the client for one, by messages."""
    return _framed(TITLE, _template("chat.html").template, f"{scripts.bundle('chat.js')}.chat();")


def _framed(title: str, body: str, script: str) -> str:
    styles = "\n".join(path.read_text(encoding="utf-8") for path in scripts.styles())
    return _template("frame.html").substitute(title=escape(title), body=body, styles=styles, script=script)


def _template(name: str) -> Template:
    return Template((scripts.ASSETS / name).read_text(encoding="utf-8"))


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
    return percent(part / whole if whole else None)
