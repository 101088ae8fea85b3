"""Results as CSV. Each kind of result registers its lines."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from functools import singledispatch
from typing import Any

from playground.errors import PlaygroundError
from playground.results import Result
from playground.trace import Comparison


def build(result: Result | Comparison) -> str:
    """Raises:
    PlaygroundError: it has no such lines.
    """
    rows = list(lines(result))
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


@singledispatch
def lines(result: Any) -> Iterable[dict[str, Any]]:
    """Each with the same keys, which are the head.

    Raises:
        PlaygroundError: it has none.
    """
    raise PlaygroundError("A benchmark has no lines for a spreadsheet.")
