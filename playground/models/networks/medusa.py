"""Medusa's heads: several future tokens from the target's last hidden state.

Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads" (arXiv 2401.10774).
From the hidden state that gives the target's next token, head k, counted from 0, proposes the token k + 1 positions
after that one. A head is some residual blocks and a matrix over the vocabulary: its own (Medusa-1) or the target's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.errors import PlaygroundError
from playground.models.load import LoadedDrafter, LoadedModel, check_memory, explained
from playground.models.networks.made_for import check_made_for, fetch
from playground.models.sizing import within_files
from playground.progress import Progress

WEIGHTS = "medusa_lm_head.safetensors"


class ResBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + nn.functional.silu(self.linear(hidden))


class MedusaHeads(nn.Module):
    """Args:
    target: its head is used if the heads have no matrix of their own; shared, not copied.
    count, blocks: the number of heads, and of blocks in each.
    own: whether each head has its own matrix over the vocabulary.
    """

    _head: nn.Module

    def __init__(self, target: PreTrainedModel, count: int, blocks: int, own: bool) -> None:
        super().__init__()
        text = target.config.get_text_config(decoder=True)
        width, vocabulary = text.hidden_size, text.vocab_size
        self.count = count
        self.heads = nn.ModuleList(
            nn.Sequential(
                *(ResBlock(width) for _ in range(blocks)),
                *([nn.Linear(width, vocabulary, bias=False)] if own else []),
            )
            for _ in range(count)
        )
        self.draft_ids = torch.arange(vocabulary, device=target.device)
        # Not a submodule: it is the target's.
        object.__setattr__(self, "_head", nn.Identity() if own else target.get_output_embeddings())

    def forward(self, hidden: Tensor) -> Tensor:
        """(width,), the target's hidden state at a position, to (heads, vocabulary), logits for the tokens two and more
        positions later."""
        return self._head(torch.stack([head(hidden) for head in self.heads]))


def load_medusa(name: str, target: LoadedModel, progress: Callable[[Progress], None]) -> LoadedDrafter:
    """Raises:
    PlaygroundError: no such heads, pickled or of another kind, trained for another target, or broken files.
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
        # By way of the CPU: read straight to a GPU, safetensors pins memory, which needs CUDA itself, and the process
        # that loads on ZeroGPU has only an emulation of it.
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
        network = MedusaHeads(target.model, count, blocks, own=last is not None)
    try:
        network.heads.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise PlaygroundError(
            f"The weights of {weights.name} are not {count} heads of {blocks} blocks each, which its config.json names "
            f"({str(error).splitlines()[-1].strip()}). Fetch it again, or choose other heads."
        ) from error
    return LoadedDrafter(network.eval().requires_grad_(False), weights.name, weights.origin)
