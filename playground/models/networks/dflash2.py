"""DFlash 2: DFlash's block with short convolutions around attention and MLP, and a selector of the likeliest tokens.

z-lab 2026, "DFlash 2"; published in the layout of speculators too. The convolutions look back over the slots of the
block, with a kernel that each slot computes for groups of channels. For the t-th tap back, channel c in group g(c), and
zero before the block:

    y[i, c] = Σ_t (base[t, c] + δ[i, t, g(c)]) x[i - t, c],    δ = W x

One such convolution is applied to the input of attention (or MLP), another, by the same projection W, to its output.
The selector walks the slots from the last token on. It scores the k likeliest tokens c of a slot with state h, after
token p:

    score[c] = logits[c] + ⟨A[p] ⊙ W h, B[c]⟩

The draft is chosen among these k by their scores: q is 0 for all other tokens.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.errors import PlaygroundError
from playground.models.networks.dflash import load_block
from playground.models.networks.dflash_files import BlockFiles, under
from playground.models.networks.dspark import Slot, Walked

PARTS = (
    r"|layers\.\d+\.(attention|mlp)_conv\.(base_kernel|kernel_projection\.weight)"
    r"|candidate_selector\.(predecessor_codebook|successor_codebook|hidden_projection\.weight)"
)
TOP_K = 16  # the default where the config has none


class Convolution(nn.Module):
    """The two convolutions around attention or MLP.

    Args:
        taps: the number of slots that a slot reads, its own included.
        groups: the number of groups of channels.
    """

    def __init__(self, taps: int, groups: int, width: int, **like: Any) -> None:
        super().__init__()
        self._shape = (2, taps, groups)
        self.base_kernel = nn.Parameter(torch.empty(2, taps, width, **like))
        self.kernel_projection = nn.Linear(width, 2 * taps * groups, bias=False, **like)

    def kernels(self, x: Tensor) -> Tensor:
        """Maps the input, (1, block, width), to the kernels for input and output, (2, block, taps, width)."""
        width = x.shape[-1]
        delta = self.kernel_projection(x)[0].unflatten(-1, self._shape).movedim(1, 0)
        return self.base_kernel[:, None].to(x.dtype) + delta.repeat_interleave(width // self._shape[2], dim=-1)

    @staticmethod
    def apply_to(x: Tensor, kernel: Tensor) -> Tensor:
        """Convolves x, (1, block, width), with one of `kernels`, (block, taps, width)."""
        block = x.shape[1]
        before = F.pad(x, (0, 0, kernel.shape[1] - 1, 0))
        start = kernel.shape[1] - 1
        taps = [before[:, start - t : start - t + block] * kernel[:, t] for t in range(kernel.shape[1])]
        return torch.stack(taps).sum(dim=0)


class Convolved(nn.Module):
    """Attention or MLP of a layer, between two convolutions."""

    def __init__(self, inner: nn.Module, conv: Convolution) -> None:
        super().__init__()
        self.inner, self.conv = inner, conv

    def forward(self, hidden_states: Tensor, **others: Any) -> Any:
        first, last = self.conv.kernels(hidden_states)
        out = self.inner(self.conv.apply_to(hidden_states, first), **others)
        if isinstance(out, tuple):  # attention returns a tuple
            return self.conv.apply_to(out[0], last), *out[1:]
        return self.conv.apply_to(out, last)


class Selector(nn.Module):
    """The selector of a slot's token.

    Args:
        top_k: the number of tokens among which it selects.
    """

    def __init__(self, vocabulary: int, rank: int, width: int, top_k: int, **like: Any) -> None:
        super().__init__()
        self.top_k = min(top_k, vocabulary)
        self.predecessor_codebook = nn.Parameter(torch.empty(vocabulary, rank, **like))
        self.successor_codebook = nn.Parameter(torch.empty(vocabulary, rank, **like))
        self.hidden_projection = nn.Linear(width, rank, bias=False, **like)

    def forward(self, logits: Tensor, state: Tensor, before: Tensor) -> Tensor:
        """Scores the tokens of one slot.

        Args:
            logits: (vocabulary,), the slot's.
            state: (width,), the slot's.
            before: (rows,), the token before the slot in each branch.

        Returns:
            (rows, vocabulary), the scores of the likeliest tokens, and -inf for all others.
        """
        known, ids = logits.topk(self.top_k)
        after = self.predecessor_codebook[before] * self.hidden_projection(state)
        scores = known + after @ self.successor_codebook[ids].T
        return scores.new_full((len(before), len(logits)), float("-inf")).index_copy_(1, ids, scores)


class DFlash2(Walked):
    """The network. Arguments are `selector` and those of `DFlash`; the layers are those that `convolve` has changed."""

    def __init__(self, selector: Selector, **others: Any) -> None:
        super().__init__(**others)
        self.candidate_selector = selector

    def slot(self, index: int, base: Tensor, state: Tensor, ids: Tensor, memory: Tensor) -> Slot:
        return Slot(self.candidate_selector(base, state, ids), None, memory)


def convolve(files: BlockFiles, target: PreTrainedModel) -> None:
    """Puts attention and MLP of every layer between their convolutions."""
    layers: Any = files.base.layers
    for i, layer in enumerate(layers):
        for part, inner in (("attention", "self_attn"), ("mlp", "mlp")):
            state = under(f"layers.{i}.{part}_conv.", files.parts)
            if len(state) < 2:
                raise PlaygroundError(
                    f"{files.weights.name} is not a complete DFlash 2 drafter: layer {i} has no {part}_conv. Fetch it "
                    "again, or choose another drafter."
                )
            (_, taps, width), (made, _) = state["base_kernel"].shape, state["kernel_projection.weight"].shape
            groups = made // (2 * taps)
            if not groups or width % groups:
                raise PlaygroundError(
                    f"The {part}_conv of {files.weights.name} makes kernels for {groups:,} groups, which do not divide "
                    f"its {width:,} channels. Fetch it again, or choose another drafter."
                )
            conv = Convolution(taps, groups, width, dtype=target.dtype, device=target.device)
            conv.load_state_dict(state)
            setattr(layer, inner, Convolved(getattr(layer, inner), conv))


def _selector(files: BlockFiles, target: PreTrainedModel) -> tuple[Selector]:
    """Returns the selector, after `convolve`."""
    convolve(files, target)
    state = under("candidate_selector.", files.parts)
    vocabulary = target.config.get_text_config(decoder=True).vocab_size
    if len(state) < 3 or files.draft_ids is not None or len(state["predecessor_codebook"]) != vocabulary:
        raise PlaygroundError(
            f"{files.weights.name} has no candidate_selector over the target's {vocabulary:,} tokens, by which DFlash "
            "2 chooses. Fetch it again, or choose another drafter."
        )
    (_, rank), (_, width) = state["predecessor_codebook"].shape, state["hidden_projection.weight"].shape
    top_k = files.layout.given.get("selector_top_k") or TOP_K
    selector = Selector(vocabulary, rank, width, top_k, dtype=target.dtype, device=target.device)
    selector.load_state_dict(state)
    return (selector,)


load_dflash2 = partial(load_block, "dflash2", DFlash2, PARTS, _selector)
