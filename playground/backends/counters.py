"""A server's own counts, from /metrics in Prometheus's text format, by the same names for every kind of server.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from playground.errors import check
from playground.metrics.load import Counts


class CounterNames(NamedTuple):
    """The names of the counters of a kind of server. The names for drafts are vLLM's in every kind."""

    prefix: str
    tokens: str
    running: str
    waiting: str


def counters(text: str, names: CounterNames) -> Counts:
    """Reads the text at a server's /metrics. Several engines of a server are added up.

    Raises:
        PlaygroundError: these are the metrics of another program.
    """
    counted = [
        sample._replace(name=sample.name.removeprefix(names.prefix))
        for sample in samples(text)
        if sample.name.startswith(names.prefix)
    ]
    check(bool(counted), f"The server's /metrics has no counters that begin with {names.prefix}")
    by_position: dict[int, int] = {}
    for sample in counted:
        if sample.name == "spec_decode_num_accepted_tokens_per_pos_total":
            label = sample.labels.get("position", "0")
            check(
                label.isdecimal() and len(label) < 7,
                f"The server's /metrics counts accepted tokens at {label[:20]!r}, not at a position.",
            )
            position = int(label)
            by_position[position] = by_position.get(position, 0) + int(sample.value)
    return Counts(
        drafts=_total(counted, "spec_decode_num_drafts_total"),
        drafted=_total(counted, "spec_decode_num_draft_tokens_total"),
        accepted=_total(counted, "spec_decode_num_accepted_tokens_total"),
        accepted_at=tuple(by_position[position] for position in sorted(by_position)),
        tokens=_total(counted, names.tokens) or 0,
        running=_total(counted, names.running) or 0,
        waiting=_total(counted, names.waiting) or 0,
    )


def _total(found: Sequence[Sample], name: str) -> int | None:
    """Returns the sum over labels; None if there is no such sample."""
    values = [sample.value for sample in found if sample.name == name]
    return sum(map(int, values)) if values else None


LINE = re.compile(r"(?P<name>[^\s{#]+)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
LABEL = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    """A value of a metric, with the metric's labels."""

    name: str
    labels: dict[str, str]
    value: float


def samples(text: str) -> list[Sample]:
    """Returns all finite samples. Comments and invalid lines are left out."""
    parsed = []
    for line in text.splitlines():
        if match := LINE.match(line):
            try:
                value = float(match["value"])
            except ValueError:
                continue
            if isfinite(value):
                parsed.append(Sample(match["name"], dict(LABEL.findall(match["labels"] or "")), value))
    return parsed
