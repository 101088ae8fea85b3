"""Tables as plain data, text, Markdown and HTML, which page, terminal and files share; and results as CSV.

Each kind of result registers the lines of its CSV.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from html import escape
from typing import Any

from rich import table
from rich.console import Console
from rich.text import Text

from playground.errors import PlaygroundError
from playground.results import Result
from playground.trace import Comparison

SPECIAL = re.compile(r"[\\`*_\[\]<>|~&$#]|:(?=//)|(?<=www)\.")  # in Markdown
WIDEST = 100_000  # columns of a terminal that never wraps


@dataclass(frozen=True)
class Table:
    """A table of untrusted text. `numbers`: how many of the last columns hold numbers, which are aligned to the right;
    `words`: those among them that do not."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int
    words: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the table for a terminal, without the caption: a line for each row, however long."""
        grid = table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for i, name in enumerate(self.columns):
            grid.add_column(Text(name), justify="left" if self._is_word(i) else "right", no_wrap=True)
        for row in self.rows:
            grid.add_row(*(Text(_line(cell)) for cell in row))
        out = io.StringIO()
        Console(file=out, width=WIDEST, color_system=None, legacy_windows=False).print(grid)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def markdown(self) -> str:
        """Return the table as Markdown, without the caption."""
        rule = "|" + "".join("---|" if self._is_word(i) else "---:|" for i in range(len(self.columns)))
        return "\n".join([_row(self.columns), rule, *map(_row, self.rows)])

    def html(self) -> str:
        """Return the table as HTML that scrolls sideways on a narrow page. The caption is only its accessible label."""
        head = "".join(self._head(name, i) for i, name in enumerate(self.columns))
        rows = "".join(f"<tr>{''.join(self._cell(cell, i) for i, cell in enumerate(row))}</tr>" for row in self.rows)
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(self.caption)}"><table>'
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        )

    def _head(self, name: str, i: int) -> str:
        return f'<th scope="col"{self._kind(i)}>{escape(name)}</th>' if name else "<td></td>"

    def _cell(self, cell: str, i: int) -> str:
        return f"<td{self._kind(i)}>{escape(cell)}</td>" if i else f'<th scope="row">{escape(cell)}</th>'

    def _kind(self, i: int) -> str:
        return ' class="word"' if self._is_word(i) else ""

    def _is_word(self, i: int) -> bool:
        return i < len(self.columns) - self.numbers or self.columns[i] in self.words


def folded(caption: str, body: str, *, opened: bool = False) -> str:
    """Return HTML under a caption that unfolds it."""
    return f"<details{' open' if opened else ''}><summary>{escape(caption)}</summary>{body}</details>"


def escaped(text: str) -> str:
    """Return one line of Markdown that shows the text as it is: no markup, no link, no new row."""
    return SPECIAL.sub(r"\\\g<0>", _line(text))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(escaped, cells))} |"


def _line(text: str) -> str:
    return " ".join(text.split())


def build(result: Result | Comparison) -> str:
    """Return a result as CSV.

    Raises:
        PlaygroundError: it has no lines.
    """
    rows = list(lines(result))
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


@singledispatch
def lines(result: Any) -> Iterable[dict[str, Any]]:
    """Return the lines of a result, each with the same keys, which are the CSV's head.

    Raises:
        PlaygroundError: it has none.
    """
    raise PlaygroundError("This kind of result has no lines for a spreadsheet.")
