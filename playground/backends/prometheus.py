"""The counters and gauges that a server shows at /metrics, in Prometheus's text format.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from math import isfinite
from typing import NamedTuple

LINE = re.compile(r"(?P<name>[^\s{#]+)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
LABEL = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def samples(text: str) -> list[Sample]:
    """All finite samples; comments and what is no sample are left out."""
    found = []
    for line in text.splitlines():
        if match := LINE.match(line):
            try:
                value = float(match["value"])
            except ValueError:
                continue
            if isfinite(value):
                found.append(Sample(match["name"], dict(LABEL.findall(match["labels"] or "")), value))
    return found
