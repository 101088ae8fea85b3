from __future__ import annotations

import threading

from playground.errors import PlaygroundError
from playground.progress import Progress
from playground.ui.preload import Preload


def wait(preload: Preload) -> None:
    preload._thread.join(60)
    assert preload.done


def test_progress_can_be_read_while_it_loads():
    told, go = threading.Event(), threading.Event()

    def load(progress) -> None:
        progress(Progress("Fetching", 0.5))
        told.set()
        go.wait(60)

    preload = Preload(load)
    assert told.wait(60)
    assert not preload.done and preload.latest == Progress("Fetching", 0.5)
    go.set()
    wait(preload)
    assert preload.error == ""


def test_a_failure_becomes_a_sentence():
    def refuse(progress) -> None:
        raise PlaygroundError("No weights here. Fetch them.")

    def crash(progress) -> None:
        raise ZeroDivisionError

    for load, sentence in ((refuse, "No weights here. Fetch them."), (crash, "be loaded")):
        preload = Preload(load)
        wait(preload)
        assert sentence in preload.error
