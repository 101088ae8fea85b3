"""Mixtures of experts in a form that can be captured: nothing in it waits for the device.

transformers' grouped product waits except on SM90 and SM100 in bfloat16, since elsewhere torch reads the number of
tokens of each expert on the host. Its loop over experts waits everywhere. Its batched product does not, but copies an
expert's weights for each token that is sent to it, which for more than a few tokens takes far longer than to read all
experts once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import (
    ALL_EXPERTS_FUNCTIONS,
    batched_mm_experts_forward,
    grouped_mm_experts_forward,
)

CAPTURED = "captured_mm"
MOST = 264  # tokens of the widest captured pass
COPIES = 3  # a copied weight is read, written and read again


def captured_mm(experts: Any, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
    """The same result as transformers' other forms.

    Args:
        experts: an experts module of transformers.
        hidden: (n, width).
        chosen: (n, k), the experts of each token.
        shares: (n, k), their weights.
    """
    if len(hidden) > MOST:
        return grouped_mm_experts_forward(experts, hidden, chosen, shares)
    if COPIES * chosen.numel() < experts.num_experts:
        return batched_mm_experts_forward(experts, hidden, chosen, shares)
    return _all_experts(experts, hidden, chosen, shares)


def _all_experts(experts: Any, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
    """Every expert over every token; those that a token was not sent to have no share in its result."""

    def product(x: Tensor, name: str) -> Tensor:
        weight, bias = getattr(experts, name), getattr(experts, f"{name}_bias", None)
        out = torch.bmm(x, weight if experts.is_transposed else weight.transpose(1, 2))
        return out if bias is None else out + bias[:, None]

    every = hidden.expand(experts.num_experts, -1, -1)
    if experts.has_gate:
        inner = experts._apply_gate(product(every, "gate_up_proj"))
    else:
        inner = experts.act_fn(product(every, "up_proj"))
    out = product(inner, "down_proj")  # (experts, n, width)
    if experts.has_post_expert_norm:
        out = experts.post_expert_norm(out)
    share = shares.new_zeros(len(hidden), experts.num_experts).scatter_(1, chosen, shares)
    return (out * share.t()[:, :, None]).sum(0).to(hidden.dtype)


ALL_EXPERTS_FUNCTIONS.register(CAPTURED, captured_mm)


def prepare_experts(modules: Iterable[nn.Module]) -> None:
    """Gives the experts of a model, if it has any, the form above. `modules`: all of the model or layer."""
    for module in modules:
        if isinstance(module, PreTrainedModel) and module._can_set_experts_implementation():
            module.set_experts_implementation(CAPTURED)
