"""Work on fixed buffers that is captured once and then replayed, so that the host launches it as a whole.

An eager pass launches dozens of kernels a layer, and the host, not the device, sets the pace of a small model. A CUDA
graph launches them all at once. What is captured must read and write the same addresses each time, and must not wait
for the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from weakref import WeakSet

import torch

Work = Callable[[], None]
Capture = Callable[[Work], Work]

WARM_UP = 2  # runs before a capture, in which libraries choose their kernels and allocate their workspaces


class Graphs:
    """Captured work by key.

    Attributes:
        kind: how work is run, in words.
        failure: why nothing is captured any more; "" while it is.
        seconds: time spent capturing.

    Args:
        capture: turns work into its replay; None runs it as it is.
    """

    def __init__(self, kind: str, capture: Capture | None) -> None:
        self.kind = kind
        self.failure = ""
        self.seconds = 0.0
        self._capture = capture
        self._replays: dict[Hashable, Work] = {}

    def lacks(self, key: Hashable) -> bool:
        """Whether running this work would capture it first."""
        return self._capture is not None and key not in self._replays

    def run(self, key: Hashable, work: Work) -> None:
        """Runs `work`, or replays what was captured of it under `key`."""
        if self.lacks(key):
            self._replays[key] = self._captured(work)
        self._replays.get(key, work)()

    def clear(self) -> None:
        """Forgets what was captured, since the buffers have moved."""
        self._replays.clear()

    def _captured(self, work: Work) -> Work:
        assert self._capture
        start = time.perf_counter()
        try:
            return self._capture(work)
        except Exception as error:
            # CUDA, the compiler and the model's own code raise exceptions of any type here; eager passes need none of
            # what failed. Memory that ran out is told as such by the eager pass that follows.
            self._capture = None
            self.failure = " ".join(str(error).split())[:200] or type(error).__name__
            return work
        finally:
            self.seconds += time.perf_counter() - start


def graphs_for(device: torch.device) -> Graphs:
    """CUDA graphs where the device has them."""
    if device.type == "cuda":
        return Graphs("compiled (CUDA graphs)", cuda_capture())
    return Graphs("static cache, not compiled: CUDA graphs need a CUDA device", None)


def cuda_capture() -> Capture:
    """Captures CUDA graphs that share one memory pool. They may: nothing in the pool outlives a replay, because the
    work writes what it returns into buffers of its own."""
    alive: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def capture(work: Work) -> Work:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        pool = next((other.pool() for other in alive), None)  # that of graphs which are gone cannot be used again
        # Other threads, such as the page's, may ask for the device's memory meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            work()
        alive.add(graph)
        return graph.replay

    return capture
