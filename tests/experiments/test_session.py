from __future__ import annotations

import threading

import pytest

from playground.errors import INTERNAL, PlaygroundError
from playground.experiments.events import Progress
from playground.experiments.history import History
from playground.experiments.session import Run, Session


def begun(work) -> Run:
    run = Run(work)
    run.begin()
    return run


def labels(run: Run) -> list[str]:
    """What happens until its end."""
    seen = []
    for batch in run.batches():
        seen += [event.label for event in batch]
        run.wait(0.005)
    return seen


def until_stopped(watch):
    watch.wait(60)


def test_every_event_arrives_in_order_and_the_end_is_seen_by_each_watcher():
    def work(watch):
        for i in range(100):
            watch.emit(Progress(str(i)))

    run = begun(work)
    assert labels(run) == labels(run) == [str(i) for i in range(100)]


def test_the_work_does_not_wait_for_whoever_watches():
    done = threading.Event()

    def work(watch):
        for i in range(1000):
            watch.emit(Progress(str(i)))
        done.set()

    batches = begun(work).batches()
    first = next(batches)
    assert done.wait(60), "nothing is read here, and the work ends all the same"
    assert len(first) + sum(len(batch) for batch in batches) == 1000


def test_stop_reaches_the_work():
    def work(watch):
        watch.wait(60)
        watch.emit(Progress("stopped" if watch.stopped() else "never stopped"))

    run = begun(work)
    run.stop()
    assert labels(run) == ["stopped"]


@pytest.mark.parametrize(
    ("error", "words"), [(PlaygroundError("no memory"), "no memory"), (ZeroDivisionError("a bug"), INTERNAL)]
)
def test_an_error_comes_out_after_the_events_in_words(error, words):
    def work(watch):
        watch.emit(Progress("one"))
        raise error

    seen, run = [], begun(work)
    with pytest.raises(PlaygroundError, match=words):
        for batch in run.batches():
            seen += batch
            run.wait(0.005)
    assert [event.label for event in seen] == ["one"]


def test_the_device_is_given_to_one_at_a_time_in_order():
    session = Session(History(None), None)
    runs = first, second, third = [session.add(Run(until_stopped)) for _ in range(3)]
    assert [session.ahead(run) for run in runs] == [0, 1, 2]
    assert [run.began is None for run in runs] == [False, True, True]
    second.stop()
    second.stop()
    assert second.end.done() and second.began is None, "one that waits is stopped at once"
    assert [session.ahead(run) for run in (first, third)] == [0, 1]
    first.stop()
    first.wait(60)
    assert session.ahead(third) == 0 and third.began
    third.stop()
    third.wait(60)
    assert session.add(Run(until_stopped)).began, "an error or a stop leaves the device to others"


def test_an_end_that_cannot_be_noted_is_an_end_all_the_same():
    def noted(run, error):
        raise OSError("no room")

    session = Session(History(None), None)
    first, second = session.add(Run(lambda watch: None, noted)), session.add(Run(lambda watch: None))
    with pytest.raises(PlaygroundError, match=INTERNAL):
        list(first.batches())
    second.wait(60)
    assert second.end.done() and session.ahead(second) == 0, "the device is free for the next"
    waiting = Run(until_stopped, noted)
    waiting.stop()
    assert str(waiting.end.result(0)) == INTERNAL
