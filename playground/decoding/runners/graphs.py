"""Captures work on fixed buffers once and then replays it, so that the host launches it as a whole.

An eager pass launches dozens of kernels a layer, and the host, not the device, limits the speed of a small model. A
CUDA graph launches them all at once. Captured work must read and write the same addresses each time, and must not wait
for the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from playground.decoding.transfer import to_device
from playground.errors import on_one_line

Work = Callable[[], None]
Capture = Callable[[Work], Work]
Function = Callable[..., tuple[Tensor, ...]]

MOST_CALLS, MOST_KNOWN = 64, 1024  # functions that are held captured, those called last; and known by their key
WARM_UP = 2  # runs before a capture, in which libraries choose their kernels and allocate their workspaces


_stopped: ContextVar[Callable[[], bool]] = ContextVar("stopped", default=lambda: False)


@contextmanager
def capturing_until(stopped: Callable[[], bool]) -> Iterator[None]:
    """Captures nothing more in this context once `stopped` returns True: a set of captures takes seconds, and the next
    run makes those that are missing."""
    before = _stopped.set(stopped)
    try:
        yield
    finally:
        _stopped.reset(before)


class Graphs:
    """Captured work by key.

    Attributes:
        kind: how work is run, in words.
        failure: why capturing failed and has stopped; "" if it has not.
        seconds: time spent capturing.

    Args:
        capture: turns work into its replay; None runs work without capturing it.
    """

    def __init__(self, kind: str, capture: Capture | None) -> None:
        self.kind = kind
        self.failure = ""
        self.seconds = 0.0
        self._capture = capture
        self._replays: dict[Hashable, Work] = {}
        self._calls: dict[Hashable, tuple[list[Tensor], tuple[Tensor, ...]]] = {}  # arguments and results, oldest first
        self._pending: dict[Hashable, tuple[Function, list[Tensor]]] = {}  # since the last `fulfil`
        self._known: dict[Hashable, None] = {}  # called before it, oldest first
        self._capturing = False

    def lacks(self, key: Hashable) -> bool:
        """True where `prepare` would capture work under this key."""
        return self._capture is not None and key not in self._replays

    def prepare(self, key: Hashable, work: Work) -> None:
        """Captures `work` under `key`, unless the run has been stopped. This runs it WARM_UP times, which the buffers
        must allow."""
        if not self._capture or key in self._replays or _stopped.get()():
            return
        start, self._capturing = time.perf_counter(), True
        try:
            self._replays[key] = self._capture(work)
        except Exception as error:
            # CUDA, the compiler and the model's own code raise exceptions of any type here; eager passes do not depend
            # on the capture. Memory that ran out shows again in the eager pass that follows.
            self.refuse(on_one_line(error))
        finally:
            self.seconds += time.perf_counter() - start
            self._capturing = False

    def run(self, key: Hashable, work: Work) -> None:
        """Replays the work captured under `key`, or runs `work` if there is none, or as a part of what is being
        captured. It never captures: it is timed."""
        (work if self._capturing else self._replays.get(key, work))()

    @torch.inference_mode()
    def call(self, key: Hashable, function: Function, device: torch.device, *given: Tensor) -> tuple[Tensor, ...]:
        """Returns `function(*given)`: replayed if it was captured under `key` for tensors of these shapes, whereupon
        the next call overwrites the result; else computed, and captured by a later `fulfil`. It may depend on nothing
        but `key` and tensors. Those on the host are sent to the device."""
        key = key, *((tensor.shape, tensor.dtype) for tensor in given)
        if key in self._calls:
            held, results = self._calls[key] = self._calls.pop(key)
            for buffer, tensor in zip(held, given, strict=True):
                buffer.copy_(tensor, non_blocking=True)
            self._replays[key]()
            return results
        sent = [to_device(tensor, device) for tensor in given]
        if self._capture:
            self._pending[key] = function, sent
        return function(*sent)

    @torch.inference_mode()
    def fulfil(self) -> None:
        """Captures the functions that were called without a capture since the last time, and before it too: shapes
        that occur once are not worth it. Must be called where nothing is timed."""
        pending, self._pending = self._pending, {}
        for key, (function, sent) in pending.items():
            if key not in self._known:
                self._known[key] = None
                continue
            held = [tensor.clone() for tensor in sent]
            results = tuple(result.clone() for result in function(*held))
            self.prepare(key, partial(_into, results, function, held))
            if key in self._replays:
                self._calls[key] = held, results
        for key in [*self._calls][:-MOST_CALLS]:
            del self._calls[key], self._replays[key]
        for key in [*self._known][:-MOST_KNOWN]:
            del self._known[key]

    @property
    def pending(self) -> bool:
        """True where the next `fulfil` may capture something."""
        return bool(self._pending)

    def forget(self) -> None:
        """Drops the calls that the next `fulfil` would capture."""
        self._pending.clear()

    def refuse(self, why: str) -> None:
        """Drops all captured work, and captures nothing from now on."""
        self._capture, self.failure = None, why
        self.clear()

    def clear(self) -> None:
        """Drops all captured work, since the buffers have moved."""
        for held in (self._replays, self._calls, self._pending):
            held.clear()


def _into(results: tuple[Tensor, ...], function: Function, held: list[Tensor]) -> None:
    for buffer, result in zip(results, function(*held), strict=True):
        buffer.copy_(result)


def graphs_for(device: torch.device) -> Graphs:
    """Returns `Graphs` that capture CUDA graphs on a CUDA device, and elsewhere run work without capturing it."""
    if device.type == "cuda":
        return Graphs("compiled (CUDA graphs)", cuda_capture(device))
    return Graphs("static cache, not compiled: CUDA graphs need a CUDA device", None)


def cuda_capture(device: torch.device) -> Capture:
    """Returns a function that captures CUDA graphs on this device. They share one memory pool: nothing in the pool
    outlives a replay, because the work writes its results into buffers of its own."""
    alive: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
    pool: Any = None

    def capture(work: Work) -> Work:
        nonlocal pool
        outer, side = torch.cuda.current_stream(device), _side_stream(device)
        if not alive:  # the pool of deleted graphs cannot be used again
            pool = torch.cuda.graph_pool_handle()
        side.wait_stream(outer)
        try:
            with torch.cuda.stream(side):  # its device becomes the current one
                for _ in range(WARM_UP):
                    work()
                torch.cuda.synchronize(device)
                torch.cuda.empty_cache()  # a capture can take no memory that is cached for other work
                graph = _recorded(work, pool, device)
        finally:
            outer.wait_stream(side)  # a warm-up that raised may have left work there that uses the buffers
        alive.add(graph)
        return graph.replay

    return capture


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Returns one stream for all captures, since libraries allocate a workspace for each stream."""
    return torch.cuda.Stream(device)


def _recorded(work: Work, pool: Any, device: torch.device) -> torch.cuda.CUDAGraph:
    """Captures like `torch.cuda.graph`, without its faults: when the end of a capture raises, that function hides why
    the capture failed, and leaves its stream the current one."""
    graph = torch.cuda.CUDAGraph()
    try:
        # Other threads, such as the page's, may query the device's memory meanwhile.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            with suppress(RuntimeError):  # it says only that the capture is void
                graph.capture_end()
            raise
        graph.capture_end()
    except BaseException:
        # Where the end of a capture raises, torch 2.8 to 2.12 continue to allocate for it, and every later capture and
        # `empty_cache` of the process fails. The graph, which has not ended, does not give its share of the pool back
        # either. Elsewhere there is nothing to end, and this raises.
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(device.index or 0, pool)
            torch._C._cuda_releasePool(device.index or 0, pool)
        raise
    return graph
