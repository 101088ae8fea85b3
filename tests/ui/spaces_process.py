"""Loads a Space's pairs under the real patch of the package `spaces`, in a process of its own: the patch cannot be
taken back. Arguments: a target's folder, then the weights of its drafters as `kind=folder`.

Prints the tensors of each network that do not lie on the GPU that `spaces` emulates, then "all loaded".
"""

from __future__ import annotations

import os
import sys

import torch


def pretend_cuda() -> None:
    """A CPU build of torch lacks what the patch takes hold of."""
    os.environ |= {"SPACES_ZERO_GPU": "true", "SPACES_ZERO_DEVICE_API_URL": "http://127.0.0.1:9"}
    torch.version.cuda = torch.version.cuda or "12.8"
    if not hasattr(torch._C, "_cuda_init"):
        torch._C._cuda_init = _nothing
        torch.cuda._is_in_bad_fork = _nothing


def _nothing() -> None:
    """`spaces` sends one of those above to a forked process, so it has a name."""


def main(target: str, *weights: str) -> None:
    pretend_cuda()
    import spaces  # noqa: F401  # before the project, as in app.py

    from playground.hosting.zerogpu import Held
    from playground.presets import Pair

    named = dict(each.split("=", 1) for each in weights)
    pair = Pair("starter", "Tiny", target, "tree", lookahead=4, size_gb=0, weights=named, drafters=(*named, "tree"))
    held = Held({"starter": pair})
    for drafter in pair.drafters:
        models = held.get(pair, drafter=drafter)
        for module in (models.target.module, models.drafting.module):
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                if tensor.device.type != "cuda":
                    print(f"{drafter}: {name} is on {tensor.device}")
    print("all loaded")


if __name__ == "__main__":
    main(*sys.argv[1:])
