"""A stand-in for CUDA graphs: records the operations of some work and replays them on the same tensors."""

from __future__ import annotations

from functools import cache

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.waits import Waits
from playground.decoding.runners.graphs import WARM_UP, Work


class Recording(TorchDispatchMode):
    """Collects what runs within it. As in a capture on CUDA nothing takes effect: what was there before has its old
    values afterwards, and what was made has none."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[tuple] = []
        self._kept: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}  # before the first write
        self._made: dict[int, torch.Tensor] = {}  # by storage: what lies in the graphs' own memory

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for tensor in _written(func, args, kwargs):
            storage = tensor.untyped_storage()
            if _address(tensor) not in self._made and _address(tensor) not in self._kept:
                self._kept[_address(tensor)] = storage, storage.clone()
        out = func(*args, **kwargs)
        new = {at: it for it in _tensors(out) if (at := _address(it)) not in self._made and at not in self._kept}
        if new:
            given = {_address(tensor) for tensor in _tensors((*args, *kwargs.values()))}
            self._made |= {at: tensor for at, tensor in new.items() if at not in given}
        self._steps.append((func, args, kwargs, out))
        return out

    def __exit__(self, *error):
        super().__exit__(*error)
        for storage, old in self._kept.values():
            storage.copy_(old)
        self._spoiled = [tensor for tensor in self._made.values() if tensor.is_floating_point()]
        self.spoil()

    def replay(self) -> None:
        """Runs the operations again. Their results go where they went in the recording."""
        with torch.inference_mode():
            for func, args, kwargs, out in self._steps:
                again = func(*args, **kwargs)
                # Most give one tensor; looking for several in it takes as long as the operation.
                pairs = (
                    [(out, again)]
                    if isinstance(out, torch.Tensor)
                    else zip(_tensors(out), _tensors(again), strict=True)
                )
                for old, new in pairs:
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)

    def spoil(self) -> None:
        """Graphs share a pool of memory, so what one of them made there, any other overwrites."""
        with torch.inference_mode():
            torch._foreach_mul_(self._spoiled, float("nan"))


def refuse(wait: str) -> None:
    """As in a capture on CUDA, nothing there may wait for the device."""
    raise RuntimeError(f"operation not permitted when stream is capturing: {wait}")


class Recorder:
    """Takes the place of `cuda_capture`. `captures`, `replays`: how many there were."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def __call__(self, work: Work) -> Work:
        for _ in range(WARM_UP):
            work()
        with Waits(refuse), Recording() as recording:
            work()
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            recording.replay()
            recording.spoil()

        return replay


def _tensors(values) -> list[torch.Tensor]:
    """Those among the values, and in lists and tuples there. torch's own search takes longer than the operations."""
    if isinstance(values, torch.Tensor):
        return [values]
    return [tensor for value in values for tensor in _tensors(value)] if isinstance(values, (list, tuple)) else []


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@cache
def _writes(func) -> list[tuple[int, str]]:
    """The places and the names of the arguments that the operation writes."""
    return [(place, each.name) for place, each in enumerate(func._schema.arguments) if each.is_write]


def _written(func, args, kwargs) -> list[torch.Tensor]:
    """The tensors that the operation writes."""
    return _tensors([args[place] if place < len(args) else kwargs.get(name) for place, name in _writes(func)])
