"""Drafters made of the shipped ones: with a fault whose cause is known, and with none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from playground.results import Diagnosis
from playground.views.doctor import headline

State = dict[str, Tensor]
# Puts other tensors and entries into a drafter's tensors and config.json. Tensors may be shared: none is written to.
Change = Callable[[State, dict[str, Any]], None]
Outcome = Literal["right", "undecided", "calmed", "wrong"]


@dataclass(frozen=True)
class Case:
    """A drafter made of a shipped one. `cause`: words of which the verdict must have one to name the cause; empty for a
    drafter that has no fault. `held_out`: from the choice of thresholds."""

    kind: str
    name: str
    change: Change
    cause: tuple[str, ...] = ()
    held_out: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"

    def outcome(self, result: Diagnosis) -> Outcome:
        if not self.cause:
            return "wrong" if result.failed else "undecided" if result.verdict == "unknown" else "right"
        if result.verdict in ("healthy", "weak"):
            return "calmed"
        if result.verdict in ("collapsed", "unknown"):
            return "undecided"
        steps = headline(result).split(", then ")
        return "right" if all(any(word in step for word in self.cause) for step in steps) else "wrong"


def noise(like: Tensor, seed: int = 7) -> Tensor:
    """Returns random numbers as large as those of a tensor, on the mean."""
    drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))
    return (drawn * like.float().std()).to(like.dtype)


def rotation(n: int) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(3)))[0]


def each(ends: str | tuple[str, ...], change: Callable[[Tensor], Tensor]) -> Change:
    """Changes the tensors with these names, in any module."""
    suffixes = tuple(f".{end}" for end in ((ends,) if isinstance(ends, str) else ends))

    def of(state: State, config: dict[str, Any]) -> None:
        names = [name for name in state if f".{name}".endswith(suffixes)]
        assert names, ends
        state.update({name: change(state[name]).contiguous() for name in names})

    return of


def entries(**changed: Any) -> Change:
    """Changes entries of config.json; rope_theta lies deeper."""

    def of(state: State, config: dict[str, Any]) -> None:
        if "rope_theta" in changed:
            layer = config.get("transformer_layer_config", config)
            layer["rope_parameters"] = {**layer["rope_parameters"], **changed}
        else:
            config.update(changed)

    return of


def swapped(one: str, other: str) -> Change:
    """Swaps the tensors whose names hold `one` with those that hold `other` in its place."""

    def of(state: State, config: dict[str, Any]) -> None:
        names = [name for name in state if one in name]
        pairs = [(name, name.replace(one, other)) for name in names]
        moved = {a: state[b] for pair in pairs for a, b in (pair, pair[::-1])}
        assert moved
        state.update({name: tensor.clone() for name, tensor in moved.items()})

    return of


def reversed_layers(state: State, config: dict[str, Any]) -> None:
    for i in range(3):
        swapped(f"layers.{i}.", f"layers.{5 - i}.")(state, config)


def emptied_layers(state: State, config: dict[str, Any]) -> None:
    names = [name for name in state if any(f"layers.{i}." in name for i in (1, 3, 5)) and state[name].dim() == 2]
    state.update({name: torch.zeros_like(state[name]) for name in names})


def copied_layer(state: State, config: dict[str, Any]) -> None:
    state.update({name: state[name.replace("s.4.", "s.3.")].clone() for name in state if "layers.4." in name})


def without_map(state: State, config: dict[str, Any]) -> None:
    del state["d2t"], state["t2d"]


def absolute_map(state: State, config: dict[str, Any]) -> None:
    state["d2t"] = state["d2t"] + torch.arange(len(state["d2t"]))


def zeros_in(part: slice, dim: int) -> Callable[[Tensor], Tensor]:
    """Erases a part, in eighths, of the rows (0) or columns (1)."""

    def of(it: Tensor) -> Tensor:
        n, out = it.shape[dim] // 8, it.clone()
        out.narrow(dim, part.start * n, (part.stop - part.start) * n).zero_()
        return out

    return of


def turned(columns: slice = slice(None)) -> Callable[[Tensor], Tensor]:
    """Reads states that were rotated, as another target's are: each block of 576 columns."""

    def of(it: Tensor) -> Tensor:
        blocks = [*it.float().split(576, dim=1)]
        blocks[columns] = [block @ rotation(576) for block in blocks[columns]]
        return torch.cat(blocks, dim=1).to(it.dtype)

    return of


