"""A result as a file: JSON, CSV, Markdown, or one HTML page."""

from __future__ import annotations

import json

from playground import export, results
from playground.results import Result
from playground.trace import Comparison
from playground.views import page_report, replay_file, report, spreadsheet


def build(result: Result | Comparison, form: str, title: str = "") -> str:
    """The file's text.

    Args:
        form: ".json", ".csv", ".md" or ".html".
        title: of the page; "" for what was run.

    Raises:
        PlaygroundError: this result has no such form.
    """
    match form:
        case ".md":
            return report.markdown(report.of(result))
        case ".csv":
            return spreadsheet.build(result)
        case ".html":
            return replay_file.build(result) if isinstance(result, Comparison) else page_report.build(result, title)
    return json.dumps(export.to_json(result) if isinstance(result, Comparison) else results.to_json(result), indent=1)
