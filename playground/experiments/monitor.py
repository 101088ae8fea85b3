"""Monitors a server that has traffic through its /metrics, without sending a request to its model."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from playground.backends.http import KEY, Http
from playground.backends.kinds import counts_of
from playground.experiments.events import Watch
from playground.metrics.load import Reading, Window, window


def watched(url: str, every_s: float, watch: Watch) -> Iterator[Window]:
    """Yields a window every `every_s` seconds until it is stopped. A restart of the server begins a new window.

    Raises:
        PlaygroundError: nothing answers; and see `counts_of` (llama-server shows counters if started with --metrics).
    """
    http = Http(url, os.environ.get(KEY, ""), idle_s=max(5.0, every_s))
    begun = time.monotonic()
    try:
        before = _read(http, begun)
        while not watch.wait(every_s):
            after = _read(http, begun)
            if found := window(before, after):
                yield found
            before = after
    finally:
        http.close()


def _read(http: Http, begun: float) -> Reading:
    text = http.text("/metrics")
    return Reading(time.monotonic() - begun, counts_of(text))
