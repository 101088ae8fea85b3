"""Initialises block drafters and EAGLE-3 heads from a trained MTP layer, before they have learned anything.

An MTP layer reads x = P_e norm(e) + P_h norm(h): the last token's embedding and the state before it.

In a block drafter the first slot starts as an MTP layer without its attention to other places. Two layers compute the
same x: in the first, the slot that drafts first attends to the last token's slot and takes P_e norm(e); in the second
it attends one place further back, to the target's hidden states, and takes P_h norm(h). The MTP layer's feed-forward
network and norm follow. A query and a key that are constant except for their rotary positions attend a fixed number of
places back.

An EAGLE-3 head's residual is its own normed state, and only attention sees the embedding. So half of its heads attend
to their own place and replace that state by x; the other half are the MTP layer's. The residual is stored as w x, with
w the weight of the MTP layer's last norm: its norm is then that of the MTP layer's output. One thing is approximated: a
norm divides by another number at each place, and here by the mean. The target's last state is computed from those that
the head reads by ridge regression; the head norms it, so only its direction counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from playground.models.networks.eagle3 import Eagle3Head
from playground_distil.answers import Answer
from playground_distil.published import BlockDrafter

FREQUENCIES = 16  # the number of rotary frequencies, from the highest on, that distinguish places
FALL = 0.7  # weight of a frequency, relative to the one before it; other places are then at most 0.8 times as similar
RIDGE = 1e-3  # as a share of the mean square of a value
SHARP = 2.8  # weights of the norms of queries and keys


@torch.no_grad()
def start_blocks_from_mtp(drafter: BlockDrafter, mtp: Mapping[str, Tensor], answers: Sequence[Answer]) -> None:
    """Initialises a block drafter from the tensors of an MTP layer.

    Args:
        answers: answers whose features are the states that the drafter reads, then the last hidden state.
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
    read = embedded @ takes.T  # for each token, the first layer's output in the slot that drafts first
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
    """Makes every head attend `places` back, independently of the content.

    Args:
        queries, keys: [m, width], typical inputs; a linear map of them is constant enough to be normed to 1.
    """
    heads = attention.num_attention_heads
    query, key = turned(attention.config, attention.head_dim, places)
    attention.q_proj.weight.copy_(torch.outer(query.repeat(heads), constant(queries)))
    attention.k_proj.weight.copy_(torch.outer(key.repeat(heads), constant(keys)))
    attention.q_norm.weight.fill_(SHARP)
    attention.k_norm.weight.fill_(SHARP)
    attention.o_proj.weight.copy_(torch.eye(attention.o_proj.out_features))


def turned(config: Any, size: int, places: int) -> tuple[Tensor, Tensor]:
    """Returns a head's query and key, [size] both, that are most similar where the key is `places` back. `config`: the
    layer's, with rotary positions."""
    used = min(FREQUENCIES, size // 2)
    theta = config.rope_parameters["rope_theta"] ** (-2 * torch.arange(used) / size)
    query, key = torch.zeros(size), torch.zeros(size)
    weights = FALL ** torch.arange(used)
    query[:used] = weights * (-places * theta).cos()
    query[size // 2 : size // 2 + used] = weights * (-places * theta).sin()
    key[:used] = 1
    return query, key


def constant(rows: Tensor) -> Tensor:
    """Returns a vector, [width], whose product with each of the rows, [m, width], and with similar ones, is about 1
    (ridge regression)."""
    square = rows.T @ rows / len(rows) + RIDGE * torch.eye(rows.shape[1], device=rows.device)
    return torch.linalg.solve(square, rows.mean(0))


def normed(rows: Tensor) -> Tensor:
    """Divides each row, [m, width], by its root mean square."""
    return rows * rows.pow(2).mean(-1, keepdim=True).add(1e-5).rsqrt()


OWN_PLACE = 10.0  # scale of queries and keys for a head's own place: others weigh under 1 / 1,000 of it
LAYER, ATTENTION = "base.layers.0.", "base.layers.0.self_attn."


@torch.no_grad()
def start_head_from_mtp(head: Eagle3Head, mtp: Mapping[str, Tensor], answers: Sequence[Answer]) -> None:
    """Initialises an EAGLE-3 head from the tensors of an MTP layer.

    Args:
        answers: answers whose features are the states that the head reads, then the last hidden state.
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
    """Returns the root mean square of each row, [m]."""
    return rows.pow(2).mean(-1).sqrt()
