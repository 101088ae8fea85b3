"""Ways to mend a drafter whose weights were written in another order, which a trial can show to be right.

The doctor tries each of `repairs` on a drafter that drafts badly. Files were met with transposed matrices, with halves,
heads, layers or rotary pairs in another order, and with wrong layer ids or rotary bases in config.json.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from playground.drafting_methods import DraftingMethod
from playground.models.load import LoadedModel, explained, locate
from playground.models.networks.dflash import DFlash
from playground.models.networks.eagle3 import Eagle3Head
from playground.models.networks.heads import ParallelHeads
from playground.models.networks.readings import Reading, Undo, read_as
from playground.progress import Progress

Weights = Mapping[str, Tensor]
STEP = 3  # layers between two of those that are tried
FEW = 6  # layers of which any two may be swapped; of more, neighbours
BASES = (10_000.0, 100_000.0, 500_000.0, 1_000_000.0)  # usual values of rope_theta
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True)
class Repair:
    """A way to mend a drafter. `said`: for a sentence. `weights`: gives the tensors that replace its own, of those."""

    said: str
    weights: Callable[[Weights], Weights] = field(default=lambda own: {})
    reading: Reading = field(default_factory=dict)

    def apply(self, module: nn.Module) -> Undo:
        """Mends the module, and returns what `readings.undo` takes."""
        return read_as(module, self.reading) + _put(module, self._changed(module))

    def erased(self, module: nn.Module) -> Undo:
        """Erases the tensors that it would replace, and returns what `readings.undo` takes."""
        return _put(module, {name: torch.zeros_like(it) for name, it in self._changed(module).items()})

    def _changed(self, module: nn.Module) -> Weights:
        return self.weights({name: it.data for name, it in module.named_parameters()})


def _put(module: nn.Module, tensors: Weights) -> Undo:
    own, changed = dict(module.named_parameters()), Undo()
    for name, tensor in tensors.items():
        changed.append((own[name], "data", own[name].data))
        own[name].data = tensor.contiguous()
    return changed


def as_stored(
    name: str, method: DraftingMethod, target: LoadedModel, progress: Callable[[Progress], None]
) -> nn.Module:
    """Loads a drafter's weights by the names of its files: not joined, fused or packed.

    Raises:
        PlaygroundError: it cannot be loaded.
    """
    if method.weights == "network":
        network: nn.Module = method.resolve(method.loader)(name, target, progress).network
        return network
    files = locate(name, progress)
    with explained(files, target.model.device):
        where = {"dtype": target.model.dtype, "device_map": target.model.device}
        model: nn.Module = AutoModelForCausalLM.from_pretrained(files.folder, use_safetensors=True, **where)
    return model.eval().requires_grad_(False)


def repairs(module: nn.Module, target: LoadedModel) -> list[Repair]:
    """Returns the repairs that a drafter, loaded `as_stored`, can be given."""
    parts: dict[str, list[str]] = defaultdict(list)
    shapes = {name: it.shape for name, it in module.named_parameters() if it.dim() == 2}
    for name in shapes:
        parts[name.split(".")[-2]].append(name)
    width = target.model.config.get_text_config(decoder=True).hidden_size
    found = [*_transposed(parts, shapes), *_halves(parts, shapes, width), *_rotary(parts, shapes, module)]
    found += [*_swapped(list(shapes), module), *_ordered(module)]
    if isinstance(module, Eagle3Head | DFlash):
        found += _layers(module.layers, target.model.config.get_text_config(decoder=True).num_hidden_layers)
    rope = getattr(getattr(module, "config", None), "rope_parameters", None) or {}
    if isinstance(module, Eagle3Head | DFlash | PreTrainedModel) and "rope_theta" in rope:
        others = [base for base in BASES if base != rope["rope_theta"]]
        found += [Repair(f"a rope_theta of {base:,.0f}", reading={"rope_theta": base}) for base in others]
    return found


def _replacing(names: Sequence[str], change: Callable[[Tensor], Tensor]) -> Callable[[Weights], Weights]:
    return lambda own: {name: change(own[name]) for name in names}


def _groups(parts: Collection[str]) -> list[tuple[str, ...]]:
    """Returns each part alone, and those of the attention together: what reads its input, and all."""
    attention = tuple(part for part in ATTENTION if part in parts)
    some = (attention[:-1] if "o_proj" in attention else attention, attention)
    return [*dict.fromkeys([*((part,) for part in parts), *(it for it in some if it)])]


def _transposed(parts: Mapping[str, list[str]], shapes: Mapping[str, Any]) -> Iterator[Repair]:
    square = {part: names for part, names in parts.items() if all(len({*shapes[name]}) == 1 for name in names)}
    square.pop("embed_tokens", None)
    for group in _groups(square):
        names = [name for part in group for name in square[part]]
        yield Repair(f"{', '.join(group)} transposed", _replacing(names, lambda it: it.T))


def _halves(parts: Mapping[str, list[str]], shapes: Mapping[str, Any], width: int) -> Iterator[Repair]:
    """What reads two states of one width may read them in the other order; a gate may be taken for what it gates."""
    both = {part: names for part, names in parts.items() if all(shapes[name][1] == 2 * width for name in names)}
    for group in _groups(both):
        names = [name for part in group for name in both[part]]
        yield Repair(f"the halves of {', '.join(group)} swapped", _replacing(names, lambda it: it.roll(width, 1)))
    if {"gate_proj", "up_proj"} <= parts.keys():
        pairs = [*zip(parts["gate_proj"], parts["up_proj"], strict=True)]
        swapped = {a: b for gate, up in pairs for a, b in ((gate, up), (up, gate))}
        yield Repair("gate_proj and up_proj swapped", lambda own: {a: own[b] for a, b in swapped.items()})


def _rotary(parts: Mapping[str, list[str]], shapes: Mapping[str, Any], module: nn.Module) -> Iterator[Repair]:
    """The rows that rotate together lie half a head from each other, or next to each other."""
    config = getattr(module, "config", None)
    size = config and (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    names = [name for part in ("q_proj", "k_proj") for name in parts.get(part, ())]
    if not size or not names or any(shapes[name][0] % size for name in names):
        return
    for inner, words in ((2, "next to each other"), (size // 2, "half a head from each other")):
        change = lambda it, n=inner: it.unflatten(0, (-1, size // n, n)).transpose(1, 2).flatten(0, 2)  # noqa: E731
        yield Repair(f"the rotary pairs of q_proj and k_proj taken as {words}", _replacing(names, change))


def _swapped(names: Sequence[str], module: nn.Module) -> Iterator[Repair]:
    """Returns layers in another order."""
    every = [name for name, _ in module.named_parameters() if ".layers." in f".{name}"]
    count = len({name.split("layers.")[1].split(".")[0] for name in every})
    pairs = itertools.combinations(range(count), 2) if count <= FEW else itertools.pairwise(range(count))
    orders = {f"layers {a} and {b} swapped": {a: b, b: a} for a, b in pairs}
    if count > 2:
        orders["its layers reversed"] = {i: count - 1 - i for i in range(count)}
    for said, order in orders.items():
        moved = {
            name: name.replace(f"layers.{a}.", f"layers.{b}.")
            for name in every
            for a, b in order.items()
            if f"layers.{a}." in name
        }
        yield Repair(said, lambda own, moved=moved: {a: own[b] for a, b in moved.items()})  # type: ignore[misc]


def _ordered(module: nn.Module) -> Iterator[Repair]:
    """Returns parallel heads in another order."""
    if not isinstance(module, ParallelHeads):
        return
    orders = {"its heads reversed": [*range(module.count)][::-1]}
    for a, b in itertools.combinations(range(module.count), 2):
        order = [*range(module.count)]
        order[a], order[b] = b, a
        orders[f"heads {a} and {b} swapped"] = order
    for said, order in orders.items():
        change = lambda it, order=order: it.unflatten(0, (len(order), -1))[order].flatten(0, 1)  # noqa: E731
        yield Repair(said, _replacing(["heads.weight"], change))


def _layers(layers: Sequence[int], n: int) -> Iterator[Repair]:
    """Returns the target's layers that it reads in another order, and each of them another one: near to it or in steps,
    since a layer's state is much like the next one's."""
    now = [*layers]
    others = [list(it) for it in itertools.permutations(now)] if len(now) <= 3 else [now[::-1]]
    for i, layer in enumerate(now):
        some = {*range(1, n - 1, STEP), *range(layer - STEP + 1, layer + STEP)} & {*range(n - 1)} - {*now}
        others += [[*now[:i], other, *now[i + 1 :]] for other in sorted(some)]
    for other in others:
        if other != now:
            yield Repair(f"layers {', '.join(map(str, other))}", reading={"layers": other})
