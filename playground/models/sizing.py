"""Memory: the bytes that models and caches hold, and a check of a config before anything is allocated.

transformers builds a model on the meta device first, where a tensor takes no memory. Torch's hooks count its parts, and
stop the construction once it is far larger than the files can fill (`within_files`): a config of a few KB could
otherwise take all memory.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from transformers import Cache, PretrainedConfig, PreTrainedModel

from playground.errors import check
from playground.models.cpu.packed import PackedLinear
from playground.models.fetch.files import ModelFiles
from playground.tensor_header import header
from playground.trace import Experts, Shape


def weights_bytes(model: nn.Module, shared_with: nn.Module | None = None) -> int:
    """Returns the bytes of a model's weights. Memory that the model `shared_with` holds too is left out; nothing is
    counted twice."""
    shared = set() if shared_with is None else _bytes_held(shared_with).keys()
    return sum(size for at, size in _bytes_held(model).items() if at not in shared)


def shape(model: nn.Module) -> Shape | None:
    """Counts what a pass of a model or a drafter multiplies; None for a mixture of experts, of which a pass reads some
    only. A drafter's own keys and values, of a layer or two, are left out."""
    if expert_layers(model):
        return None
    heads = (getattr(model, name, None) for name in ("head", "lm_head", "_target_head"))
    parts = [*model.modules(), *itertools.islice((it for it in heads if isinstance(it, nn.Module)), 1)]
    sizes = {id(it): int(it.in_features) * int(it.out_features) for it in parts if hasattr(it, "in_features")}  # type: ignore[arg-type]
    products, cache = len(sizes), 0
    if isinstance(model, PreTrainedModel):
        config = model.config.get_text_config(decoder=True)
        products = PRODUCTS * config.num_hidden_layers + 1  # some runners join those of one input
        cache = sum(map(_entry, getattr(config, "per_layer_config", None) or [config] * config.num_hidden_layers))
    return Shape(sum(sizes.values()), products, cache)


def _entry(config: PretrainedConfig) -> int:
    """Returns how many numbers a layer keeps of a token. `config`: the layer's own, where layers differ."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * (getattr(config, "num_key_value_heads", None) or 1) * width


def experts(model: PreTrainedModel) -> Experts | None:
    """Counts the routed experts of a model, see `expert_layers`; None if it has none."""
    layers = expert_layers(model)
    config = model.config.get_text_config()
    per_token = getattr(config, "num_experts_per_tok", None) or getattr(config, "top_k_experts", None)
    if not layers or not isinstance(per_token, int):
        return None
    count = len(next(layers[0].parameters()))
    return Experts(count, per_token, sum(map(weights_bytes, layers)))


def expert_layers(model: nn.Module) -> list[nn.Module]:
    """Returns the modules in which transformers stacks the routed experts of a layer."""
    return [
        module
        for name, module in model.named_modules()
        if name.endswith(".experts") and any(True for _ in module.parameters(recurse=False))
    ]


def cache_bytes(cache: Cache) -> int:
    """Returns the bytes of a KV cache, including recurrent states, which layers hold in dictionaries."""
    kept = [value for layer in cache.layers for value in vars(layer).values()]
    states = [state for value in kept for state in (value.values() if isinstance(value, dict) else [value])]
    return sum(_storages(state for state in states if isinstance(state, Tensor)).values())


def _bytes_held(model: nn.Module) -> dict[int, int]:
    """Returns address -> bytes of all memory that a model's tensors hold."""
    modules = list(_modules(model))
    packed = {id(module.packed): module.nbytes for module in modules if isinstance(module, PackedLinear)}
    return packed | _storages(tensor for module in modules for tensor in _tensors(module))


