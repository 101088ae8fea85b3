"""What there is to say and show of a result, whatever its kind: page, terminal and files draw this and nothing else."""

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
    """`title`: what was run. `setting`: where and how it was measured. `findings`: sentences; the first counts most.
    `tables`: the first counts most. `folded`: tables that a page folds and a terminal leaves out. `deploy`: what was
    found, as settings of other engines."""

    title: str
    setting: str
    findings: Sequence[str]
    charts: Sequence[go.Figure]
    tables: Sequence[Table]
    folded: Sequence[Table] = ()
    deploy: Sequence[Settings] = ()


@singledispatch
def of(result: Result | Comparison) -> Report:
    """Each kind of result registers its own.

    Raises:
        PlaygroundError: it has none.
    """
    raise PlaygroundError("A benchmark has no report: its file is all there is.")


def text(report: Report, *, folded: bool = False) -> str:
    """For a terminal. `folded`: with the tables that are left out otherwise."""
    tables = [*report.tables, *(report.folded if folded else ())]
    parts = [
        report.setting,
        *(f"{table.caption}\n{table.text()}" for table in tables),
        "\n".join(report.findings),
        engines.text(report.deploy),
    ]
    return "\n\n".join(filter(None, parts))


def markdown(report: Report) -> str:
    """All of it but the charts."""
    parts = [
        f"# {escaped(report.title)}",
        escaped(report.setting),
        "\n".join(f"- {escaped(sentence)}" for sentence in report.findings),
        *(f"## {escaped(table.caption)}\n\n{table.markdown()}" for table in (*report.tables, *report.folded)),
        textwrap.indent(engines.text(report.deploy), "    "),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"
