"""Attention of a few tokens over a long cache, whose length only the device knows.

A verify pass has few queries and many keys. torch's kernel for masked attention gives all keys of a head to one block:
8 blocks on the 132 processors of an H200, 157 µs for 4,096 keys. Here the keys are split over the whole device, as in
Flash-Decoding (https://pytorch.org/blog/flash-decoding/): each block computes the attention over its share of the keys,
and a second kernel weighs the results by their softmax sums.

The length is read from the device, so that one captured pass serves a text of any length. Keys before `origin` are
visible to all queries; `among` says which of the later ones a query sees, which makes draft trees as cheap as chains.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_KEYS = 64
BLOCK_ROWS = 64
MOST_SPLITS = 64
LEAST_KEYS = 128  # keys of a split, where there are enough: shorter ones cost more to join than they save
PER_PROCESSOR = 2  # blocks
LOG2_E = 1.4426950408889634


@triton.jit
def _add_block(
    start, high, origin, q, position, K, V, k_row, v_row, scale, AMONG, token, among_row, valid, top, total, out,
    D: tl.constexpr, DV: tl.constexpr, WINDOW: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
    PRECISION: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """Adds the BN entries from `start` on to the highest score, the softmax's sum and the weighed values of each row.
    `OWN`: whether entries from the origin on may be among them."""
    d, dv, j = tl.arange(0, BD), tl.arange(0, BV), start + tl.arange(0, BN)
    there = j < high
    inside = there[None, :] & (d < D)[:, None]
    k = tl.load(K + j[None, :].to(tl.int64) * k_row + d[:, None], mask=inside, other=0.0)
    scores = tl.dot(q, k, input_precision=PRECISION) * scale
    if OWN:
        own = j >= origin
        asked = (there & own)[None, :] & valid[:, None]
        among = tl.load(AMONG + token[:, None] * among_row + (j - origin)[None, :], mask=asked, other=0.0)
        sees = there[None, :] & (among.to(tl.float32) > -1.0)
        if WINDOW > 0:
            sees = sees & (own[None, :] | (position[:, None] - j[None, :] < WINDOW))
        scores = tl.where(sees, scores, float("-inf"))
    elif WINDOW > 0:
        scores = tl.where(position[:, None] - j[None, :] < WINDOW, scores, float("-inf"))
    highest = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(highest == float("-inf"), 0.0, highest)
    shrink = tl.exp2(top - base)
    shares = tl.exp2(scores - base[:, None])
    v = tl.load(V + j[:, None].to(tl.int64) * v_row + dv[None, :], mask=there[:, None] & (dv < DV)[None, :], other=0.0)
    out = out * shrink[:, None] + tl.dot(shares.to(v.dtype), v, input_precision=PRECISION)
    return highest, total * shrink + tl.sum(shares, 1), out


@triton.jit(do_not_specialize=["n", "among_row"])
def _attend_split(
    Q, K, V, AMONG, ORIGIN, END, POSITIONS, SUM, TOP, OUT,
    scale, n, q_head, q_row, k_head, k_row, v_head, v_row, among_row,
    REP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, WINDOW: tl.constexpr, LEAST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Computes attention of one tile of query rows over one split of the keys of one key head."""
    tile, group, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    splits = tl.num_programs(2)
    origin, end = tl.load(ORIGIN).to(tl.int32), tl.load(END).to(tl.int32)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(tl.load(POSITIONS).to(tl.int32) - WINDOW + 1, 0) // BN * BN
    keys = tl.maximum(tl.cdiv(end - begin, splits), LEAST)
    keys = tl.cdiv(keys, BN) * BN
    low = begin + split * keys
    high = tl.minimum(low + keys, end)

    rows = tile * BM + tl.arange(0, BM)
    valid = rows < REP * n
    token = rows // REP
    head = group * REP + rows % REP
    d, dv = tl.arange(0, BD), tl.arange(0, BV)
    q = tl.load(Q + head[:, None] * q_head + token[:, None] * q_row + d[None, :],
                mask=valid[:, None] & (d < D)[None, :], other=0.0)  # fmt: skip
    position = tl.load(POSITIONS + token, mask=valid, other=0)
    top = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    out = tl.zeros([BM, BV], tl.float32)
    # Entries before the origin need no mask: first the blocks of those alone.
    shared = tl.maximum(low, tl.minimum(high, origin // BN * BN))
    for start in range(low, shared, BN):
        top, total, out = _add_block(
            start, high, origin, q, position, K + group * k_head, V + group * v_head, k_row, v_row, scale,
            AMONG, token, among_row, valid, top, total, out, D, DV, WINDOW, BN, BD, BV, PRECISION, False,
        )  # fmt: skip
    for start in range(shared, high, BN):
        top, total, out = _add_block(
            start, high, origin, q, position, K + group * k_head, V + group * v_head, k_row, v_row, scale,
            AMONG, token, among_row, valid, top, total, out, D, DV, WINDOW, BN, BD, BV, PRECISION, True,
        )  # fmt: skip
    at = (group * splits + split) * REP * n + rows
    tl.store(SUM + at, total, mask=valid)
    tl.store(TOP + at, top, mask=valid)
    tl.store(OUT + at[:, None] * DV + dv[None, :], out, mask=(valid & (total > 0.0))[:, None] & (dv < DV)[None, :])


@triton.jit(do_not_specialize=["n", "splits"])
def _join_splits(
    SUM, TOP, OUT, RESULT, n, splits, REP: tl.constexpr, DV: tl.constexpr, BS: tl.constexpr, BV: tl.constexpr
):
    """Joins the splits of one query row."""
    row, group = tl.program_id(0), tl.program_id(1)
    d, s = tl.arange(0, BV), tl.arange(0, BS)
    at = (group * splits + s) * REP * n + row
    total = tl.load(SUM + at, mask=s < splits, other=0.0)
    top = tl.load(TOP + at, mask=s < splits, other=float("-inf"))
    weight = tl.where(total > 0.0, tl.exp2(top - tl.max(top, 0)), 0.0)
    out = tl.load(OUT + at[:, None] * DV + d[None, :], mask=(total > 0.0)[:, None] & (d < DV)[None, :], other=0.0)
    joined = tl.sum(out * weight[:, None], 0) / tl.sum(total * weight, 0)
    token, head = row // REP, group * REP + row % REP
    heads = tl.num_programs(1) * REP
    tl.store(RESULT + (token * heads + head) * DV + d, joined.to(RESULT.dtype.element_ty), mask=d < DV)


def split_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    among: Tensor,
    origin: Tensor,
    end: Tensor,
    positions: Tensor,
    scale: float,
    window: int = 0,
) -> Tensor:
    """Computes attention of n tokens over a cache; returns (1, n, heads, V).

    Args:
        query: (1, heads, n, D).
        key: (1, key heads, entries, D), the whole cache; only entries before `end` are read.
        value: (1, key heads, entries, V).
        among: (n, m), whose element (i, j) is 0 where token i sees entry `origin` + j, and elsewhere the dtype's
            minimum.
        origin: (1,) integer; every token sees all entries before it.
        end: (1,) integer, at most `origin` + m.
        positions: (n,), used with a window. No token is before the first.
        scale: factor of the scores.
        window: of the entries before `origin`, a token sees those less than `window` before its position; 0 for all.
    """
    _, heads, n, width = query.shape
    groups, value_width = value.shape[1], value.shape[3]
    share = heads // groups
    rows = share * n
    block_rows = min(BLOCK_ROWS, max(16, triton.next_power_of_2(rows)))
    tiles = triton.cdiv(rows, block_rows)
    splits = _splits(tiles * groups, query.device)
    block_value = max(16, triton.next_power_of_2(value_width))
    total, top = torch.empty(2, groups, splits, rows, dtype=torch.float32, device=query.device)
    out = torch.empty(groups, splits, rows, value_width, dtype=torch.float32, device=query.device)
    result = torch.empty(1, n, heads, value_width, dtype=query.dtype, device=query.device)
    _attend_split[tiles, groups, splits](
        query, key, value, among, origin, end, positions, total, top, out,
        scale * LOG2_E, n, query.stride(1), query.stride(2), key.stride(1), key.stride(2),
        value.stride(1), value.stride(2), among.stride(0),
        REP=share, D=width, DV=value_width, WINDOW=window, LEAST=LEAST_KEYS, BM=block_rows,
        BN=BLOCK_KEYS if width <= 128 else BLOCK_KEYS // 2, BD=max(16, triton.next_power_of_2(width)), BV=block_value,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32", num_warps=4,
        num_stages=3 if block_rows < BLOCK_ROWS else 2,  # two blocks fit on a processor then
    )  # fmt: skip
    _join_splits[rows, groups](
        total, top, out, result, n, splits, REP=share, DV=value_width, BS=MOST_SPLITS, BV=block_value, num_warps=4
    )
    return result


def _splits(blocks: int, device: torch.device) -> int:
    """Returns into how many splits the keys are divided, a power of two that fills the device. `blocks`: those of one
    split."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
    wanted = max(1, PER_PROCESSOR * processors // blocks)
    return min(MOST_SPLITS, 1 << (wanted.bit_length() - 1))
