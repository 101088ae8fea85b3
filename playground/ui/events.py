"""What happens when someone presses something. Handlers drain a run and never touch a tensor.

A run waits for its turn, decodes in a thread of its own and is stopped by its browser session's Stop, by an error or by
the end of its handler's generator, which Gradio closes when the tab is closed.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

import gradio as gr
from gradio.processing_utils import save_bytes_to_cache

from playground import trace
from playground.errors import PlaygroundError
from playground.experiments.background import BackgroundRun
from playground.experiments.events import Event, Finished, Progress
from playground.presets import Pair
from playground.trace import Comparison
from playground.ui.controls import Asked
from playground.ui.line import DeviceLine
from playground.ui.screen import Screen

logger = logging.getLogger(__name__)

DRAIN_HZ = 20
OURS = "Something went wrong inside the playground, not in what you typed. Run again; the server's log says more."
Compare = Callable[..., Comparison | None]  # the signature of experiments.compare.run


@dataclass(frozen=True)
class Outputs:
    """The components that runs and traces are shown in. `Screen` fills those up to `acceptance` by name."""

    status: gr.HTML
    head_0: gr.HTML
    head_1: gr.HTML
    log_0: gr.HTML
    log_1: gr.HTML
    verdict: gr.HTML
    details: gr.HTML
    race: gr.Plot
    rounds: gr.Plot
    gaps: gr.Plot
    acceptance: gr.Plot
    run: gr.Button
    stop: gr.Button
    clear: gr.Button
    save: gr.DownloadButton
    open: gr.UploadButton

    @property
    def all(self) -> list[Any]:
        return [getattr(self, field.name) for field in fields(self)]

    def named(self, changes: dict[str, Any]) -> dict[Any, Any]:
        return {getattr(self, name): value for name, value in changes.items()}


class Events:
    """Handlers that share a model store, the line in front of the device, and who is running what."""

    def __init__(self, store: Any, pairs: dict[str, Pair], compare: Compare) -> None:
        self._store = store
        self._pairs = pairs
        self._compare = compare
        self._line = DeviceLine()
        self._runs: dict[str, BackgroundRun] = {}

    def run(self, outputs: Outputs, session: str, *values: Any) -> Iterator[dict]:
        """Streams one comparison to the page."""
        asked = Asked(*values)
        screen = Screen("waiting", limit=asked.max_new_tokens)
        yield outputs.named({**screen.changes(), **_buttons(running=True), **_saved(None, outputs)})
        run, error = None, ""
        try:
            run = self._start(asked)
            self._runs[session] = run
            for batch in run.drain(DRAIN_HZ):
                for event in batch:
                    screen.take(event)
                if changes := screen.changes():
                    yield outputs.named(changes)
        except PlaygroundError as problem:
            error = str(problem)
        except Exception:
            logger.exception("a comparison failed")
            error = OURS
        finally:
            if run is not None:
                run.stop()
                self._runs.pop(session, None)
        screen.end(error)
        yield outputs.named({**screen.changes(), **_buttons(running=False), **_saved(screen.comparison, outputs)})

    def stop(self, session: str) -> None:
        """Ends this browser session's run within one round. What it decoded stays."""
        if run := self._runs.get(session):
            run.stop()

    def clear(self, outputs: Outputs) -> dict:
        return outputs.named({**Screen().changes(), **_saved(None, outputs)})

    def open(self, outputs: Outputs, data: bytes) -> dict:
        """Shows an uploaded trace; what was there stays where it is none."""
        try:
            comparison = trace.load(data)
        except PlaygroundError as problem:
            raise gr.Error(str(problem), title="Not opened", print_exception=False) from None
        screen = Screen()
        screen.load(comparison)
        return outputs.named({**screen.changes(), **_saved(comparison, outputs)})

    def compare(
        self,
        prompt: str,
        pair: str = "starter",
        target: str = "",
        assistant: str = "",
        drafter: Literal["none", "ngram", "assistant"] = "ngram",
        lookahead: int = 5,
        policy: Literal["constant", "heuristic", "confidence"] = "constant",
        confidence_threshold: float = 0.4,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        system: str = "",
        chat_template: bool = True,
    ) -> dict:
        """Runs the prompt through standard and assisted decoding, and returns the whole comparison: each lane with its
        settings, environment, rounds and metrics. `pair` is a preset's name, or "own" for `target` and `assistant`."""
        values = (prompt, pair, target, assistant, drafter, lookahead, policy, confidence_threshold, max_new_tokens)
        values += (temperature, top_p, top_k, repetition_penalty, seed, system, chat_template)
        try:
            events = (event for batch in self._start(Asked(*values)).drain(DRAIN_HZ) for event in batch)
            return next(event.comparison for event in events if isinstance(event, Finished)).to_json()
        except PlaygroundError as problem:
            raise gr.Error(str(problem), print_exception=False) from None

    def _start(self, asked: Asked) -> BackgroundRun:
        pair, lane, request = asked.resolve(self._pairs)

        def work(stop: threading.Event, emit: Callable[[Event], None]) -> None:
            with self._line.turn(stop, lambda ahead: emit(Progress(_place(ahead)))) as mine:
                if mine:
                    self._compare(self._store, pair, lane, request, stop=stop, emit=emit)

        return BackgroundRun(work)


def _place(ahead: int) -> str:
    runs = "one run goes" if ahead == 1 else f"{ahead} runs go"
    return f"Waiting for the device: you are number {ahead + 1} in the line, {runs} before yours."


def _buttons(*, running: bool) -> dict[str, Any]:
    idle = gr.update(interactive=not running)
    return {"run": idle, "clear": idle, "open": idle, "stop": gr.update(interactive=running)}


def _saved(comparison: Comparison | None, outputs: Outputs) -> dict[str, Any]:
    """The trace as a file to save, where there is one."""
    if comparison is None:
        return {"save": gr.update(value=None, interactive=False)}
    lane = comparison.lanes[1].lane
    name = f"trace-{lane.target}-{lane.drafter}.json".replace("/", "-")
    path = save_bytes_to_cache(json.dumps(comparison.to_json()).encode(), name, outputs.save.GRADIO_CACHE)
    return {"save": gr.update(value=path, interactive=True)}
