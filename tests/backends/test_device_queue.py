from __future__ import annotations

import threading

from playground.backends.device_queue import DeviceQueue


def test_the_device_is_given_to_one_at_a_time_in_order_and_places_are_told():
    line, order, told = DeviceQueue(), [], []
    begun = threading.Event()

    def visit(name: str) -> None:
        def tell(ahead: int) -> None:
            told.append((name, ahead))
            begun.set()

        with line.turn(threading.Event(), tell) as mine:
            order.append((name, mine))

    threads = []
    with line.turn(threading.Event(), lambda ahead: None) as mine:
        assert mine
        for name in ("second", "third"):
            begun.clear()
            threads.append(threading.Thread(target=visit, args=(name,)))
            threads[-1].start()
            assert begun.wait(5)
        assert order == []
    for thread in threads:
        thread.join(5)
    assert order == [("second", True), ("third", True)]
    assert told[:2] == [("second", 1), ("third", 2)]


def test_who_is_stopped_while_waiting_leaves_the_line():
    line, stop = DeviceQueue(), threading.Event()
    with line.turn(threading.Event(), lambda ahead: None):
        stop.set()
        with line.turn(stop, lambda ahead: None) as mine:
            assert not mine
    with line.turn(threading.Event(), lambda ahead: None) as mine:
        assert mine
