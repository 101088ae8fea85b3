"""Linear layers in the engine's layouts, which torch's networks and the engine's passes both use.

A matrix is stored in blocks, as GGUF has them (`blocks`), or in 16 bits, which keep what was loaded: nothing is
quantised that was not. Activations of blocks become integers of 16 bits, 32 to a scale, and
the sums of their products with the weights are exact. So the output for a token does not depend on the other tokens.
"""

from __future__ import annotations

from collections import Counter
from ctypes import byref

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from playground.models.cpu.native.blocks import BLOCK, COLUMNS, GROUP, KINDS, Parts, by_groups, pack, parts_of
from playground.models.cpu.native.library import BFLOAT16, EIGHT, FLOAT16, Matrix, Threads, engine, wide

ROWS = 256  # tokens that a layer multiplies at once, so that the inputs stay in the processor's cache


class NativeLinear(nn.Module):
    """A linear layer that the engine computes: float32 in, float32 out.

    Attributes:
        groups: (groups of 16 rows, bytes), uint8, in the layout of engine.h.

    Args:
        kind: one of the kinds of `library`.
        bias: (rows,) or None.
        matrix: the weights to serve as `weight`, (rows, columns), which drafters read from heads.
        halves: rows are stored as gate_up's are, 32 of the first half and 32 of the second in turn.
    """

    def __init__(
        self,
        kind: int,
        groups: Tensor,
        rows: int,
        columns: int,
        bias: Tensor | None = None,
        matrix: Tensor | None = None,
        halves: bool = False,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = columns, rows
        self.kind, self.halves = kind, halves
        # Not buffers: these would be converted with the model.
        self.groups = groups.contiguous()
        self._bias = None if bias is None else bias.detach().float().contiguous()
        self._matrix = matrix

    @property
    def weight(self) -> Tensor:
        """The matrix, (rows, columns), of a head or of 16 bits: the copy in its original format if there is one, else
        unpacked at every call."""
        if self._matrix is not None:
            return self._matrix
        dtype, adjacent = {BFLOAT16: (torch.bfloat16, 2), FLOAT16: (torch.half, 1)}[self.kind]
        rows = self.groups.view(dtype).unflatten(1, (-1, GROUP, adjacent)).transpose(1, 2).flatten(2).flatten(0, 1)
        return rows[: self.out_features, : self.in_features].float()

    @property
    def matrix(self) -> Matrix:
        """The layer as the engine's struct, which is valid as long as the layer exists."""
        bias = None if self._bias is None else self._bias.data_ptr()
        return Matrix(self.groups.data_ptr(), bias, self.kind, self.out_features, self.in_features)

    @property
    def in_blocks(self) -> bool:
        return self.kind < BFLOAT16

    def take(self, rows: Tensor, to: Matrix) -> None:
        """Copies rows, (rows,) int32, to the last rows of another matrix of the same format."""
        found = engine()
        assert found is not None
        found.functions.take_rows(byref(self.matrix), rows.data_ptr(), len(rows), byref(to))

    def in_turn(self) -> NativeLinear | None:
        """Returns the layer with 32 rows of its first half and 32 of its second in turn, which is the order of gate and
        up projection in a pass; None if the halves are no multiple of 32."""
        half = self.out_features // 2
        if half % BLOCK or self._bias is not None:
            return None
        groups = self.groups.unflatten(0, (2, half // BLOCK, BLOCK // GROUP)).transpose(0, 1).flatten(0, 2)
        return NativeLinear(self.kind, groups, self.out_features, self.in_features, halves=True)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (…, in) to (…, out), float32."""
        rows = x.detach().reshape(-1, self.in_features).float().contiguous()
        out = rows.new_empty(len(rows), self.out_features)
        found = engine()
        assert found is not None
        scratch = torch.empty(
            found.functions.product_scratch(self.in_features, min(len(rows), ROWS)), dtype=torch.uint8
        )
        for start in range(0, len(rows), ROWS):
            some, to = rows[start : start + ROWS], out[start:]
            numbers = some.data_ptr(), len(some), to.data_ptr(), Threads.number, scratch.data_ptr()
            found.functions.product(byref(self.matrix), wide(), *numbers)
        if self.halves:
            out = out.unflatten(1, (-1, 2, BLOCK)).transpose(1, 2).flatten(1)
        return out.view(*x.shape[:-1], self.out_features)


def main_kind(network: nn.Module) -> int:
    """Returns the kind that most of a network's weights are stored in; -1 if the engine computes none of its layers."""
    weights: Counter[int] = Counter()
    for module in network.modules():
        if isinstance(module, NativeLinear):
            weights[module.kind] += module.in_features * module.out_features
    return max(weights, key=weights.__getitem__, default=-1)


def of_blocks(blocks: Tensor, bias: Tensor | None, matrix: Tensor | None = None) -> NativeLinear:
    """Packs GGUF's blocks, (rows, units, bytes), uint8."""
    kind, columns = KINDS[blocks.shape[2]], COLUMNS[blocks.shape[2]] * blocks.shape[1]
    groups = torch.cat(
        [pack(kind, parts_of(some)) for some in blocks.split(CHUNK)]
    )  # packing takes several times the memory
    return NativeLinear(kind, groups, len(blocks), columns, bias, matrix)


def of_eight_bits(q: Tensor, scale: Tensor, bias: Tensor | None = None, matrix: Tensor | None = None) -> NativeLinear:
    """Packs integers, (rows, columns / 32, 32), int8, with scales, (rows, columns / 32), that float16 holds exactly."""
    unsigned = q.view(torch.uint8) ^ 128
    groups = pack(EIGHT, Parts(scale.half()[..., None], unsigned[..., :0], unsigned))
    return NativeLinear(EIGHT, groups, len(q), BLOCK * q.shape[1], bias, matrix)


def of_linear(linear: nn.Linear, matrix: Tensor | None = None, head: bool = False) -> NativeLinear:
    """Packs a layer in 16 bits: in bfloat16 if its weights are stored in it, else in float16. A head whose weights were
    dequantised from Q8_0 is packed in those blocks again. `matrix`: a copy of the weights, to serve as `weight`."""
    weight, bias = linear.weight.detach(), linear.bias
    rows, columns = weight.shape
    if head and columns % BLOCK == 0 and (found := blocks_of(weight)):
        return of_eight_bits(*found, bias, matrix)
    kind, adjacent = FLOAT16, 1
    if weight.dtype == torch.bfloat16:
        kind, adjacent, weight = BFLOAT16, 2, F.pad(weight, (0, -columns % BLOCK))
    stored = by_groups(weight if adjacent == 2 else weight.half()).unflatten(2, (-1, adjacent))
    groups = stored.transpose(1, 2).contiguous().view(torch.uint8)
    return NativeLinear(kind, groups.flatten(1), rows, columns, bias, matrix)


def of_drafter(linear: nn.Linear) -> NativeLinear:
    """Packs a layer of a network that drafts in blocks of eight bits, each scaled by its largest weight. They cost
    fewer bytes than 16 bits; the target verifies what the network drafts. In four bits fewer drafts are accepted."""
    weight, bias = linear.weight.detach().float(), linear.bias
    if weight.shape[1] % BLOCK:
        return of_linear(linear)
    blocks = weight.unflatten(1, (-1, BLOCK))
    scale = (blocks.abs().amax(dim=2) / MOST).half()
    q = (blocks / scale.float()[:, :, None]).nan_to_num(0, 0, 0).round().clamp(-MOST, MOST)
    return of_eight_bits(q.to(torch.int8), scale, bias)


def of_draft_head(linear: nn.Linear) -> NativeLinear:
    """Packs a head over a draft vocabulary in blocks of four bits, in whatever format it was loaded: it is the larger
    half of what a draft reads, and loses less than the layers would. Each block has the range of values that gives the
    least squared error."""
    weight = linear.weight.detach()
    if weight.shape[1] % BLOCK:
        return of_linear(linear)
    return of_blocks(torch.cat([_four_bits(rows.float()) for rows in weight.split(CHUNK)]), None)


def _four_bits(weight: Tensor) -> Tensor:
    """Returns blocks of Q4_1, (rows, columns / 32, 20), uint8, of a matrix, (rows, columns)."""
    blocks = weight.unflatten(1, (-1, BLOCK))
    least, most = blocks.aminmax(dim=2, keepdim=True)
    chosen: list[Tensor] = []  # scale, minimum, integers and squared error
    for share in RANGES:
        cut = (1 - share) / 2 * (most - least)
        low, scale = (least + cut).half(), ((most - least - 2 * cut) / 15).half()
        q = ((blocks - low.float()) / scale.float()).nan_to_num(0, 0, 0).round_().clamp_(0, 15)
        error = (q * scale.float() + low.float() - blocks).square_().sum(dim=2, keepdim=True)
        tried = [scale, low, q, error]
        better = error < chosen[-1] if chosen else None
        chosen = tried if better is None else [torch.where(better, *pair) for pair in zip(tried, chosen, strict=True)]
    scale, low, q, _ = chosen
    nibbles = q.to(torch.uint8)
    numbers = torch.cat([scale, low], dim=2).view(torch.uint8)
    return torch.cat([numbers, nibbles[..., : BLOCK // 2] | nibbles[..., BLOCK // 2 :] << 4], dim=2)


RANGES = (1.0, 0.92, 0.84)  # parts of a block's range of values; what lies outside is cut
MOST, NEAR, CHUNK = 127, (0, -1, 1, -2, 2, -3, 3, -4, 4, -5, 5, -6, 6), 4096


def blocks_of(weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """Returns integers (rows, columns / 32, 32), int8, and scales (rows, columns / 32), float16, whose products are the
    weights to the last bit of their format; None if there are none. So a matrix that was dequantised from Q8_0, whose
    largest integer in a block is 127, is found again."""
    qs, scales = [], []
    for some in weight.split(CHUNK):
        blocks = some.unflatten(1, (-1, BLOCK)).flatten(0, 1)
        whole = blocks.float()
        guess = (whole.abs().amax(dim=1) / MOST).half()
        q, scale = torch.zeros(blocks.shape, dtype=torch.int8), torch.zeros_like(guess)
        left = guess.nonzero()[:, 0]  # a block of zeros is done
        for step in NEAR:  # bfloat16 has rounded what the scale is guessed from
            tried = (guess[left].view(torch.int16) + step).view(torch.half)
            integers = (whole[left] / tried.float()[:, None]).round().clamp(-128, MOST)
            right = ((integers * tried.float()[:, None]).to(weight.dtype) == blocks[left]).all(dim=1)
            q[left[right]], scale[left[right]] = integers[right].to(torch.int8), tried[right]
            left = left[~right]
            if step == 0 and len(left) > len(guess) * 0.98:
                return None
        if len(left) or not scale.isfinite().all():
            return None
        qs.append(q.view(len(some), -1, BLOCK))
        scales.append(scale.view(len(some), -1))
    return torch.cat(qs), torch.cat(scales)
