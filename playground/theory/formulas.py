"""The formulas of Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", in its letters.

α: the acceptance rate of a draft token whose predecessors were accepted. γ: the lookahead. c: the time of one draft
token, in target passes over one token. E: tokens per target pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def expected_tokens(alpha: float, gamma: int) -> float:
    """E = (1 - α^(γ+1)) / (1 - α), equation 1: the bonus token or correction included. `alpha` from 0 to 1."""
    return gamma + 1.0 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)


def expected_tokens_by_position(conditional: Sequence[float]) -> float:
    """E where each position has an acceptance of its own: one token, and for each position the product of the
    acceptances up to it. `conditional`: given that all positions before were accepted."""
    return 1 + float(np.cumprod(conditional).sum())


def speedup(tokens: float, gamma: int, c: float, verify: float = 1.0) -> float:
    """E / (γc + v), theorem 3.8 where a verify pass costs as much as a plain one (v = 1).

    Args:
        tokens: E, tokens per target pass.
        c: cost of a draft token, in plain passes.
        verify: v, cost of a pass over γ + 1 tokens, in plain passes.
    """
    return tokens / (gamma * c + verify)


def best_lookahead(alpha: float, c: float, most: int = 16) -> int:
    """The γ from 0 to `most` with the highest speed-up where every verify pass costs one plain pass; 0 is standard
    decoding."""
    return max(range(most + 1), key=lambda gamma: speedup(expected_tokens(alpha, gamma), gamma, c))
