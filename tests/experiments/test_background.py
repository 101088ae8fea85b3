from __future__ import annotations

import threading
import time

import pytest

from playground.errors import PlaygroundError
from playground.experiments.background import BackgroundRun
from playground.experiments.events import Progress


def test_every_event_arrives_in_order_and_the_end_is_seen():
    def work(watch):
        for i in range(100):
            watch.emit(Progress(str(i)))

    seen = [event.label for batch in BackgroundRun(work).drain(hz=200) for event in batch]
    assert seen == [str(i) for i in range(100)]


def test_the_work_does_not_wait_for_whoever_watches():
    done = threading.Event()

    def work(watch):
        for i in range(1000):
            watch.emit(Progress(str(i)))
        done.set()

    batches = BackgroundRun(work).drain()
    first = next(batches)
    assert done.wait(timeout=5), "nothing is drained here, and the work ends all the same"
    assert len(first) + sum(len(batch) for batch in batches) == 1000


def test_stop_reaches_the_work():
    def work(watch):
        watch.wait(10)
        watch.emit(Progress("stopped" if watch.stopped() else "never stopped"))

    run = BackgroundRun(work)
    run.stop()
    assert [event.label for batch in run.drain(hz=100) for event in batch] == ["stopped"]


def test_an_error_comes_out_after_the_events():
    def work(watch):
        watch.emit(Progress("one"))
        raise PlaygroundError("no memory")

    seen = []
    with pytest.raises(PlaygroundError, match="no memory"):
        for batch in BackgroundRun(work).drain(hz=100):
            seen += batch
    assert [event.label for event in seen] == ["one"]


def test_a_quiet_run_still_ticks():
    def work(watch):
        time.sleep(0.2)

    assert sum(1 for _ in BackgroundRun(work).drain(hz=50)) > 2
