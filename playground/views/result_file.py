"""A result as a file: JSON, CSV, Markdown, or one HTML page.

The page has tables and charts. It opens without a server and without a network, which its content security policy also
forbids. Names and prompts stay text, whatever they contain.
"""

from __future__ import annotations

import json
from html import escape
from string import Template

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from playground import ROOT, export, results
from playground.results import Result
from playground.trace import Comparison
from playground.views import charts, engines, replay_file, report, scripts
from playground.views import table as spreadsheet

TEMPLATE = ROOT / "assets" / "report.html"


def build_page(result: Result, title: str = "") -> str:
    """Return the page's text. `title`: "" for the report's own.

    Raises:
        PlaygroundError: the result has no report.
    """
    shown = report.of(result)
    sections = [f"<section>{table.section()}</section>" for table in shown.tables]
    folded = [_folded(table.caption, table.html()) for table in shown.folded]
    if shown.deploy:
        folded.append(_folded("Settings to deploy", f"<pre>{escape(engines.text(shown.deploy))}</pre>"))
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(title or shown.title),
        setting=escape(shown.setting),
        findings="".join(f"<li>{escape(sentence)}</li>" for sentence in shown.findings),
        charts="\n".join(_chart(figure, number) for number, figure in enumerate(shown.charts)),
        tables="\n".join([*sections, *folded]),
        data=scripts.embedded(results.to_json(result)),
        plotly=get_plotlyjs() if shown.charts else "",
    )


def _chart(figure: go.Figure, number: int) -> str:
    shown = figure.to_html(
        config=charts.config(f"chart-{number + 1}"), include_plotlyjs=False, full_html=False, div_id=f"chart-{number}"
    )
    return f'<section class="chart" role="img" aria-label="{escape(figure.layout.meta)}">{shown}</section>'


def _folded(caption: str, content: str) -> str:
    return f"<section><details><summary>{escape(caption)}</summary>{content}</details></section>"


def build(result: Result | Comparison, form: str, title: str = "") -> str:
    """Return the file's text.

    Args:
        form: ".json", ".csv", ".md" or ".html".
        title: the page's title; "" for the report's own.

    Raises:
        PlaygroundError: this result has no such form.
    """
    match form:
        case ".md":
            return report.markdown(report.of(result))
        case ".csv":
            return spreadsheet.build(result)
        case ".html":
            return replay_file.build(result) if isinstance(result, Comparison) else build_page(result, title)
    return json.dumps(export.to_json(result) if isinstance(result, Comparison) else results.to_json(result), indent=1)
