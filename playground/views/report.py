"""The report of a result of any kind: sentences, charts and tables. Page, terminal and files show this and nothing
else.

A file is JSON, CSV, Markdown, or one HTML page.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from html import escape
from string import Template

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from playground import ROOT, results
from playground.errors import PlaygroundError
from playground.results import Result
from playground.trace import Comparison
from playground.views import charts, engines, replay_file, scripts, table
from playground.views.engines import Settings
from playground.views.table import Table, escaped

TEMPLATE = ROOT / "assets" / "report.html"


@dataclass(frozen=True)
class Report:
    """The report of a result. `title`: what was run. `setting`: where and how it was measured. `findings`: sentences,
    the most important first. `tables`: the most important first. `folded`: tables that a page folds and a terminal
    leaves out. `deploy`: the settings found, for other engines."""

    title: str
    setting: str
    findings: Sequence[str]
    charts: Sequence[go.Figure]
    tables: Sequence[Table]
    folded: Sequence[Table] = ()
    deploy: Sequence[Settings] = ()


@singledispatch
def of(result: Result | Comparison) -> Report:
    """Return the report of a result. Each kind registers its own function.

    Raises:
        PlaygroundError: the kind has none.
    """
    raise PlaygroundError("This kind of result has no report: its file is all there is.")


def text(report: Report, *, folded: bool = False) -> str:
    """Return the report for a terminal. `folded`: include the folded tables."""
    tables = [*report.tables, *(report.folded if folded else ())]
    parts = [
        report.setting,
        *(f"{each.caption}\n{each.text()}" for each in tables),
        "\n".join(report.findings),
        engines.text(report.deploy),
    ]
    return "\n\n".join(filter(None, parts))


def markdown(report: Report) -> str:
    """Return the report as Markdown, without the charts."""
    parts = [
        f"# {escaped(report.title)}",
        escaped(report.setting),
        "\n".join(f"- {escaped(sentence)}" for sentence in report.findings),
        *(f"## {escaped(each.caption)}\n\n{each.markdown()}" for each in (*report.tables, *report.folded)),
        textwrap.indent(engines.text(report.deploy), "    "),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def page(result: Result, title: str = "") -> str:
    """Return one HTML page with tables and charts. It opens without a server and without a network, which its content
    security policy also forbids. Names and prompts stay text, whatever they contain. `title`: "" for the report's own.

    Raises:
        PlaygroundError: the result has no report.
    """
    shown = of(result)
    sections = [f"<h2>{escape(each.caption)}</h2>{each.html()}" for each in shown.tables]
    folded = [table.folded(each.caption, each.html()) for each in shown.folded]
    if shown.deploy:
        folded.append(table.folded("Settings to deploy", f"<pre>{escape(engines.text(shown.deploy))}</pre>"))
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(title or shown.title),
        setting=escape(shown.setting),
        findings="".join(f"<li>{escape(sentence)}</li>" for sentence in shown.findings),
        charts="\n".join(_chart(figure, number) for number, figure in enumerate(shown.charts)),
        tables="\n".join(f"<section>{each}</section>" for each in (*sections, *folded)),
        data=scripts.embedded(results.to_json(result)),
        plotly=get_plotlyjs() if shown.charts else "",
    )


def _chart(figure: go.Figure, number: int) -> str:
    shown = figure.to_html(
        config=charts.config(f"chart-{number + 1}"), include_plotlyjs=False, full_html=False, div_id=f"chart-{number}"
    )
    return f'<section class="chart" role="img" aria-label="{escape(figure.layout.meta)}">{shown}</section>'


def file(result: Result | Comparison, form: str, title: str = "") -> str:
    """Return the text of a result's file.

    Args:
        form: ".json", ".csv", ".md" or ".html".
        title: the page's title; "" for the report's own.

    Raises:
        PlaygroundError: this result has no such form.
    """
    match form:
        case ".md":
            return markdown(of(result))
        case ".csv":
            return table.build(result)
        case ".html":
            return replay_file.build(result) if isinstance(result, Comparison) else page(result, title)
    return json.dumps(results.to_json(result), indent=1)
