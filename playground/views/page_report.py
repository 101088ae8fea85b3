"""An experiment as one HTML file with tables and charts. It opens without a server and without a network, which its
content security policy also forbids. Names and prompts stay text, whatever they contain."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from string import Template

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from playground import results
from playground.errors import PlaygroundError
from playground.presets import ROOT
from playground.results import LoadResult, LosslessResult, Recommendation, Result, SuiteResult, SweepResult
from playground.views import charts, charts_suite, engines, load, lossless, recommend
from playground.views import suite as suite_view
from playground.views import sweep as sweep_view
from playground.views.suite import Table

TEMPLATE = ROOT / "assets" / "report.html"


@dataclass(frozen=True)
class Parts:
    """`setting`: how it was measured. `findings`: the first counts most. `folded`: tables, and texts by their title."""

    title: str
    setting: str
    findings: Sequence[str]
    charts: Sequence[go.Figure]
    tables: Sequence[Table]
    folded: Sequence[Table]
    texts: Mapping[str, str] = field(default_factory=dict)


def build(result: Result, title: str = "") -> str:
    """The file's text. `title`: "" for what was run.

    Raises:
        PlaygroundError: it has no page.
    """
    parts = _parts(result)
    folded = [*((table.caption, _rows(table)) for table in parts.folded)]
    folded += [(name, f"<pre>{escape(text)}</pre>") for name, text in parts.texts.items()]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(title or parts.title),
        setting=escape(parts.setting),
        findings="".join(f"<li>{escape(sentence)}</li>" for sentence in parts.findings),
        charts="\n".join(_chart(figure, number) for number, figure in enumerate(parts.charts)),
        tables="\n".join([*map(_table, parts.tables), *(_folded(*each) for each in folded)]),
        data=json.dumps(results.to_json(result), separators=(",", ":")).replace("<", "\\u003c"),
        plotly=get_plotlyjs() if parts.charts else "",
    )


def _parts(result: Result) -> Parts:
    match result:
        case SuiteResult():
            return Parts(
                _of_lanes(result),
                suite_view.setting(result),
                suite_view.findings(result),
                [charts_suite.speedups(result)],
                [suite_view.by_category(result)],
                [suite_view.by_prompt(result)],
            )
        case SweepResult(axis, _, suite):
            return Parts(
                f"{sweep_view.NAMES[axis]} of {_of_lanes(suite)}".capitalize(),
                suite_view.setting(suite, axis),
                sweep_view.findings(result),
                [charts_suite.sweep(result), charts_suite.by_category(result)],
                [sweep_view.by_value(result), sweep_view.by_position(result), sweep_view.by_category(result)],
                [suite_view.by_prompt(suite)],
            )
        case LosslessResult():
            return Parts(
                f"Lossless check of {result.lanes[0].target}",
                lossless.method(result),
                [lossless.headline(result)],
                [],
                [lossless.table(result)],
                [lossless.in_words(result)],
            )
        case Recommendation(lane):
            return Parts(
                f"Recommendation for {result.tested.target}",
                suite_view.setting(result.confirmed),
                [recommend.headline(result), *recommend.reasons(result)],
                [charts_suite.refined(result)],
                [recommend.table(result)],
                [suite_view.by_prompt(result.confirmed)],
                {"Settings to deploy": engines.text(recommend.settings(result))} if lane else {},
            )
        case LoadResult():
            return Parts(
                f"Load on {result.lanes[0].target}",
                load.setting(result),
                load.findings(result),
                [load.speedup(result), load.pareto(result), load.latency(result)],
                [load.by_level(result.points)],
                [load.definitions(result.limits)],
            )
    raise PlaygroundError("A benchmark has no page.")


def _of_lanes(suite: SuiteResult) -> str:
    drafters = ", ".join(dict.fromkeys(lane.drafter for lane in suite.lanes))
    return f"{drafters} on {suite.lanes[0].target}".capitalize()


def _chart(figure: go.Figure, number: int) -> str:
    shown = figure.to_html(
        config=charts.config(f"chart-{number + 1}"), include_plotlyjs=False, full_html=False, div_id=f"chart-{number}"
    )
    return f'<section class="chart" role="img" aria-label="{escape(figure.layout.meta)}">{shown}</section>'


def _folded(name: str, content: str) -> str:
    return f"<section><details><summary>{name}</summary>{content}</details></section>"


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
