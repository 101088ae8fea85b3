"""A block drafter whose first slot begins as an MTP layer without its attention to other places.

An MTP layer reads x = P_e norm(e) + P_h norm(h): the last token's embedding and the state before it. Two layers of a
block drafter make the same: in the first, the slot that drafts first looks at the last token's slot and takes P_e
norm(e); in the second it looks one place further back, at the target's hidden states, and takes P_h norm(h). The MTP
layer's feed-forward network and norm follow. What looks so many places back is a query and a key that are the same
everywhere but for their rotary positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from playground.distil.answers import Answer
from playground.distil.blocks import BlockDrafter

FREQUENCIES = 8  # the highest of the rotary positions, by which places are told apart
SHARP = 2.8  # weights of the norms of queries and keys


@torch.no_grad()
def start_from_mtp(drafter: BlockDrafter, mtp: Mapping[str, Tensor], answers: Sequence[Answer]) -> None:
    """Args:
    answers: with the last hidden state after those that the drafter reads.
    """
    back = 0 if drafter.kind == "dspark" else 1  # places from the slot that drafts first to the last token's
    base = drafter.base
    first, second = base.layers
    width, end = base.config.hidden_size, mtp["base.norm.weight"].float()
    features = torch.cat([answer.features for answer in answers]).to(end.device).float()
    last = features[:, -1] / end
    base.encoder.fc.weight.copy_(torch.linalg.lstsq(features[:, :-1].flatten(1), last).solution.T)
    states = _normed(last)
    scale = (end * states).pow(2).mean(-1).sqrt().mean()

    project = mtp["proj.weight"].float()
    takes = project[:, :width] * mtp["norm_embedding.weight"].float()
    embedded = _normed(drafter.embedding)
    read = embedded @ takes.T  # what the first layer leaves in the slot that drafts first, of each token
    if back == 0:
        takes = takes - torch.eye(width) * drafter.embedding.pow(2).mean(-1).sqrt().mean()
    else:
        read = read + drafter.embedding[drafter.mask_id]
    _look_back(first.self_attn, back, embedded, embedded)
    first.self_attn.v_proj.weight.copy_(takes)
    first.mlp.down_proj.weight.zero_()
    _look_back(second.self_attn, back + 1, _normed(read), states)
    second.self_attn.v_proj.weight.copy_(project[:, width:] * (mtp["norm_hidden.weight"].float() * end / scale))
    for part in (
        "post_attention_layernorm.weight",
        "mlp.gate_proj.weight",
        "mlp.up_proj.weight",
        "mlp.down_proj.weight",
    ):
        second.get_parameter(part).copy_(mtp[f"base.layers.0.{part}"])
    base.norm.weight.copy_(end)


def _look_back(attention: Any, places: int, queries: Tensor, keys: Tensor) -> None:
    """Every head attends to what lies so many places back, whatever it is.

    Args:
        queries, keys: [m, width], such as come in; a linear map of them is constant enough to be normed to 1.
    """
    size, heads = attention.head_dim, attention.num_attention_heads
    used = min(FREQUENCIES, size // 2)
    theta = attention.config.rope_parameters["rope_theta"] ** (-2 * torch.arange(used) / size)
    query, key = torch.zeros(size), torch.zeros(size)
    query[:used], query[size // 2 : size // 2 + used] = (-places * theta).cos(), (-places * theta).sin()
    key[:used] = 1
    attention.q_proj.weight.copy_(torch.outer(query.repeat(heads), _constant(queries)))
    attention.k_proj.weight.copy_(torch.outer(key.repeat(heads), _constant(keys)))
    attention.q_norm.weight.fill_(SHARP)
    attention.k_norm.weight.fill_(SHARP)
    attention.o_proj.weight.copy_(torch.eye(attention.o_proj.out_features))


def _constant(rows: Tensor) -> Tensor:
    """[width], whose product with each row is about 1."""
    return torch.linalg.lstsq(rows, torch.ones(len(rows), 1)).solution[:, 0]


def _normed(rows: Tensor) -> Tensor:
    return rows * rows.pow(2).mean(-1, keepdim=True).add(1e-5).rsqrt()
