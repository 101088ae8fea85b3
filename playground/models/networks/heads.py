"""Parallel heads: several future tokens from the target's last hidden state.

`SharedHead` is the base of networks that use the target's embedding and rows of its head.

`ParallelHeads` are trained by this project. They combine Medusa (Cai et al. 2024) with independent heads for several
tokens (Gloeckle et al. 2024). Unlike Medusa's, they read the token that the target has just chosen: from its embedding
and the hidden state before it, head s, counted from 0, proposes the token s + 1 positions later. The heads do not see
each other's proposals.

`MedusaHeads` are published ones: Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple
Decoding Heads" (arXiv 2401.10774). From the hidden state that gives the target's next token, head k, counted from 0,
proposes the token k + 1 positions after that one. A head is some residual blocks and a matrix over the vocabulary: its
own (Medusa-1) or the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.errors import PlaygroundError
from playground.models.cpu.native.layers import NativeLinear, of_draft_head
from playground.models.cpu.packed import PackedLinear, by_columns
from playground.models.load import LoadedDrafter, LoadedModel, check_memory, explained
from playground.models.networks.made_for import check_made_for, fetch
from playground.models.sizing import within_files
from playground.progress import Progress


class SharedHead(nn.Module):
    """The base of networks that use the target's embedding and rows of its head.

    Attributes:
        layers: the target's layers whose outputs it reads, in the form of `Runner.watch`.

    Args:
        target: the target, whose embedding and head are shared, not copied.
        draft_ids: (draft vocabulary,), the token id of each column of the logits.
    """

    draft_ids: Tensor
    _embedding: nn.Embedding
    _target_head: nn.Linear | PackedLinear | NativeLinear
    _head: nn.Module

    def __init__(self, target: PreTrainedModel, draft_ids: Tensor) -> None:
        super().__init__()
        config = target.config.get_text_config(decoder=True)
        like: dict[str, Any] = {"eps": 1e-5, "dtype": target.dtype, "device": target.device}
        self.vocab_size, self._dtype = config.vocab_size, target.dtype
        self.layers: Sequence[int] = (-1,)
        self.norm_embedding = nn.RMSNorm(config.hidden_size, **like)
        self.norm_hidden = nn.RMSNorm(config.hidden_size, **like)
        self.register_buffer("draft_ids", draft_ids.to(target.device).long())
        object.__setattr__(self, "_embedding", target.get_input_embeddings())  # not a submodule: not saved, not trained
        object.__setattr__(self, "_target_head", target.get_output_embeddings())
        object.__setattr__(self, "_head", self._part())

    @property
    def embedding(self) -> Tensor:
        """The matrix of the embedding, (vocabulary, width)."""
        return self._embedding.weight

    @property
    def head(self) -> nn.Module:
        """The head for the draft vocabulary."""
        return self._head

    @property
    def whole_head(self) -> nn.Module:
        """The head for the whole vocabulary."""
        return self._target_head

    def joined(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """Concatenates the embeddings of tokens (…,) and the hidden states one position before them (…, width), both
        normed, to (…, 2 width)."""
        embedding = self._embedding(ids).detach().to(hidden.dtype)
        return torch.cat([self.norm_embedding(embedding), self.norm_hidden(hidden)], dim=-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Maps (…, width) to (…, draft vocabulary) logits: column j is token draft_ids[j]."""
        return self._head(hidden)

    def head_rows(self, ids: Tensor) -> Tensor:
        """Returns rows of the target's head, (tokens, width), for any token ids of its vocabulary, (tokens,)."""
        return self._target_head.weight.detach()[ids].to(self._dtype)

    def further(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Returns rows of the target's head and a bias, as of a linear layer, for columns added to the network's own.
        `numbers`: int64, on the device, how many of the columns are used, then the token id of each; the bias of the
        others is -inf. Captured work may call it."""
        count, ids = numbers[:1], numbers[1:]
        rows = self.head_rows(ids)
        unused = torch.arange(len(ids), device=ids.device) >= count
        return rows, rows.new_zeros(len(ids)).masked_fill_(unused, float("-inf"))

    def _part(self) -> nn.Module:
        """Makes a head of the draft vocabulary's rows, packed where the whole head is."""
        rows, packs = self.head_rows(self.draft_ids), isinstance(self._target_head, PackedLinear | NativeLinear)
        part = nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
        part.weight = nn.Parameter(rows if packs else by_columns(rows), requires_grad=False)
        if isinstance(self._target_head, NativeLinear):
            return of_draft_head(part)
        return PackedLinear(part) if packs else part


class ParallelHeads(SharedHead):
    """The heads of this project. Arguments are those of `SharedHead`, and `heads`, the number of drafted positions."""

    def __init__(self, target: PreTrainedModel, draft_ids: Tensor, heads: int) -> None:
        super().__init__(target, draft_ids)
        width = target.config.get_text_config(decoder=True).hidden_size
        like: dict[str, Any] = {"dtype": target.dtype, "device": target.device}
        self.proj = nn.Linear(2 * width, 2 * width, **like)
        self.count = heads
        self.heads = nn.Linear(2 * width, heads * width, bias=False, **like)

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """Runs all heads.

        Args:
            ids: (…,), the tokens from position 1 on.
            hidden: (…, width), the target's hidden states from position 0 on.

        Returns:
            (…, heads, width), hidden states from which the tokens from position 2 on are predicted.
        """
        both = self.joined(ids, hidden)
        mixed = both + nn.functional.silu(self.proj(both))
        return self.heads(mixed).unflatten(-1, (-1, hidden.shape[-1]))


WEIGHTS = "medusa_lm_head.safetensors"


class ResBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + nn.functional.silu(self.linear(hidden))


class MedusaHeads(nn.Module):
    """Published Medusa heads.

    Args:
        target: the target, whose head is shared, not copied, if the heads have no matrices of their own.
        count, blocks: the number of heads, and of blocks in each.
        own: whether each head has its own matrix over the vocabulary.
    """

    _head: nn.Module

    def __init__(self, target: PreTrainedModel, count: int, blocks: int, own_head: bool) -> None:
        super().__init__()
        text = target.config.get_text_config(decoder=True)
        width, vocabulary = text.hidden_size, text.vocab_size
        self.count = count
        self.heads = nn.ModuleList(
            nn.Sequential(
                *(ResBlock(width) for _ in range(blocks)),
                *([nn.Linear(width, vocabulary, bias=False)] if own_head else []),
            )
            for _ in range(count)
        )
        self.draft_ids = torch.arange(vocabulary, device=target.device)
        # Not a submodule: it is the target's.
        object.__setattr__(self, "_head", nn.Identity() if own_head else target.get_output_embeddings())

    def forward(self, hidden: Tensor) -> Tensor:
        """Maps the target's hidden state at a position, (width,), to (heads, vocabulary) logits for the tokens two and
        more positions later."""
        return self._head(torch.stack([head(hidden) for head in self.heads]))


def load_medusa(name: str, target: LoadedModel, progress: Callable[[Progress], None]) -> LoadedDrafter:
    """Loads Medusa heads.

    Raises:
        PlaygroundError: there are no such heads, they are pickled or of another kind, they were trained for another
            target, or their files are broken.
    """
    weights, config = fetch(name, "A set of Medusa heads", progress)
    count, blocks = config.get("medusa_num_heads"), config.get("medusa_num_layers")
    path = weights.folder / WEIGHTS
    if not (isinstance(count, int) and isinstance(blocks, int) and path.is_file()):
        raise PlaygroundError(
            f"{weights.name} holds no supported Medusa heads. Choose a folder or a model on the hub with {WEIGHTS} and "
            "a config.json that has medusa_num_heads and medusa_num_layers."
        )
    progress(Progress(f"Loading {weights.name}"))
    with explained(weights, target.model.device):
        check_memory(weights, target.model.dtype, target.model.device)
        # Read on the CPU first: reading directly to a GPU, safetensors pins memory, which needs CUDA itself, and on
        # ZeroGPU the loading process has only an emulation of it.
        loaded = load_file(path)
        state = {key: tensor.to(target.model.device, target.model.dtype) for key, tensor in loaded.items()}
    first, last = state.get("0.0.linear.weight"), state.get(f"0.{blocks}.weight")
    width = first if first is not None else last
    text = target.model.config.get_text_config(decoder=True)
    sizes = [
        ("hidden states of {}", None if width is None else width.shape[1], text.hidden_size),
        ("a vocabulary of {}", None if last is None else last.shape[0], text.vocab_size),
    ]
    check_made_for(weights.name, target.name, sizes)
    with torch.device("meta"), within_files(weights):
        network = MedusaHeads(target.model, count, blocks, own_head=last is not None)
    try:
        network.heads.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise PlaygroundError(
            f"The weights of {weights.name} are not {count} heads of {blocks} blocks each, which its config.json names "
            f"({str(error).splitlines()[-1].strip()}). Fetch it again, or choose other heads."
        ) from error
    return LoadedDrafter(network.eval().requires_grad_(False), weights.name, weights.origin)
