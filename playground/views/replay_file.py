"""A comparison as one HTML file: the stage with its replay, the run's details and the trace itself. It opens without a
server and without a network, which its content security policy also forbids."""

from __future__ import annotations

from html import escape
from string import Template

from playground import export, metrics
from playground.format import percent
from playground.trace import Comparison, Trace
from playground.views import facts, run_details, scripts, stage
from playground.views.stage import Stage

TITLE = "Speculative Decoding Playground"


def build(comparison: Comparison, chosen: str = "", home: str = "") -> str:
    """The file's text. Names, prompts and tokens stay text, whatever they contain.

    Args:
        chosen: the name of the lane that is shown beside the baseline; "" for the fastest.
        home: the address of a page that everyone reaches, to which the file links; "" for none.
    """
    shown = Stage()
    shown.load(comparison)
    shown.choose(chosen or shown.chosen)
    pair = metrics.beside(comparison, shown.chosen)
    other = pair.others[0]
    shown.banner = f"Run at {facts.run_at(other.environment)} on {facts.environment_line(other.environment)}."
    shown.replay = "loop"
    value = shown.value()
    template = Template((scripts.ASSETS / "shared.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(f"{value['verdict']['figure']} · {other.lane.name} · {other.lane.target} · {TITLE}"),
        home=f'<a href="{escape(home)}">{TITLE}</a>' if home else TITLE,
        styles="\n".join(path.read_text(encoding="utf-8") for path in scripts.styles()),
        prompt=escape(other.request.asked),
        acceptance=_acceptance(other),
        details=run_details.by_segment(pair) + run_details.html(run_details.details(pair)),
        value=scripts.embedded(stage.packed(value)),
        trace=scripts.embedded(export.to_json(comparison)),
        script=f"{scripts.bundle('shared.js')}.shared();",
    )


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
