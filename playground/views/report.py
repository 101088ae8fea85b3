"""The report of a result of any kind: sentences, charts and tables. Page, terminal and files show this and nothing
else."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch

import plotly.graph_objects as go

from playground.errors import PlaygroundError
from playground.results import Result
from playground.trace import Comparison
from playground.views import engines
from playground.views.engines import Settings
from playground.views.table import Table, escaped


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
    raise PlaygroundError("A benchmark has no report: its file is all there is.")


def text(report: Report, *, folded: bool = False) -> str:
    """Return the report for a terminal. `folded`: include the folded tables."""
    tables = [*report.tables, *(report.folded if folded else ())]
    parts = [
        report.setting,
        *(f"{table.caption}\n{table.text()}" for table in tables),
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
        *(f"## {escaped(table.caption)}\n\n{table.markdown()}" for table in (*report.tables, *report.folded)),
        textwrap.indent(engines.text(report.deploy), "    "),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"
