"""A suite or a sweep as one HTML file with tables and charts. It opens without a server and without a network, which
its content security policy also forbids. Names and prompts stay text, whatever they contain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from string import Template

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from playground import results
from playground.presets import ROOT
from playground.results import SuiteResult, SweepResult
from playground.views import charts, charts_suite
from playground.views import suite as suite_view
from playground.views import sweep as sweep_view
from playground.views.suite import Table

TEMPLATE = ROOT / "assets" / "report.html"


def build(result: SuiteResult | SweepResult, title: str = "") -> str:
    """The file's text. `title`: "" for what was run."""
    figures: Sequence[go.Figure]
    tables: Sequence[Table]
    swept: str
    if isinstance(result, SweepResult):
        suite, swept, findings = result.suite, result.axis, sweep_view.findings(result)
        figures = [charts_suite.sweep(result), charts_suite.by_category(result)]
        tables = [sweep_view.by_value(result), sweep_view.by_position(result), sweep_view.by_category(result)]
    else:
        suite, swept, findings = result, "", suite_view.findings(result)
        figures = [charts_suite.speedups(result)]
        tables = [suite_view.by_category(result)]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(title or _title(result)),
        setting=escape(suite_view.setting(suite, swept)),
        findings="".join(f"<li>{escape(sentence)}</li>" for sentence in findings),
        charts="\n".join(_chart(figure, number) for number, figure in enumerate(figures)),
        tables="\n".join([*map(_table, tables), _folded(suite_view.by_prompt(suite))]),
        data=json.dumps(results.to_json(result), separators=(",", ":")).replace("<", "\\u003c"),
        plotly=get_plotlyjs(),
    )


def _title(result: SuiteResult | SweepResult) -> str:
    suite = result.suite if isinstance(result, SweepResult) else result
    drafters = ", ".join(dict.fromkeys(lane.drafter for lane in suite.lanes))
    swept = f"{sweep_view.NAMES[result.axis]} of " if isinstance(result, SweepResult) else ""
    return f"{swept}{drafters} on {suite.lanes[0].target}".capitalize()


def _chart(figure: go.Figure, number: int) -> str:
    shown = figure.to_html(
        config=charts.config(f"chart-{number + 1}"), include_plotlyjs=False, full_html=False, div_id=f"chart-{number}"
    )
    return f'<section class="chart" role="img" aria-label="{escape(figure.layout.meta)}">{shown}</section>'


def _folded(table: Table) -> str:
    return f"<section><details><summary>{table.caption}</summary>{_rows(table)}</details></section>"


def _table(table: Table) -> str:
    return f"<section>{_rows(table, f'<caption>{table.caption}</caption>')}</section>"


def _rows(table: Table, caption: str = "") -> str:
    texts = len(table.columns) - table.numbers
    kind = ["" if i < texts else ' class="number"' for i in range(len(table.columns))]
    head = "".join(f'<th scope="col"{of}>{escape(name)}</th>' for of, name in zip(kind, table.columns, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{of}>{escape(cell)}</td>' for of, cell in zip(kind, row, strict=True))}</tr>"
        for row in table.rows
    )
    return f'<div class="scroll"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
