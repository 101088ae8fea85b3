"""Random numbers that depend on a seed, a position and a token id alone, computed on the device.

A generator gives its numbers in the order in which they are asked for. Here the number of a token at a position is the
same whenever, wherever and beside whatever else it is asked for, so that all positions of a draft can be drawn at once
and those beyond the accepted ones change nothing later.

SplitMix64 (Steele et al. 2014, "Fast Splittable Pseudorandom Number Generators"): a mixed counter. A position's
numbers are one such sequence, whose start is mixed from the seed and the position.
"""

from __future__ import annotations

from torch import Tensor


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


STEP = _signed(0x9E3779B97F4A7C15)
FIRST, SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def exponential(seed: int, positions: Tensor, ids: Tensor) -> Tensor:
    """Exponentially distributed numbers of mean 1.

    Args:
        positions: (n,) whole numbers.
        ids: (n, c) or (1, c) token ids.

    Returns:
        (n, c) float32.
    """
    words = _words(seed, positions, ids)
    words &= (1 << 63) - 1
    uniform = words.float().add_(1).mul_(2.0**-63)  # above 0; small ones keep all their digits
    return uniform.neg_().log1p_().neg_()


def uniform(seed: int, positions: Tensor, ids: Tensor) -> Tensor:
    """Numbers between 0 and 1, of which 0 is possible and 1 is not. Arguments and result are those of
    `exponential`."""
    return ((_words(seed, positions, ids) >> 40) & ((1 << 24) - 1)).float() * 2.0**-24


def _words(seed: int, positions: Tensor, ids: Tensor) -> Tensor:
    """(n, c) random words of 64 bits."""
    starts = _mixed(_mixed(positions * STEP + seed) + seed)
    return _mixed(ids * STEP + starts[:, None])


def _mixed(words: Tensor) -> Tensor:
    """In place. Shifts of signed words copy the sign, which the masks take away."""
    words ^= (words >> 30) & ((1 << 34) - 1)
    words *= FIRST
    words ^= (words >> 27) & ((1 << 37) - 1)
    words *= SECOND
    words ^= (words >> 31) & ((1 << 33) - 1)
    return words
