"""A stand-in for CUDA graphs: records the operations of some work and replays them on the same tensors."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from playground.decoding.runners.graphs import Work

WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::masked_select", "aten::bincount")


class Recording(TorchDispatchMode):
    """Collects what runs within it. As in a capture on CUDA, nothing there may wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in WAITS:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **kwargs or {})
        self._steps.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        """Runs the operations again. Their results go where they went in the recording."""
        with torch.inference_mode():
            for func, args, kwargs, out in self._steps:
                for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class Recorder:
    """Takes the place of `cuda_capture`. `replays`: how many there were."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def __call__(self, work: Work) -> Work:
        work()
        with Recording() as recording:
            work()
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            recording.replay()

        return replay
