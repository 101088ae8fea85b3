"""Captures of CUDA graphs, on a stand-in for `torch.cuda`: streams, devices, pools, and what a failure leaves."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from playground.decoding.runners import graphs as module
from playground.decoding.runners.graphs import Graphs, capturing_until, cuda_capture

VOID = "operation failed due to a previous error during capture"


class Cuda:
    """Stands in for `torch.cuda` with two devices: notes on which stream of which device work runs. As on a GPU, a
    capture runs on the current stream, its end raises once something in it was not permitted, and where it raises the
    allocator goes on serving the capture.

    Attributes:
        notes: where work ran: device and stream. A replay is a note, too.
        pools: of the captures.
        capturing: pools that the allocator serves.
        shares: how many graphs hold a share of each pool, those that still exist or failed.
        cached: whether memory is cached, which a capture cannot take.
        waited: whether the outer stream has waited for the side stream.
    """

    def __init__(self) -> None:
        self.current = "cuda:0", "default"
        self.notes, self.pools, self.capturing = [], [], []
        self.in_capture = self.void = self.cached = self.waited = False
        self.shares: Counter[object] = Counter()
        cuda = self

        class CUDAGraph:
            def capture_begin(self, pool, capture_error_mode):
                if cuda.capturing:
                    raise RuntimeError("the allocator is capturing already")
                assert not cuda.cached
                self.pool, self.ended = pool, False
                cuda.shares[pool] += 1
                cuda.pools.append(pool)
                cuda.capturing.append(pool)
                cuda.in_capture, cuda.void = True, False

            def capture_end(self):
                cuda.in_capture = False
                if cuda.void:
                    raise RuntimeError(VOID)
                cuda.capturing.clear()
                self.ended = True

            def __del__(self):
                cuda.shares[self.pool] -= self.ended

            def replay(self):
                cuda.notes.append("replay")

        self.CUDAGraph = CUDAGraph

    def Stream(self, device):
        return SimpleNamespace(at=(str(device), "side"), wait_stream=lambda other: None)

    def current_stream(self, device):
        def wait_stream(other):
            self.waited = True

        return SimpleNamespace(at=(str(device), "default"), wait_stream=wait_stream)

    def empty_cache(self):
        assert not self.in_capture
        self.cached = False

    def graph_pool_handle(self):
        return object()

    def synchronize(self, device):
        assert not self.in_capture

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream.at
        try:
            yield
        finally:
            self.current = before

    def work(self) -> None:
        self.cached = True
        self.notes.append((*self.current, "capture") if self.in_capture else self.current)

    def forbidden(self) -> None:
        if self.in_capture:
            self.void = True
            raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture
def cuda(monkeypatch):
    def end(device: int, pool: object) -> None:
        if pool not in cuda.capturing:
            raise RuntimeError("not recording to this pool")
        cuda.capturing.remove(pool)

    def release(device: int, pool: object) -> None:
        cuda.shares[pool] -= 1

    cuda = Cuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", release, raising=False)
    module._side_stream.cache_clear()
    yield cuda
    module._side_stream.cache_clear()


def compiled(index: int = 0) -> Graphs:
    return Graphs("compiled", cuda_capture(torch.device("cuda", index)))


@pytest.mark.parametrize("index", [0, 1])
def test_work_is_captured_on_a_side_stream_of_its_own_device(cuda, index):
    graphs, side = compiled(index), (f"cuda:{index}", "side")
    graphs.prepare(1, cuda.work)
    assert cuda.notes == [side, side, (*side, "capture")]
    graphs.run(1, cuda.work)
    assert cuda.notes[3:] == ["replay"]
    assert cuda.current == ("cuda:0", "default")


def test_running_captures_nothing(cuda):
    graphs = compiled()
    graphs.run(1, cuda.work)
    assert graphs.lacks(1) and cuda.notes == [cuda.current]


def test_graphs_share_a_pool_while_one_is_there(cuda):
    graphs = compiled()
    for key in (1, 2):
        graphs.prepare(key, cuda.work)
    graphs.clear()
    graphs.prepare(1, cuda.work)
    first, second, third = cuda.pools
    assert first is second and first is not third
    assert not graphs.failure


def test_a_capture_that_fails_says_why_and_leaves_the_device_usable(cuda):
    graphs, other = compiled(), compiled()
    graphs.prepare(1, cuda.work)
    graphs.prepare(2, cuda.forbidden)
    assert "not permitted" in graphs.failure, "the cause, not what the end of the capture says"
    assert cuda.current == ("cuda:0", "default")
    graphs.run(2, cuda.work)
    graphs.prepare(3, cuda.work)
    graphs.run(3, cuda.work)
    assert cuda.notes[-2:] == [cuda.current] * 2, "as it is from then on"
    other.prepare(1, cuda.work)
    other.run(1, cuda.work)
    assert not other.failure and cuda.notes[-1] == "replay", "another model's captures go on"
    assert [cuda.shares[pool] for pool in dict.fromkeys(cuda.pools)] == [0, 1], "what failed holds no memory"


def test_a_capture_whose_end_alone_fails_is_left_as_well(cuda):
    def spoilt() -> None:
        cuda.void = cuda.in_capture

    graphs, other = compiled(), compiled()
    graphs.prepare(1, spoilt)
    assert graphs.failure == VOID and not any(cuda.shares.values())
    other.prepare(1, cuda.work)
    assert not other.failure


def test_after_a_warm_up_that_fails_later_work_waits_for_what_it_left(cuda):
    def broken() -> None:
        raise ValueError("no such expert")

    graphs = compiled()
    graphs.prepare(1, broken)
    assert graphs.failure == "no such expert" and cuda.waited


def test_no_capture_begins_once_the_run_is_stopped(cuda):
    graphs = compiled()
    with capturing_until(lambda: len(cuda.pools) == 2):
        for key in range(5):
            graphs.prepare(key, cuda.work)
    assert [graphs.lacks(key) for key in range(5)] == [False, False, True, True, True] and not graphs.failure
    graphs.run(3, cuda.work)
    assert cuda.notes[-1] == cuda.current, "what is not captured runs as it is"
    graphs.prepare(3, cuda.work)
    assert not graphs.lacks(3)
