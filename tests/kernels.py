"""Counts the kernels that a pass would launch on CUDA, on any device."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from playground.decoding.runners.graphs import Work

WHOLE = {"aten::rms_norm", "aten::scaled_dot_product_attention"}  # one kernel on CUDA, several elsewhere
NO_KERNEL = {"aten::empty", "aten::empty_like", "aten::new_empty", "aten::lift_fresh", "aten::_unsafe_view"}


class Kernels(TorchDispatchMode):
    """`launched`: how often each operation was. What consists of several operations counts as these; views do not."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: dict[str, int] = {}

    @property
    def total(self) -> int:
        return sum(self.launched.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func._schema.name
        if name not in WHOLE and torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), torch._C.DispatchKey.CompositeImplicitAutograd
        ):
            with self:
                return func.decompose(*args, **kwargs)
        out = func(*args, **kwargs)
        if not (func.is_view or name in NO_KERNEL):
            self.launched[name] = self.launched.get(name, 0) + 1
        return out


def counted_in(kernels: list[Kernels]):
    """Takes the place of a capture: appends what the work launches."""

    def capture(work: Work) -> Work:
        with Kernels() as of_the_pass:
            work()
        kernels.append(of_the_pass)
        return work

    return capture
