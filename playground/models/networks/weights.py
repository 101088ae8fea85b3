"""Checks that a drafter's weights can come from a training, whatever they are for.

Each check is for a contradiction, with its reason: a matrix that is zero although the norm before it learned, a norm of
ones among norms that learned, two layers with the same numbers, a head that can make no token likely. What a healthy
drafter can have, such as a layer that was never switched on, is no contradiction. What is odd without being one is a
suspicion.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from playground.format import count
from playground.results import Finding

State = Mapping[str, Tensor]
PART = 1 / 8  # of a matrix's rows or columns, in one run, that no training leaves at zero
LIKELY = 0.1  # probability that a head must be able to give a token
TOKENS, RELATED = 1024, 0.05  # tokens whose likeness to each other two embeddings share, and the least correlation
SPREAD = 1.3  # of the lengths of rows or columns, as a multiple of what independent random numbers have
ENTRY = ("fc.weight", "proj.weight", "heads.weight")  # what the target's states enter by
LAYER = re.compile(r"(.*layers\.\d+|midlayer)\.(.+)")
HEADS = ("q_norm.weight", "k_norm.weight")  # norms within attention heads
SMALL = 8  # rows or columns of a matrix that is too small for shares
BLOCKS = {"self_attn": "input_layernorm.weight", "mlp": "post_attention_layernorm.weight"}  # with the norm before each


def check_weights(state: State, head: Tensor, norm: nn.Module, offset: float = 0.0) -> Iterator[Finding]:
    """Yields what is wrong in a drafter's tensors.

    Args:
        head, norm: the target's head, which a drafter without its own uses, and its final norm.
        offset: what the drafter's norms add to their weights.
    """
    yield from _finite(state)
    yield from _empty(state)
    norms = {key: it for key, it in state.items() if it.dim() == 1 and re.search(r"norm\w*\.weight$", key)}
    norms = {key: it + offset for key, it in norms.items()} if offset else norms
    yield from _ones({key: it for key, it in norms.items() if not key.endswith(HEADS)}, scales(norm))
    yield from _copies(state)
    yield from _flat(state, norms, head)
    yield from _untrained(state)


def scales(norm: nn.Module) -> Tensor:
    """Returns what a norm multiplies its outputs with; some add 1 to their weights."""
    weight: Any = norm.weight
    with torch.inference_mode():
        return torch.as_tensor(norm(torch.ones_like(weight))).float()


def check_vocabulary(own: Tensor, theirs: Tensor, vocabulary: int) -> Iterator[Finding]:
    """Yields what is wrong in the embedding of a model that shares the target's tokens. `own`, `theirs`: (tokens,
    width), of any widths: tokens that are alike to the target should be alike to the other model."""
    ids = torch.linspace(0, min(len(own), len(theirs), vocabulary) - 1, TOKENS).long()
    alike = torch.corrcoef(torch.stack([_likeness(it[ids.to(it.device)].float().cpu()) for it in (own, theirs)]))[0, 1]
    if not alike >= RELATED:  # nor is it where all rows are the same
        yield Finding(
            "broken", "embed_tokens",
            "Tokens that are alike to the target are not to its embed_tokens.weight (correlation "
            f"{float(alike.nan_to_num()):.2f}): its rows are random, in another order, or of other tokens.",
        )  # fmt: skip


def _likeness(rows: Tensor) -> Tensor:
    normed = F.normalize(rows - rows.mean(0), dim=-1)
    return (normed @ normed.T)[torch.triu_indices(len(rows), len(rows), 1).unbind()]


def sums(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the sums of the sizes in each row and in each column, which are 0 where all are, and not finite where one
    is not."""
    sizes = tensor.float().abs()
    return sizes.flatten(1).sum(1) if sizes.dim() > 1 else sizes, sizes.sum(0)


def _finite(state: State) -> Iterator[Finding]:
    for key, tensor in state.items():
        if tensor.is_floating_point() and not sums(tensor)[0].isfinite().all():
            share = 1 - float(tensor.isfinite().float().mean())
            yield Finding("broken", "weights", f"{key} holds numbers that are not finite ({share:.1%} of them).")


def _empty(state: State) -> Iterator[Finding]:
    """What is zero everywhere, or in many rows or columns in a run."""
    weights = {key: it for key, it in state.items() if it.is_floating_point() and key.endswith("weight")}
    empty = [key for key, it in weights.items() if not sums(it)[0].any()]
    matrices = {key: it for key, it in weights.items() if it.dim() == 2 and min(it.shape) > SMALL and key not in empty}
    partly = {key: found for key, it in matrices.items() if (found := _partly_empty(key, it))}
    if lost := [key for key in empty if _switched_on(key, state)]:
        text = f"{lost[0]}{_others(lost)} is zero everywhere: it was not exported, or it was erased."
        yield Finding("broken", "weights", text)
    if partly:
        key, text = next(iter(partly.items()))
        yield Finding("broken", "weights", f"{key}{_others(partly)} has {text} in a run: no training leaves that.")


