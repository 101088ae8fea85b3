"""Drafters that begin as an MTP layer, before they have learned anything.

In a block drafter the first slot begins as an MTP layer without its attention to other places.

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
from playground.models.networks.eagle3 import Eagle3Head

FREQUENCIES = 16  # the highest of the rotary positions, by which places are told apart
FALL = 0.7  # weight of a frequency, relative to the one before it; other places are then at most 0.8 as much alike
RIDGE = 1e-3  # of the mean square of a value
SHARP = 2.8  # weights of the norms of queries and keys


@torch.no_grad()
def start_blocks_from_mtp(drafter: BlockDrafter, mtp: Mapping[str, Tensor], answers: Sequence[Answer]) -> None:
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
    states = normed(last)
    scale = (end * states).pow(2).mean(-1).sqrt().mean()

    project = mtp["proj.weight"].float()
    takes = project[:, :width] * mtp["norm_embedding.weight"].float()
    embedded = normed(drafter.embedding)
    read = embedded @ takes.T  # what the first layer leaves in the slot that drafts first, of each token
    if back == 0:
        takes = takes - torch.eye(width) * drafter.embedding.pow(2).mean(-1).sqrt().mean()
    else:
        read = read + drafter.embedding[drafter.mask_id]
    _look_back(first.self_attn, back, embedded, embedded)
    first.self_attn.v_proj.weight.copy_(takes)
    first.mlp.down_proj.weight.zero_()
    _look_back(second.self_attn, back + 1, normed(read), states)
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
    heads = attention.num_attention_heads
    query, key = turned(attention.config, attention.head_dim, places)
    attention.q_proj.weight.copy_(torch.outer(query.repeat(heads), constant(queries)))
    attention.k_proj.weight.copy_(torch.outer(key.repeat(heads), constant(keys)))
    attention.q_norm.weight.fill_(SHARP)
    attention.k_norm.weight.fill_(SHARP)
    attention.o_proj.weight.copy_(torch.eye(attention.o_proj.out_features))


def turned(config: Any, size: int, places: int) -> tuple[Tensor, Tensor]:
    """A head's query and key, [size] both, that are most alike where the key lies so many places back.
    `config`: of the layer, with rotary positions."""
    used = min(FREQUENCIES, size // 2)
    theta = config.rope_parameters["rope_theta"] ** (-2 * torch.arange(used) / size)
    query, key = torch.zeros(size), torch.zeros(size)
    weights = FALL ** torch.arange(used)
    query[:used] = weights * (-places * theta).cos()
    query[size // 2 : size // 2 + used] = weights * (-places * theta).sin()
    key[:used] = 1
    return query, key


def constant(rows: Tensor) -> Tensor:
    """[width], whose product with each row is about 1, also with rows like these (ridge regression)."""
    square = rows.T @ rows / len(rows) + RIDGE * torch.eye(rows.shape[1], device=rows.device)
    return torch.linalg.solve(square, rows.mean(0))


def normed(rows: Tensor) -> Tensor:
    return rows * rows.pow(2).mean(-1, keepdim=True).add(1e-5).rsqrt()


# An EAGLE-3 head that begins as an MTP layer.
# An MTP layer's residual is x = P [norm(e); norm(h)], which attention and a feed-forward network add to. An EAGLE-3
# head's is its own normed state, and only attention sees the embedding. So half of its heads attend to the own place
# and bring x in for that state; the other half are the MTP layer's. The residual is kept as w x, with w the weight of
# the MTP layer's last norm: normed, it is what the MTP layer's output is when normed. What is left out is that a norm
# divides by another number at each place: the mean is taken. The target's last state is made from those that the head
# reads by ridge regression; the head norms it, so only its direction counts.


OWN_PLACE = 10.0  # of queries and keys that look at the own place: others weigh under 1 / 1,000 of it
LAYER, ATTENTION = "base.layers.0.", "base.layers.0.self_attn."


@torch.no_grad()
def start_head_from_mtp(head: Eagle3Head, mtp: Mapping[str, Tensor], answers: Sequence[Answer]) -> None:
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
        part.weight[:half] = OWN_PLACE * torch.outer(vector.repeat(half // attention.head_dim), direction)
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
