"""A download that is so large that somebody has to agree to it."""

from __future__ import annotations

from dataclasses import dataclass

from playground.errors import PlaygroundError
from playground.format import gigabytes
from playground.models.fit import Fit
from playground.presets import Pair


class LargeDownload(PlaygroundError):
    """Nobody has agreed to this download yet."""

    def __init__(self, pair: Pair, size: float) -> None:
        super().__init__(
            f"{pair.title} is not on this machine: up to {gigabytes(size)} has to be downloaded first. Agree to it "
            "on the page, or choose models that are ready."
        )
        self.size = size


@dataclass(frozen=True)
class Offer:
    """A download of at most `size` bytes that a session was asked about, and the run that wants it."""

    size: float
    every: bool


def check_fit(pair: Pair, fit: Fit, agreed: float) -> None:
    """Raises:
    PlaygroundError: the pair cannot run here, or needs a larger download than was agreed to.
    """
    if fit.state in ("too large", "gated"):
        raise PlaygroundError(f"{pair.title} cannot run here. {fit.sentence}")
    if fit.download > agreed:
        raise LargeDownload(pair, fit.download)
