from __future__ import annotations

from playground.backends.device_queue import DeviceQueue


def test_the_device_is_given_to_one_at_a_time_in_order():
    queue = DeviceQueue()
    first, second, third = (queue.join() for _ in range(3))
    assert [queue.ahead(ticket) for ticket in (first, second, third)] == [0, 1, 2]
    queue.leave(second)
    queue.leave(second)
    assert [queue.ahead(ticket) for ticket in (first, third)] == [0, 1]
    queue.leave(first)
    assert queue.ahead(third) == 0
