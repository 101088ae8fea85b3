"""Finds what makes the host wait for a CUDA device, by watching the calls of PyTorch.

The host runs ahead of a GPU until it needs a value from it: it reads one, requests a result whose size depends on
values, or copies between the device and ordinary memory. None of that may happen while a CUDA graph is captured.

On a CPU every tensor counts as the device's, except that copies are only seen between two devices. Under
`inference_mode` PyTorch dispatches composite operations whole, so they are listed in addition to their parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Operations that read a value, or whose result's size depends on values; for some only one overload.
OPERATIONS = {
    *("_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "tensor_split", "one_hot", "narrow.Tensor"),
    *("nonzero", "nonzero_numpy", "argwhere", "where.default", "masked_select", "bincount", "unique_consecutive"),
    *("_unique", "_unique2", "unique_dim", "repeat_interleave.Tensor", "repeat_interleave.self_Tensor"),
}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
COPIES = {"to", "_to_copy", "copy_"}
# Calls without such an operation: those that read, and those that send lists to the device.
READS = {Tensor.tolist, Tensor.cpu, Tensor.numpy, Tensor.__array__, Tensor.__repr__}
SENDS = {torch.tensor, torch.as_tensor, torch.asarray}


def call_waits(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> bool:
    """Returns whether a call of PyTorch's interface, which returned `out`, waits in a way that its operations may not
    show."""
    if func in (Tensor.__getitem__, Tensor.__setitem__):
        parts = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(part, (Sequence, np.ndarray)) for part in parts)
    if func is Tensor.to:
        return out.device != args[0].device and not any(each is True for each in (*args, kwargs.get("non_blocking")))
    return func in READS or func is Tensor.new_tensor or (func in SENDS and kwargs.get("device") is not None)


def operation_waits(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> bool:
    """Returns whether an operation that returned `out` waits. The other arguments are those of `__torch_dispatch__`."""
    name = func._schema.name.removeprefix("aten::")
    if name in INDEXING:
        return _counts(args)
    if name in COPIES:
        source = args[1] if name == "copy_" else args[0]
        return source.device != out.device and not _queued(func, source, out, args, kwargs)
    return not OPERATIONS.isdisjoint((name, f"{name}.{func._overloadname}"))


def _counts(args: Sequence[Any]) -> bool:
    """Returns whether an index is boolean, whose true entries are counted unless a single number is assigned."""
    masks = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return masks and not (len(args) > 2 and args[2].numel() == 1 and args[2].device.type == "cpu")


def _queued(func: Any, source: Tensor, out: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a copy between devices is queued like other work: if requested, and on CUDA from or to pinned
    memory."""
    place = [argument.name for argument in func._schema.arguments].index("non_blocking")
    asked = kwargs.get("non_blocking", args[place] if place < len(args) else False)
    on_cuda, host = source.is_cuda or out.is_cuda, out if source.is_cuda else source
    return asked and (not on_cuda or host.is_pinned())


class Waits(TorchFunctionMode):
    """Calls `seen` at each wait while it is entered, with the name of the waiting call. `seen` refuses a wait by
    raising."""

    def __init__(self, seen: Callable[[str], None]) -> None:
        super().__init__()
        self._operations = _Operations(seen)

    def __enter__(self) -> Waits:
        super().__enter__()
        self._operations.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._operations.__exit__(*error)
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        names: list[str] = []
        seen, self._operations.seen = self._operations.seen, names.append
        try:
            out = func(*args, **kwargs)
        finally:
            self._operations.seen = seen
        if call_waits(func, args, kwargs, out):
            names = [func.__name__]  # its operations are the same wait
        for name in names:
            seen(name)
        return out


class _Operations(TorchDispatchMode):
    def __init__(self, seen: Callable[[str], None]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if operation_waits(func, args, kwargs, out):
            self.seen(func._schema.name)
        return out
