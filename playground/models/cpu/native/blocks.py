"""Matrices in blocks of four, five, six or eight bits: from GGUF's layouts to those of the engine (engine.h).

Integers and scales are moved, not rounded, so a matrix stands for the same numbers. A weight of the engine takes 5 bits
in Q4_0 and Q4_1, 6 in Q5_0 and Q5_1, 8.5 in Q8_0, 4.63 in Q4_K, 5.63 in Q5_K and 6.63 in Q6_K.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from playground.models.cpu.native.library import EIGHT, FIVE, FIVE_K, FOUR, FOUR_K, SIX_K

GROUP, BLOCK = 16, 32
# GGUF's types by the bytes of a block, which differ: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 with 32 columns; with 256 Q4_K,
# Q5_K and Q6_K.
KINDS = {18: FOUR, 20: FOUR, 22: FIVE, 24: FIVE, 34: EIGHT, 144: FOUR_K, 176: FIVE_K, 210: SIX_K}
COLUMNS = {18: 32, 20: 32, 22: 32, 24: 32, 34: 32, 144: 256, 176: 256, 210: 256}
BITS = {FOUR: 4, FIVE: 5, EIGHT: 8, FOUR_K: 4, FIVE_K: 5, SIX_K: 6}


class Parts(NamedTuple):
    """The numbers of a matrix. What a weight is, engine.h says.

    Attributes:
        numbers: (rows, units of 32 or 256 columns, …), float16: a scale, and a minimum where a kind has one.
        scales: (rows, units, …), of one byte each: those of the blocks in a unit of 256 columns, then their minima.
        q: (rows, columns / 32, 32), uint8.
    """

    numbers: Tensor
    scales: Tensor
    q: Tensor


def parts_of(blocks: Tensor) -> Parts:
    """Reads GGUF's blocks, (rows, units, bytes), uint8."""
    size = blocks.shape[2]
    kind, none = KINDS[size], blocks[..., :0]
    if kind == EIGHT:
        return Parts(_halves(blocks[..., :2]), none, blocks[..., 2:] ^ 128)
    if kind == SIX_K:
        low, high, scales, scale = blocks.split([128, 64, 16, 2], dim=2)
        high = torch.stack([high.unflatten(2, (2, 32)) >> shift & 3 for shift in (0, 2, 4, 6)], dim=3)
        q = _nibbles(low.unflatten(2, (2, 64))).unflatten(3, (4, 32)) | high << 4
        return Parts(_halves(torch.cat([scale, torch.zeros_like(scale)], dim=2)), scales, q.flatten(1, 3))
    if kind in (FOUR_K, FIVE_K):
        numbers, packed, bits, low = blocks.split([4, 12, size - 144, 128], dim=2)
        first, second, both = packed.split(4, dim=2)
        scales = [first & 63, both & 15 | first >> 2 & 48, second & 63, both >> 4 | second >> 2 & 48]
        q = _nibbles(low.unflatten(2, (4, 32))).unflatten(3, (2, 32)).flatten(2, 3)
        if kind == FIVE_K:
            q |= torch.stack([(bits >> i & 1) << 4 for i in range(8)], dim=2)
        return Parts(_halves(numbers) * torch.tensor([1, -1]).half(), torch.cat(scales, dim=2), q.flatten(1, 2))
    numbers, bits, low = blocks.split([size - (16 if kind == FOUR else 20), 0 if kind == FOUR else 4, 16], dim=2)
    halves, q = _halves(numbers), _nibbles(low)
    if kind == FIVE:
        q |= (bits[..., None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(2) << 4
    if halves.shape[2] == 1:  # q counts from the middle of its range; the product with a power of two is exact
        halves = torch.cat([halves, halves * -(2.0 ** (BITS[kind] - 1))], dim=2)
    return Parts(halves, none, q)


def pack(kind: int, parts: Parts) -> Tensor:
    """Returns a matrix in the engine's layout, (groups of 16 rows, bytes), uint8."""
    numbers, scales, q = map(by_groups, parts)
    units = numbers.shape[2]
    lines = q.unflatten(3, (8, 4)).permute(0, 2, 3, 1, 4)  # (groups, blocks, 8, 16 rows, 4 columns)
    if kind != EIGHT:
        high, low = lines >> 4, lines & 15
        lines = low[:, :, :4] | low[:, :, 4:] << 4
        if bits := BITS[kind] - 4:
            shifts = bits * torch.arange(8 // bits, dtype=torch.uint8)[:, None, None]
            high = (high.unflatten(2, (bits, -1)) << shifts).sum(dim=3, dtype=torch.uint8)
            lines = torch.cat([lines, high], dim=2)
    first = (each.transpose(1, 2).transpose(2, 3).contiguous().view(torch.uint8) for each in (numbers, scales))
    return torch.cat([*(each.flatten(2) for each in first), lines.unflatten(1, (units, -1)).flatten(2)], dim=2).flatten(
        1
    )


def by_groups(rows: Tensor) -> Tensor:
    """Returns (groups, 16, …) of (rows, …), padded with zeros."""
    short = -len(rows) % GROUP
    padded = torch.cat([rows, rows.new_zeros(short, *rows.shape[1:])]) if short else rows
    return padded.unflatten(0, (-1, GROUP))


def _halves(bytes_: Tensor) -> Tensor:
    return bytes_.contiguous().view(torch.half)


def _nibbles(bytes_: Tensor) -> Tensor:
    """Returns the lower halves of some bytes, then the upper ones, along the last dimension."""
    return torch.cat([bytes_ & 15, bytes_ >> 4], dim=-1)
