"""A device that is not there, for a CI without a GPU: tensors that say they lie on it compute on the CPU, and whatever
mixes them with the CPU's own raises, as it would on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

FAR = torch.device("privateuseone", 0)
INDEXING = ("aten::index", "aten::index_put_")  # its indices may lie on the CPU


class FarTensor(Tensor):
    """`near`: what it holds."""

    near: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, near: Tensor) -> FarTensor:
        with torch.inference_mode(False):  # a tensor made in it could not be wrapped
            far = Tensor._make_wrapper_subclass(cls, near.shape, strides=near.stride(), dtype=near.dtype)
        far.near = near
        return far

    @property
    def device(self) -> torch.device:
        return FAR

    def tolist(self) -> list:
        return self.near.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        name = func._schema.name
        if name != "aten::copy_" and not (name in INDEXING and isinstance(args[0], FarTensor)):
            check_together(tensors, func)
        out = func(*tree_map(_near, args), **tree_map(_near, kwargs or {}))
        written = next((tensor for tensor in tensors if _near(tensor) is out), None)  # in place
        return tree_map(_far, out) if written is None else written


class FarDevice(TorchFunctionMode):
    """Within it tensors can be made on the device, and moved there and back. Draws are the CPU's."""

    def __enter__(self) -> FarDevice:
        self._generator = torch.Generator
        torch.Generator = lambda device="cpu": self._generator()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        torch.Generator = self._generator
        super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is Tensor.to:
            return _moved(*args, **kwargs)
        if func is Tensor.cpu:
            return _near(args[0])
        if kwargs.get("device") == FAR:
            return _far(func(*args, **kwargs | {"device": "cpu"}))
        if func is F.scaled_dot_product_attention:  # makes a causal mask within, on the tensors' own device
            check_together([leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)], func)
            out = func(*tree_map(_near, args), **tree_map(_near, kwargs))
            return _far(out) if isinstance(args[0], FarTensor) else out
        if func is torch.histc:  # of whole numbers, which a GPU takes and the CPU does not
            return _far(func(_near(args[0]).float(), *args[1:], **kwargs).to(args[0].dtype))
        if func is F.linear and args[0].dim() == 1:  # changes a shape in place, which a wrapper does not see
            return func(args[0][None], *args[1:], **kwargs)[0]
        return func(*args, **kwargs)


def check_together(tensors: list[Tensor], func: object) -> None:
    """Raises:
    RuntimeError: some lie far and some near. Scalars may lie anywhere but where they are indices.
    """
    apart = [tensor for tensor in tensors if tensor.dim() or func is torch.ops.aten.embedding.default]
    if len({isinstance(tensor, FarTensor) for tensor in apart}) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device: {func}")


def move(*modules: nn.Module) -> None:
    """Puts their weights on the device, and those of the modules that they keep without owning them."""
    moved: dict[int, Tensor] = {}
    for part in _parts(modules, set()):
        for tensors in (part._parameters, part._buffers, vars(part)):
            for name, tensor in tensors.items():
                if isinstance(tensor, Tensor) and not isinstance(tensor, FarTensor):
                    tensors[name] = moved.setdefault(id(tensor), _far(tensor.detach()))


def _parts(modules: tuple[nn.Module, ...], seen: set[nn.Module]) -> Iterator[nn.Module]:
    for module in modules:
        for part in module.modules():
            if part not in seen:
                seen.add(part)
                yield part
                yield from _parts(tuple(kept for kept in vars(part).values() if isinstance(kept, nn.Module)), seen)


def _near(value: object) -> object:
    return value.near if isinstance(value, FarTensor) else value


def _far(value: object) -> object:
    return FarTensor(value) if isinstance(value, Tensor) and not isinstance(value, FarTensor) else value


def _moved(tensor: Tensor, *args: object, **kwargs: object) -> Tensor:
    """As `tensor.to`, with a device, a dtype or both."""
    device = next((arg for arg in (*args, *kwargs.values()) if isinstance(arg, (torch.device, str))), tensor.device)
    dtype = next((arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.dtype)), tensor.dtype)
    near = Tensor.to(_near(tensor), dtype)
    if torch.device(device) != FAR:
        return near
    return tensor if isinstance(tensor, FarTensor) and near is tensor.near else _far(near)
