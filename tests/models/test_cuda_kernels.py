"""The Triton kernels against torch, run by Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton")

from playground.models.cuda import attention, layer
from playground.models.fused import rotate, signed

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NEVER = float("nan")  # in entries that nobody may read


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def attended(
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
    """`split_attention` in torch."""
    start, stop, n = int(origin), int(end), query.shape[2]
    key, value = (x[:, :, :stop].repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    sees = torch.ones(n, stop, dtype=torch.bool, device=query.device)
    if window:
        sees &= positions[:, None] - torch.arange(stop, device=query.device) < window
    sees[:, start:] = among[:, : stop - start] > -1
    return F.scaled_dot_product_attention(query, key, value, attn_mask=sees, scale=scale).transpose(1, 2)


def tree_of(parents: list[int], start: int) -> tuple[Tensor, Tensor]:
    """Returns a mask among the tokens of a tree, and their positions."""
    n = len(parents)
    sees, depths = torch.eye(n, dtype=torch.bool), [0] * n
    for i, parent in enumerate(parents):
        if parent >= 0:
            sees[i] |= sees[parent]
            depths[i] = depths[parent] + 1
    return torch.zeros(n, n).masked_fill(~sees, torch.finfo(torch.float32).min), torch.tensor(depths) + start


CHAIN, TREE = [-1, 0, 1, 2], [-1, 0, 0, 1, 1, 3, 2]


@pytest.mark.parametrize(
    ("parents", "start", "heads", "groups", "width", "value_width", "window"),
    [
        ([-1], 0, 2, 1, 16, 16, 0),  # the first token of all
        ([-1], 300, 4, 2, 16, 16, 0),  # several splits
        (CHAIN, 509, 4, 1, 24, 16, 0),  # widths that are no power of two; a span over the edge of a block
        (TREE, 3, 4, 2, 16, 16, 0),
        (TREE, 300, 2, 2, 16, 16, 100),  # a window that leaves whole blocks out
        (CHAIN, 40, 2, 1, 16, 16, 2),  # a window shorter than the pass
        ([-1, *range(39)], 70, 2, 1, 16, 16, 0),  # several tiles of rows
    ],
)
def test_split_attention_is_attention(
    parents: list[int], start: int, heads: int, groups: int, width: int, value_width: int, window: int
) -> None:
    n, entries = len(parents), 640
    query = torch.randn(1, heads, n, width)
    key, value = torch.randn(1, groups, entries, width), torch.randn(1, groups, entries, value_width)
    key[:, :, start + n :] = value[:, :, start + n :] = NEVER
    among, positions = tree_of(parents, start)
    at = torch.tensor([start]), torch.tensor([start + n])
    args = [x.to(DEVICE) for x in (query, key, value, among, *at, positions)]
    found = attention.split_attention(*args, width**-0.5, window)
    torch.testing.assert_close(found, attended(*args, width**-0.5, window), rtol=1e-4, atol=1e-5)


def test_a_cache_longer_than_its_text_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The length is read from the device: entries after it are never touched, wherever the splits are."""
    query, key = torch.randn(1, 2, 1, 16, device=DEVICE), torch.full((1, 1, 4096, 16), NEVER, device=DEVICE)
    key[:, :, :5] = 1.0
    at = torch.tensor([4], device=DEVICE), torch.tensor([5], device=DEVICE)
    among = torch.zeros(1, 1, device=DEVICE)
    found = attention.split_attention(query, key, key, among, *at, at[0], 1.0)
    torch.testing.assert_close(found, torch.ones_like(found))


def test_add_norm() -> None:
    x, delta, weight = torch.randn(2, 3, 96), torch.randn(2, 3, 96), torch.randn(96)
    total, normed = layer.add_norm(x.to(DEVICE), delta.to(DEVICE), weight.to(DEVICE), 1e-5)
    torch.testing.assert_close(total.cpu(), x + delta)
    torch.testing.assert_close(normed.cpu(), F.rms_norm(x + delta, (96,), weight, 1e-5), rtol=1e-4, atol=1e-5)


def test_silu_gate() -> None:
    x = torch.randn(3, 2400)
    gate, up = x.chunk(2, dim=-1)
    torch.testing.assert_close(layer.silu_gate(x.to(DEVICE)).cpu(), F.silu(gate) * up, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norms", [True, False])
def test_rotate_and_store(norms: bool) -> None:
    n, heads, groups, width = 5, 4, 2, 16
    states, slots = torch.randn(n, heads + 2 * groups, width), torch.tensor([7, 8, 9, 30, 11])
    cos, sin = torch.randn(2, n, width)
    weight = torch.randn(heads + groups, width) if norms else None
    key, value = torch.zeros(2, 1, groups, 40, width, device=DEVICE)
    on = [None if x is None else x.to(DEVICE) for x in (states, cos, sin, weight)]
    query = layer.rotate_and_store(*on, 1e-6, slots.to(DEVICE), key, value)
    turned = states[:, : heads + groups]
    if norms:
        turned = F.rms_norm(turned, (width,), None, 1e-6) * weight
    turned = rotate(turned[None], *signed(cos[None], sin[None]))[0].transpose(0, 1)
    kept = torch.zeros(2, groups, 40, width)
    kept[0, :, slots], kept[1, :, slots] = turned[heads:], states[:, heads + groups :].transpose(0, 1)
    torch.testing.assert_close(query[0].cpu(), turned[:heads], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat([key, value]).cpu(), kept, rtol=1e-4, atol=1e-5)
