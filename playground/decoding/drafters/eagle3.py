"""An EAGLE-3 head drafts recursively from three layers of the target.

Li et al. 2025, "EAGLE-3"; the network: models/networks/eagle3.py. Recursion, KV cache and tree are those of an MTP
layer; only the hidden states that it reads differ.
"""

from __future__ import annotations

from playground.decoding.drafters.mtp import MtpBranches
from playground.decoding.runners.base import Runner
from playground.models.networks.eagle3 import Eagle3Head


class Eagle3Branches(MtpBranches):
    def __init__(self, head: Eagle3Head, target: Runner) -> None:
        super().__init__(head, target, head.layers)
