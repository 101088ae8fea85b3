"""Verification of a chain of tokens x_1 … x_γ that were sampled from q_1 … q_γ. Both rules leave p unchanged.

Token by token (Leviathan et al. 2023, algorithm 1): x_i is accepted with probability min(1, p(x_i) / q(x_i)) if those
before it were. The first rejected one is replaced by a sample from norm(max(0, p - q)).

Block (Sun et al. 2024, "Block Verification Accelerates Speculative Decoding"): the draft is judged as a whole, from its
end. With p_0 = 1, p_i = min(1, p_(i-1) p(x_i) / q(x_i)) and R_i = Σ max(0, p_i p - q) over the tokens after x_i, the
chance to accept x_1 … x_i is h_i = R_i / (R_i + 1 - p_i), and h_γ = p_γ. The longest prefix that passes is accepted, of
τ tokens; the next token is sampled from norm(max(0, p_τ p - q)), or from p after the whole draft. By that paper no
exact rule for one chain accepts more on average.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from playground.decoding.sampling import Noise, whole


class Chain(NamedTuple):
    """A sampled chain on the device: (k,) ids, and the (k, vocabulary) distributions that they were sampled from."""

    ids: Tensor
    probabilities: Tensor


class Block(NamedTuple):
    """The numbers of block verification, on the device. `running`: (γ + 1,), p_0 … p_γ. `bounds`: (γ,), h_1 … h_γ."""

    running: Tensor
    bounds: Tensor

    def kept(self, u: Tensor) -> Tensor:
        """Returns τ, the number of accepted tokens, as a (1,) tensor. `u`: (γ,), uniform numbers."""
        places = torch.arange(1, len(u) + 1, device=u.device)
        return (places * (u < self.bounds)).amax(dim=0, keepdim=True)


def speculative_sampling(draft: Chain, p: Tensor, noise: Noise, complete: Tensor | None = None) -> Tensor:
    """Verifies a sampled draft token by token.

    Args:
        p: (k + 1, vocabulary), the target's distributions.
        noise: two samples are taken from it.
        complete: (k + 1,), which of them are; None if all are.

    Returns:
        What `verify.kept_of` reads, on the device.
    """
    q, u = _drafted(draft), noise.uniform(len(draft.ids))
    n = kept_by_tokens(draft, p, u)
    p_n, q_n = p.index_select(0, n), q.index_select(0, n)
    return outcome_of(n, p_n, (p_n - q_n).clamp(min=0), noise, complete, u)


def block_verification(draft: Chain, p: Tensor, noise: Noise, complete: Tensor | None = None) -> Tensor:
    """Verifies a sampled draft as a block; arguments and result are those of `speculative_sampling`."""
    q, u = _drafted(draft), noise.uniform(len(draft.ids))
    block = block_of(draft, p)
    n = block.kept(u)
    p_n, q_n = p.index_select(0, n), q.index_select(0, n)
    rest = (block.running.index_select(0, n) * p_n - q_n).clamp(min=0)
    return outcome_of(n, p_n, rest, noise, complete, torch.cat([u, block.bounds]))


def kept_by_tokens(draft: Chain, p: Tensor, u: Tensor) -> Tensor:
    """Returns a (1,) tensor: how many tokens the token-by-token rule accepts. `u`: (k,), uniform numbers."""
    at_drafted, q = _at_drafted(draft, p)
    return (u * q < at_drafted).long().cumprod(0).sum()[None]


def block_of(draft: Chain, p: Tensor) -> Block:
    """Computes the numbers of block verification. `p`: (k + 1, vocabulary), the target's distributions."""
    q = _drafted(draft)
    at_drafted, q_of = _at_drafted(draft, p)
    total = (at_drafted.double() / q_of).log().cumsum(0)
    # min(1, …) at each step: a walk of logarithms that is held at 0, which is the sum less its highest point so far.
    running = (total - total.cummax(0).values.clamp(min=0)).exp().to(p.dtype)
    rest = (running[:-1, None] * p[1:-1] - q[1:-1]).clamp(min=0).sum(dim=-1)  # R_1 … R_(γ-1)
    inner = torch.where(running[:-1] < 1, rest / (rest + 1 - running[:-1]), 1.0)
    return Block(torch.cat([running.new_ones(1), running]), torch.cat([inner, running[-1:]]))


def _drafted(draft: Chain) -> Tensor:
    """Returns q as (k + 1, vocabulary). The last row, where nothing was drafted, is 0."""
    return torch.nn.functional.pad(draft.probabilities, (0, 0, 0, 1))


def _at_drafted(draft: Chain, p: Tensor) -> tuple[Tensor, Tensor]:
    """Returns p and q of each draft token, (k,) each."""
    ids = draft.ids[:, None]
    return p[:-1].gather(1, ids)[:, 0], draft.probabilities.gather(1, ids)[:, 0]


def outcome_of(n: Tensor, p_n: Tensor, rest: Tensor, noise: Noise, complete: Tensor | None, numbers: Tensor) -> Tensor:
    """Returns the outcome of a rule: n, the target's own token, sampled from the rest of p, whether p has NaN, whether
    it is complete, and `numbers`, all in float32, which holds every id below 2^24.

    Args:
        n: (1,), the row of p that follows the last accepted token; in a chain their number.
        p_n, rest: (1, vocabulary). Where p and q are equal up to rounding, a rejection can leave no mass; p itself is
            then the right choice.
    """
    chosen = noise.choose(whole(torch.where(rest.sum() > 0, rest, p_n)))
    found = n.new_ones(1) if complete is None else complete.all()[None]
    return torch.cat([part.float() for part in (n, chosen, p_n.isnan().any()[None], found, numbers)])