def interleaved(size: int) -> Callable[[Tensor], Tensor]:
    """Writes the rows that rotate together next to each other, as GGUF files of Llamas have them."""
    return lambda it: it.unflatten(0, (-1, 2, size // 2)).transpose(1, 2).flatten(0, 2)


def shuffled(it: Tensor) -> Tensor:
    return it[torch.randperm(len(it), generator=torch.Generator().manual_seed(5))]


def by_blocks(count: int, dim: int = 0) -> Callable[[Tensor], Tensor]:
    """Reverses the order of so many blocks of rows or columns."""
    return lambda it: torch.cat([*it.chunk(count, dim)][::-1], dim)


def first_and_third(it: Tensor) -> Tensor:
    a, b, c, d = it.chunk(4)
    return torch.cat([c, b, a, d])


NORMS = tuple(
    f"{name}.weight"
    for name in ("norm", "norm_embedding", "norm_hidden", "hidden_norm", "input_layernorm", "post_attention_layernorm")
)
ATTENTION = tuple(f"{name}_proj.weight" for name in "qkvo")
MLP = tuple(f"{name}_proj.weight" for name in ("gate", "up", "down"))
QKV = ATTENTION[:3]
ONES, SMALL = torch.ones_like, lambda it: it * 0.02
TRANSPOSED = lambda it: it.T  # noqa: E731
HALVES = lambda it: it.roll(it.shape[1] // 2, 1)  # noqa: E731
FULL = lambda it: it + noise(it)  # noqa: E731
ROLLED = lambda it: it.roll(1, 0)  # noqa: E731
NAN = lambda it: it * float("nan")  # noqa: E731
ROTARY = ATTENTION[:2]
USUAL = ("meant with layers", "the usual layers")
PAIR = swapped("gate_proj", "up_proj")


def moved(ids: list[int]) -> Change:
    key = "eagle_aux_hidden_state_layer_ids"
    return lambda state, config: config.update({key if key in config else "aux_hidden_state_layer_ids": ids})


FAULTS = (
    Case("mtp", "halves of proj swapped", each("proj.weight", HALVES), ("halves of proj",)),
    Case("mtp", "all norms 1", each(NORMS, ONES), ("norm",)),
    Case("mtp", "half of down_proj zero", each("down_proj.weight", zeros_in(slice(0, 4), 1)), ("down_proj",)),
    Case("mtp", "q_proj and o_proj transposed", each(ATTENTION[::3], TRANSPOSED), ("q_proj, o_proj transposed",)),
    Case("mtp", "proj random", each("proj.weight", noise), ("proj.weight",)),
    Case("mtp", "proj under noise", each("proj.weight", FULL), ("proj.weight",)),
    Case("mtp", "inputs of another space", each("proj.weight", turned(slice(1, 2))), ("proj.weight",)),
    Case("mtp", "not finite", each("v_proj.weight", NAN), ("v_proj.weight",)),
    Case("mtp", "half of gate_proj zero", each("gate_proj.weight", zeros_in(slice(4, 8), 0)), ("gate_proj",), True),
    Case("mtp", "final norm 1", each("base.norm.weight", ONES), ("base.norm.weight",), True),
    Case("mtp", "gate and up swapped", PAIR, ("gate_proj and up_proj",), True),
    Case("mtp", "o_proj negated", each("o_proj.weight", torch.neg), ("o_proj negated",), True),
    Case("mtp", "final norm x 0.02", each("base.norm.weight", SMALL), ("final norm",), True),
    Case("mtp", "rotary pairs interleaved", each(ROTARY, interleaved(64)), ("rotary pairs",), True),
    Case("heads", "heads reversed", each("heads.weight", by_blocks(4)), ("heads reversed",)),
    Case("heads", "heads random", each("heads.weight", noise), ("heads.weight",)),
    Case("heads", "proj transposed", each("proj.weight", TRANSPOSED), ("proj transposed",)),
    Case("heads", "halves of heads swapped", each("heads.weight", HALVES), ("halves of heads",), True),
    Case("heads", "norm of the states 1", each("norm_hidden.weight", ONES), ("norm_hidden",), True),
    Case("heads", "first head zero", each("heads.weight", zeros_in(slice(0, 2), 0)), ("heads.weight",), True),
    Case("heads", "two heads swapped", each("heads.weight", first_and_third), ("heads 0 and 2",), True),
    Case("eagle3", "wrong layers", moved([3, 11, 21]), USUAL),
    Case("eagle3", "layers late", moved([3, 16, 30]), ("inputs of the layers", "the usual layers")),
    Case("eagle3", "q, k, v transposed", each(QKV, TRANSPOSED), ("q_proj, k_proj, v_proj transposed",)),
    Case("eagle3", "parts of fc reversed", each("fc.weight", by_blocks(3, 1)), ("meant with layers 28, 14, 1",)),
    Case("eagle3", "a wrong rope_theta", entries(rope_theta=1_000.0), ("rope_theta",)),
    Case("eagle3", "head x 0.02", each("lm_head.weight", SMALL), ("lm_head.weight",)),
    Case("eagle3", "all norms 1", each(NORMS, ONES), ("norm",)),
    Case("eagle3", "inputs of another space", each("fc.weight", turned()), ("fc.weight",)),
    Case("eagle3", "d2t shifted", each("d2t", lambda it: it + 1), ("shifted",)),
    Case("eagle3", "d2t of ids", absolute_map, ("the target's ids",)),
    Case("eagle3", "no d2t", without_map, ("no d2t",)),
    Case("eagle3", "half of up_proj zero", each("up_proj.weight", zeros_in(slice(0, 4), 0)), ("up_proj",)),
    Case("eagle3", "fc random", each("fc.weight", noise), ("fc.weight",)),
    Case("eagle3", "halves of q, k, v swapped", each(QKV, HALVES), ("halves of q_proj, k_proj, v_proj",), True),
    Case("eagle3", "residual before the norm", entries(norm_before_residual=False), ("residual after the norm",), True),
    Case("eagle3", "v_proj zero", each("v_proj.weight", torch.zeros_like), ("v_proj",), True),
    Case("eagle3", "a layer's norm 1", each("input_layernorm.weight", ONES), ("input_layernorm",), True),
    Case("eagle3", "rows of the head shifted", each("lm_head.weight", ROLLED), ("draft vocabulary",), True),
    Case("eagle3", "layers of another depth", moved([2, 20, 37]), ("layer 37",), True),
    Case("dflash", "wrong layers", moved([6, 11, 21]), USUAL),
    Case("dflash", "the anchor drafts", entries(sample_from_anchor=True), ("first mask",)),
    Case("dflash", "an ordinary mask", entries(mask_token_id=65), ("as its mask",)),
    Case("dflash", "its layers swapped", swapped("layers.0.", "layers.1."), ("layers 0 and 1",)),
    Case("dflash", "a wrong rope_theta", entries(rope_theta=1_000_000.0), ("rope_theta",), True),
    Case("dflash", "inputs of another space", each("fc.weight", turned()), ("fc.weight",), True),
    Case("dflash", "final norm zero", each("norm.weight", torch.zeros_like), ("norm.weight is zero",), True),
    Case("dspark", "not finite", each("fc.weight", NAN), ("fc.weight",)),
    Case("dspark", "d2t shifted", each("d2t", lambda it: it + 1), ("shifted",)),
    Case("dspark", "fc zero", each("fc.weight", torch.zeros_like), ("fc.weight",)),
    Case("dspark", "another target's width", entries(target_hidden_size=1024), ("1,024",)),
    Case("dspark", "its layers swapped", swapped("layers.0.", "layers.1."), ("layers 0 and 1",), True),
    Case("dspark", "head x 0.02", each("lm_head.weight", SMALL), ("lm_head.weight",), True),
    Case("dspark", "layers early", moved([0, 13, 27]), ("as a hidden state", *USUAL), True),
    Case("assistant", "half of its layers zero", emptied_layers, ("zero everywhere",)),
    Case("assistant", "first and last layer swapped", swapped("layers.0.", "layers.5."), ("layers 0 and 5",)),
    Case("assistant", "rows of the embedding shuffled", each("embed_tokens.weight", shuffled), ("embed_tokens",)),
    Case("assistant", "q, k, v transposed", each(QKV, TRANSPOSED), ("q_proj, k_proj, v_proj transposed",)),
    Case("assistant", "all norms 1", each(NORMS, ONES), ("norm",)),
    Case("assistant", "half of each MLP zero", each("down_proj.weight", zeros_in(slice(0, 4), 0)), ("down_proj",)),
    Case("assistant", "a wrong rope_theta", entries(rope_theta=1_000_000.0), ("rope_theta",)),
    Case("assistant", "neighbouring layers swapped", swapped("layers.2.", "layers.3."), ("layers 2 and 3",), True),
    Case("assistant", "its layers reversed", reversed_layers, ("layers reversed",), True),
    Case("assistant", "a layer copied over another", copied_layer, ("same numbers",), True),
    Case("assistant", "gate and up swapped", PAIR, ("gate_proj and up_proj",), True),
    Case("assistant", "embedding random", each("embed_tokens.weight", noise), ("embed_tokens",), True),
    Case("assistant", "embedding x 0.02", each("embed_tokens.weight", SMALL), ("embed_tokens",), True),
    Case("assistant", "heads of o_proj reversed", each("o_proj.weight", by_blocks(3, 1)), ("o_proj",), True),
    Case("assistant", "noise over all", each((*ATTENTION, *MLP), FULL), ("noise",), True),
)  # fmt: skip


def eight_bits(it: Tensor) -> Tensor:
    """Casts to fp8 with one scale, and back."""
    if not it.is_floating_point():
        return it
    scale = it.float().abs().max().clamp(min=1e-12) / torch.finfo(torch.float8_e4m3fn).max
    return ((it.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(it.dtype)


def cast(state: State, config: dict[str, Any]) -> None:
    state.update({name: eight_bits(tensor) for name, tensor in state.items()})


def stopped_early(share: float) -> Change:
    """Takes an MTP layer or parallel heads back towards where a training starts: norms of 1, small random matrices, and
    in a layer's projection the states passed unchanged. `share`: of the way from there to what was trained."""

    def of(state: State, config: dict[str, Any]) -> None:
        for name, tensor in state.items():
            if not tensor.is_floating_point():
                continue
            start = torch.ones_like(tensor) if tensor.dim() == 1 else noise(tensor) / tensor.float().std() * 0.02
            if name == "proj.weight" and config["kind"] == "mtp":
                start[:, tensor.shape[0] :] += torch.eye(tensor.shape[0])
            state[name] = (share * tensor.float() + (1 - share) * start.float()).to(tensor.dtype)

    return of


def neurons_reordered(state: State, config: dict[str, Any]) -> None:
    """Lists the neurons of the MLP in another order, which changes nothing."""
    for name in [name for name in state if name.endswith("down_proj.weight")]:
        order = torch.randperm(state[name].shape[1], generator=torch.Generator().manual_seed(1))
        state[name] = state[name][:, order].contiguous()
        for part in ("gate_proj", "up_proj"):
            other = name.replace("down_proj", part)
            state[other] = state[other][order].contiguous()


KINDS = ("mtp", "heads", "eagle3", "dflash", "dspark", "assistant")
HEALTHY = (
    *(Case(kind, "as it ships", lambda state, config: None) for kind in KINDS),
    *(Case(kind, "cast to fp8 and back", cast) for kind in KINDS),
    Case("mtp", "stopped early in training", stopped_early(0.6)),
    Case("heads", "stopped early in training", stopped_early(0.6)),
    Case("eagle3", "neurons in another order", neurons_reordered),
)