def _modules(model: nn.Module) -> Iterator[nn.Module]:
    """Yields all submodules, and modules that are plain attributes: the target's head, or rows of it."""
    for module in model.modules():
        yield module
        yield from (value for value in vars(module).values() if isinstance(value, nn.Module))


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Yields the parameters, buffers and other tensors of a module, such as the scales that bitsandbytes stores in its
    own objects."""
    yield from module.parameters()
    yield from module.buffers()
    for holder in (module, getattr(module, "state", None), getattr(module, "quant_state", None)):
        yield from (value for value in getattr(holder, "__dict__", {}).values() if isinstance(value, Tensor))


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Returns address -> bytes of the tensors' storages. A view holds all memory of its base."""
    found: dict[int, int] = {}
    for tensor in tensors:
        if hasattr(tensor, "__tensor_flatten__"):  # a quantised tensor consists of several others
            found |= _storages(getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        else:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return found


PRODUCTS = 7  # of a layer: query, key, value, output, gate, up, down
CONFIG_BYTES = 4_000_000
COUNTS = re.compile(r"(layers?|blocks?|experts?|heads?|groups|labels|depth|steps)$")  # keys whose values are counts
MOST = 2048
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # bytes of floating point formats; other formats are quantised
QUANTISED = 4  # values in a byte, at most
MARGIN = 4  # tied and quantised weights are built twice
VALUES, PARAMETERS, MODULES, BUFFERS = 4_000_000, 4_000, 150_000, 2**28  # allowed in any model; the last in bytes
MOST_PARAMETERS = 100_000


def check_config(weights: ModelFiles) -> None:
    """Checks config.json before transformers reads it.

    Raises:
        PlaygroundError: config.json is too large, or has a number so large that the list of that length would exhaust
            memory.
    """
    path = weights.folder / "config.json"
    if not path.is_file():
        return
    check(path.stat().st_size <= CONFIG_BYTES, f"The config.json of {weights.name} is no model's: it is too large.")
    for key, value in _numbers(json.loads(path.read_text(encoding="utf-8"))):
        check(
            not COUNTS.search(key) or value <= MOST,
            f"The config of {weights.name} asks for {value:,} as {key}; no model has more than {MOST:,}.",
        )


def check_shapes(model: PreTrainedModel, name: str) -> None:
    """Checks that each weight has the shape that the model's config gives it. transformers does not for GGUF: a matrix
    with rows missing would be loaded, and attention or embedding would compute with what is there.

    Raises:
        PlaygroundError: one has not.
    """
    with torch.device("meta"):
        described = type(model)(model.config)
    wanted = dict(described.named_parameters(remove_duplicate=False))
    for key, found in model.named_parameters():
        check(
            found.shape == wanted[key].shape,
            f"The weights of {name} do not fit its config: {key} is {_by(found)}, and {_by(wanted[key])} belong there. "
            "Fetch or convert the file again.",
        )


def _by(tensor: Tensor) -> str:
    return " × ".join(map(str, tensor.shape))


@contextmanager
def within_files(weights: ModelFiles) -> Iterator[None]:
    """Limits the networks that this thread builds in this context to about MARGIN times as many values as the files
    hold.

    Raises:
        PlaygroundError: the config describes a larger network.
    """
    counted = _Counted(weights)
    with ExitStack() as stack:
        for register, count in (
            (hooks.register_module_parameter_registration_hook, counted.parameter),
            (hooks.register_module_buffer_registration_hook, counted.buffer),
            (hooks.register_module_module_registration_hook, counted.module),
        ):
            stack.callback(register(count).remove)
        yield


class _Counted:
    """Counts the parts that one thread has built. A parameter that is set again, on its device or tied, counts once."""

    def __init__(self, weights: ModelFiles) -> None:
        self._weights, self._thread = weights, threading.get_ident()
        self._built = {"values": 0, "tensors": 0, "modules": 0, "bytes of buffers": 0}
        self._seen: set[tuple[int, str]] = set()

    @cached_property
    def _most(self) -> dict[str, int]:
        """The limits. They are read only once something is built: before that, a loader may reject these weights."""
        values, tensors = _held(self._weights)
        return {
            "values": MARGIN * values + VALUES,
            "tensors": min(MARGIN * tensors + PARAMETERS, MOST_PARAMETERS),
            "modules": MODULES,
            "bytes of buffers": BUFFERS,
        }

    def parameter(self, module: nn.Module, name: str, parameter: Tensor | None) -> None:
        if parameter is not None and self._new(module, name):
            self._add("values", parameter.numel())
            self._add("tensors", 1)

    def buffer(self, module: nn.Module, name: str, buffer: Tensor | None) -> None:
        if buffer is not None and self._new(module, name):
            self._add("bytes of buffers", buffer.numel() * buffer.itemsize)

    def module(self, module: nn.Module, name: str, child: nn.Module | None) -> None:
        if threading.get_ident() == self._thread:
            self._add("modules", 1)

    def _new(self, module: nn.Module, name: str) -> bool:
        if threading.get_ident() != self._thread or (id(module), name) in self._seen:
            return False
        self._seen.add((id(module), name))
        return True

    def _add(self, what: str, count: int) -> None:
        self._built[what] += count
        check(
            self._built[what] <= self._most[what],
            f"The config of {self._weights.name} asks for a network of more than {self._most[what]:,} {what}, which "
            "its weights cannot fill: config and weights do not belong together. Fetch or save the model again.",
        )


def _held(weights: ModelFiles) -> tuple[int, int]:
    """Returns the largest possible number of values, and the number of tensors, in the files."""
    if weights.gguf:
        return QUANTISED * (weights.folder / weights.gguf).stat().st_size, MOST_PARAMETERS
    tensors = [tensor for path in weights.folder.glob("*.safetensors") for tensor in header(path).values()]
    return sum(map(_values, tensors)), len(tensors)


def _values(tensor: dict[str, Any]) -> int:
    start, end = tensor["data_offsets"]
    size = BYTES.get(tensor["dtype"])
    return (end - start) // size if size else QUANTISED * (end - start)


def _numbers(config: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Yields all numbers in a config, each with its key, or the key of the list that holds it."""
    if isinstance(config, dict):
        for key_, value in config.items():
            yield from _numbers(value, key_)
    elif isinstance(config, list):
        for value in config:
            yield from _numbers(value, key)
    elif isinstance(config, (int, float)) and not (isinstance(config, float) and math.isnan(config)):
        yield key, config
