"""The short operations of a decoder layer, each as one kernel.

Between the matrix products of a layer torch starts about a dozen kernels, and each takes a few microseconds however
little it does. Here there are four: a residual with the norm that follows it (twice), the activation, and the head
norms with the rotary embedding and the write into the cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_norm(X, DELTA, WEIGHT, SUM, OUT, epsilon, WIDTH: tl.constexpr, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    inside = i < WIDTH
    x = tl.load(X + row * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(DELTA + row * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    x = x.to(SUM.dtype.element_ty)
    tl.store(SUM + row * WIDTH + i, x, mask=inside)
    x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / WIDTH + epsilon)
    weight = tl.load(WEIGHT + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(OUT + row * WIDTH + i, (x * scale * weight).to(OUT.dtype.element_ty), mask=inside)


def add_norm(x: Tensor, delta: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Returns x + delta, and its root mean square norm, both (…, width). `weight`: (width,)."""
    x, delta = x.contiguous(), delta.contiguous()
    total, out = torch.empty_like(x), torch.empty_like(x)
    width = x.shape[-1]
    block = triton.next_power_of_2(width)
    warps = min(16, max(1, block // 512))
    _add_norm[x.numel() // width,](x, delta, weight, total, out, epsilon, WIDTH=width, B=block, num_warps=warps)
    return total, out


@triton.jit
def _silu_gate(X, OUT, WIDTH: tl.constexpr, B: tl.constexpr):
    row, i = tl.program_id(0), tl.program_id(1) * B + tl.arange(0, B)
    inside = i < WIDTH
    gate = tl.load(X + row * 2 * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(X + row * 2 * WIDTH + WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(OUT + row * WIDTH + i, (gate * tl.sigmoid(gate) * up).to(OUT.dtype.element_ty), mask=inside)


def silu_gate(x: Tensor) -> Tensor:
    """Returns silu(gate) x up, (…, width), for x = [gate, up], (…, 2 width)."""
    x = x.contiguous()
    width = x.shape[-1] // 2
    out = x.new_empty(*x.shape[:-1], width)
    block = 1024
    _silu_gate[x.numel() // (2 * width), triton.cdiv(width, block)](x, out, WIDTH=width, B=block, num_warps=4)
    return out


@triton.jit
def _rotate_and_store(
    X, COS, SIN, WEIGHT, SLOTS, QUERY, KEY, VALUE, epsilon, key_head, value_head,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, NORM: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    token, head, d = tl.program_id(0), tl.program_id(1), tl.arange(0, B)
    inside = d < D
    row = X + (token * (HEADS + 2 * GROUPS) + head) * D
    x = tl.load(row + d, mask=inside, other=0.0).to(tl.float32)
    slot = tl.load(SLOTS + token)
    if head < HEADS + GROUPS:
        half: tl.constexpr = D // 2
        other = tl.where(d < half, d + half, d - half)
        turned = tl.load(row + other, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            scale = tl.rsqrt(tl.sum(x * x, 0) / D + epsilon)
            x = x * scale * tl.load(WEIGHT + head * D + d, mask=inside, other=0.0).to(tl.float32)
            turned = turned * scale * tl.load(WEIGHT + head * D + other, mask=inside, other=0.0).to(tl.float32)
            x = x.to(X.dtype.element_ty).to(tl.float32)
            turned = turned.to(X.dtype.element_ty).to(tl.float32)
        cos = tl.load(COS + token * D + d, mask=inside, other=0.0).to(tl.float32)
        sin = tl.load(SIN + token * D + d, mask=inside, other=0.0).to(tl.float32)
        x = x * cos + tl.where(d < half, -turned, turned) * sin
        if head < HEADS:
            tl.store(QUERY + (token * HEADS + head) * D + d, x.to(QUERY.dtype.element_ty), mask=inside)
        else:
            tl.store(KEY + (head - HEADS) * key_head + slot * D + d, x.to(KEY.dtype.element_ty), mask=inside)
    else:
        at = VALUE + (head - HEADS - GROUPS) * value_head + slot * D + d
        tl.store(at, x.to(VALUE.dtype.element_ty), mask=inside)


def rotate_and_store(
    states: Tensor,
    cos: Tensor,
    sin: Tensor,
    weight: Tensor | None,
    epsilon: float,
    slots: Tensor,
    key: Tensor,
    value: Tensor,
) -> Tensor:
    """Norms the heads of queries and keys, rotates them, and writes keys and values into the cache. Returns the
    queries, (1, heads, n, D).

    Args:
        states: (n, heads + 2 key heads, D): queries, keys and values.
        cos: (n, D), of the rotary embedding.
        sin: (n, D).
        weight: (heads + key heads, D), of the heads' norms; None for no norms.
        epsilon: of the norms.
        slots: (n,), the cache's entry of each token.
        key: (1, key heads, entries, D), contiguous in its last two dimensions.
        value: the same shape as `key`.
    """
    n, every, width = states.shape
    groups = key.shape[1]
    heads = every - 2 * groups
    query = states.new_empty(n, heads, width)
    _rotate_and_store[n, every](
        states.contiguous(), cos.contiguous(), sin.contiguous(), states if weight is None else weight, slots,
        query, key, value, epsilon, key.stride(1), value.stride(1),
        HEADS=heads, GROUPS=groups, D=width, NORM=weight is not None, B=triton.next_power_of_2(width), num_warps=1,
    )  # fmt: skip
    return query.transpose(0, 1)[None]
