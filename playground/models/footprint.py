"""The memory that models and caches hold, in bytes, counted from their tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from playground.models.cpu.packed import PackedLinear
from playground.trace import Experts


def weights_bytes(model: nn.Module, beside: nn.Module | None = None) -> int:
    """Bytes of a model's weights. Memory shared with the model `beside` is left out; nothing is counted twice."""
    shared = set() if beside is None else _held(beside).keys()
    return sum(size for at, size in _held(model).items() if at not in shared)


def experts(model: PreTrainedModel) -> Experts | None:
    """The routed experts of a model, which transformers keeps stacked in a module a layer; None if it has none."""
    layers = [
        module
        for name, module in model.named_modules()
        if name.endswith(".experts") and any(True for _ in module.parameters(recurse=False))
    ]
    config = model.config.get_text_config()
    per_token = getattr(config, "num_experts_per_tok", None) or getattr(config, "top_k_experts", None)
    if not layers or not isinstance(per_token, int):
        return None
    count = len(next(layers[0].parameters()))
    return Experts(count, per_token, sum(map(weights_bytes, layers)))


def cache_bytes(cache: Cache) -> int:
    """Bytes of a KV cache, including recurrent states, which layers keep in dictionaries."""
    kept = [value for layer in cache.layers for value in vars(layer).values()]
    states = [state for value in kept for state in (value.values() if isinstance(value, dict) else [value])]
    return sum(_storages(state for state in states if isinstance(state, Tensor)).values())


def _held(model: nn.Module) -> dict[int, int]:
    """Address -> bytes."""
    modules = list(_modules(model))
    packed = {id(module.packed): module.nbytes for module in modules if isinstance(module, PackedLinear)}
    return packed | _storages(tensor for module in modules for tensor in _tensors(module))


def _modules(model: nn.Module) -> Iterator[nn.Module]:
    """All submodules, and modules kept as plain attributes: the target's head, or rows of it."""
    for module in model.modules():
        yield module
        yield from (value for value in vars(module).values() if isinstance(value, nn.Module))


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Parameters, buffers and other tensors of a module, such as the scales that bitsandbytes keeps in objects of its
    own."""
    yield from module.parameters()
    yield from module.buffers()
    for holder in (module, getattr(module, "state", None), getattr(module, "quant_state", None)):
        yield from (value for value in getattr(holder, "__dict__", {}).values() if isinstance(value, Tensor))


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Address -> bytes. A view holds all memory of its base."""
    found: dict[int, int] = {}
    for tensor in tensors:
        if hasattr(tensor, "__tensor_flatten__"):  # a quantised tensor consists of several others
            found |= _storages(getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        else:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return found
