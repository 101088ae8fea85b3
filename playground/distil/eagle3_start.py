"""An EAGLE-3 head that begins as an MTP layer.

An MTP layer's residual is x = P [norm(e); norm(h)], which attention and a feed-forward network add to. An EAGLE-3
head's is its own normed state, and only attention sees the embedding. So half of its heads attend to the own place and
bring x in for that state; the other half are the MTP layer's. The residual is kept as w x, with w the weight of the MTP
layer's last norm: normed, it is what the MTP layer's output is when normed. What is left out is that a norm divides by
another number at each place: the mean is taken. The target's last state is made from those that the head reads by
ridge regression; the head norms it, so only its direction counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from playground.distil.answers import Answer
from playground.distil.blocks_start import RIDGE, constant, normed, turned
from playground.models.networks.eagle3 import Eagle3Head

SHARP = 10.0  # of queries and keys that look at the own place: others weigh under 1 / 1,000 of it
LAYER, ATTENTION = "base.layers.0.", "base.layers.0.self_attn."


@torch.no_grad()
def start_from_mtp(head: Eagle3Head, mtp: Mapping[str, Tensor], answers: Sequence[Answer]) -> None:
    """Args:
    answers: with the last state after those that the head reads.
    """
    layers: Any = head.base.layers
    layer, attention, width = layers[0], layers[0].self_attn, head.fc.out_features
    half = attention.q_proj.out_features // 2
    end, project = mtp["base.norm.weight"], mtp["proj.weight"]
    of_embedding, of_state = mtp["norm_embedding.weight"], mtp["norm_hidden.weight"]
    ids = torch.cat([answer.ids[1:] for answer in answers]).long().to(end.device)
    features = torch.cat([answer.features[:-1] for answer in answers]).to(end.device).float()
    last = features[:, -1]
    embedded = head._shared.weight[ids].float()
    inputs = torch.cat([normed(embedded) * of_embedding, normed(last) * of_state], dim=-1)
    residual = inputs @ project.T

    reads = (features[:, :-1] / _size(features[:, -2])[:, None, None]).flatten(1)
    square = reads.T @ reads
    square += RIDGE * square.diag().diag()
    head.fc.weight.copy_(torch.linalg.solve(square, reads.T @ last).T)
    layer.input_layernorm.weight.copy_(of_embedding)
    layer.hidden_norm.weight.copy_(of_state)

    direction = constant(inputs)
    for part, vector in zip(
        (attention.q_proj, attention.k_proj), turned(attention.config, attention.head_dim, 0), strict=True
    ):
        part.weight[:half] = SHARP * torch.outer(vector.repeat(half // attention.head_dim), direction)
    attention.v_proj.weight[:half] = end[:, None] * project
    attention.v_proj.weight[:half, width:] -= torch.eye(width)
    seen = (mtp[f"{LAYER}input_layernorm.weight"] / _size(residual).mean())[:, None] * project
    for name in ("q_proj", "k_proj", "v_proj"):
        rows = (mtp[f"{ATTENTION}{name}.weight"] @ seen).unflatten(0, (-1, attention.head_dim))
        each = half // attention.head_dim // len(rows)  # query heads of a key head
        attention.get_submodule(name).weight[half:] = rows.repeat_interleave(each, dim=0).flatten(0, 1)
    attention.o_proj.weight.copy_(torch.cat([torch.eye(width), end[:, None] * mtp[f"{ATTENTION}o_proj.weight"]], dim=1))

    after = mtp[f"{LAYER}post_attention_layernorm.weight"] / end
    layer.post_attention_layernorm.weight.copy_(after * (_size(end * residual) / _size(residual)).mean())
    for name in ("gate_proj", "up_proj"):
        layer.mlp.get_submodule(name).weight.copy_(mtp[f"{LAYER}mlp.{name}.weight"])
    layer.mlp.down_proj.weight.copy_(end[:, None] * mtp[f"{LAYER}mlp.down_proj.weight"])
    head.norm.weight.fill_(float(_size(last).mean()))


def _size(rows: Tensor) -> Tensor:
    """[m], the root mean square of each."""
    return rows.pow(2).mean(-1).sqrt()