def _others(some: Collection[str]) -> str:
    return f", like {count(len(some) - 1, 'other tensor')}," if len(some) > 1 else ""


def _partly_empty(key: str, matrix: Tensor) -> str:
    tokens = key.endswith(("embed_tokens.weight", "lm_head.weight", "markov_w1.weight"))  # rows of some may be unused
    for each, what in [*zip(sums(matrix), ("rows", "columns"), strict=True)][tokens:]:
        if (run := _longest(each == 0)) > PART * len(each):
            return f"{run:,} of its {len(each):,} {what} of zeros"
    return ""


def _longest(flags: Tensor) -> int:
    """Returns the length of the longest run of True."""
    edges = torch.diff(F.pad(flags.int(), (1, 1)))
    return int(((edges == -1).nonzero() - (edges == 1).nonzero()).max()) if flags.any() else 0


def _switched_on(key: str, state: State) -> bool:
    """Returns False for a matrix of a block that adds nothing and never did: a norm learns only if the block after it
    does something."""
    found = LAYER.match(key)
    before = BLOCKS.get(found[2].split(".")[0]) if found else None
    norm = state.get(f"{found[1]}.{before}") if found and before else None
    if found is None or norm is None:
        return key.rsplit(".", 2)[-2] not in ("markov_w1", "markov_w2", "kernel_projection")  # zero before training
    return bool((norm != norm[0]).any())


def _ones(norms: State, theirs: Tensor) -> Iterator[Finding]:
    """A norm learns as fast as the others; those of a target without learned norms tell nothing."""
    plain = [key for key, tensor in norms.items() if bool((tensor == 1).all())]
    if not plain or bool((theirs == 1).all()):
        return
    if len(plain) == len(norms) > 1:
        text = f"All {len(norms)} norms are 1 everywhere: they were never trained, or were lost."
        yield Finding("suspect", "norms", text)
    elif 2 * len(plain) < len(norms):
        text = f"{plain[0]}{_others(plain)} is 1 everywhere, while {len(norms) - len(plain)} norms were trained"
        yield Finding("broken", "norm", f"{text}: it was lost.")


def _copies(state: State) -> Iterator[Finding]:
    layers: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in state.items():
        if (found := LAYER.match(key)) and tensor.dim() == 2 and sums(tensor)[0].any():
            layers[found[1]][found[2]] = tensor
    names = list(layers)
    for i, later in enumerate(names):
        for earlier in names[:i]:
            both = layers[earlier], layers[later]
            if both[0].keys() == both[1].keys() and all(torch.equal(both[0][key], both[1][key]) for key in both[0]):
                text = f"{later} holds the same numbers as {earlier}: one of the two was written over."
                yield Finding("broken", "layers", text)
                return


def _flat(state: State, norms: State, theirs: Tensor) -> Iterator[Finding]:
    """What a head can make likely at most, whatever it reads: a normed state is no longer than √width, so a token's
    logit is above the mean one by at most √width times the length of its row's difference from the mean row (Cauchy and
    Schwarz), and its probability at most e to that over the number of tokens (Jensen)."""
    norm = next((norms[key] for key in ("norm.weight", "base.norm.weight") if key in norms), None)
    own = state.get("lm_head.weight", state.get("embed_tokens.weight"))
    head = own if own is not None and norm is not None and own.shape[1] == len(norm) else theirs
    if norm is None or head.shape[1] != len(norm):
        return
    longest = longest_row(head, norm)
    most = float(torch.exp(longest * len(norm) ** 0.5) / len(head))
    if longest > 0 and most < LIKELY:
        which = "lm_head.weight" if "lm_head.weight" in state else "embed_tokens.weight" if head is own else ""
        text = f"{which} and the final norm are so small" if which else "The final norm is so small"
        yield Finding(
            "broken", "head",
            f"{text} that no token can get a probability over {max(most, 0.001):.1%}: greedy drafts may be right, "
            "sampled ones are noise.",
        )  # fmt: skip


def longest_row(head: Tensor, norm: Tensor) -> Tensor:
    """Returns the largest length of a token's row in a head, less the mean row, under a norm's weights."""
    rows = head.float() - head.float().mean(0)
    return (rows * norm.float().to(head.device)).norm(dim=1).max()


def _untrained(state: State) -> Iterator[Finding]:
    """Rows and columns of independent random numbers are equally long but for chance; a training ends that."""
    for key in ENTRY:
        matrix = state.get(key)
        if matrix is None or not 0 < float(sums(matrix)[1].sum()) < math.inf:
            continue
        whole = matrix.float()
        lengths = {axis: whole.norm(dim=axis) for axis in (0, 1)}
        spread = max(float(it.std() / it.mean()) * (2 * whole.shape[axis]) ** 0.5 for axis, it in lengths.items())
        if spread < SPREAD:
            text = f"{key} looks like independent random numbers: it was never trained, or was lost."
            yield Finding("suspect", key.removesuffix(".weight"), text)
