"""Domino: DFlash's block, whose logits a small recurrent head corrects by the tokens drafted so far.

Huang et al. 2026, "Domino" (arXiv 2605.29707); the authors' code: github.com/jianuo-huang/Domino. A pass over the block
gives states h_1 … h_γ and logits as in DFlash. From left to right, a GRU reads the embedding e of the last token, then
of each drafted one, and two linear layers turn its state and the slot's into what is added to the logits of slot k:

    s_k = GRU(e(x_k-1), s_k-1),  s_0 = 0,      logits_k + W_2 silu(W_1 [h_k; s_k])

The first `pure_draft_prefix_len` slots keep DFlash's logits; the GRU reads their tokens too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.errors import PlaygroundError
from playground.models.networks.dflash import load_block
from playground.models.networks.dflash_files import BlockFiles
from playground.models.networks.dspark import Slot, Walked

GRU = ("prefix_gru.weight_ih_l0", "prefix_gru.weight_hh_l0")
CORRECTION = ("embed_proj.0.weight", "embed_proj.2.weight")
PARTS = r"|prefix_gru\.weight_(ih|hh)_l0|embed_proj\.[02]\.weight"


class Domino(Walked):
    """The network.

    Args:
        gru: reads the embeddings of the tokens before a slot.
        correction: maps (rows, width + memory), a slot's state and the GRU's, to what is added to the logits, (rows,
            draft vocabulary).
        uncorrected: the number of slots at the start that keep DFlash's logits.
        others: the arguments of `DFlash`.
    """

    def __init__(self, gru: nn.GRUCell, correction: nn.Sequential, uncorrected: int, **others: Any) -> None:
        super().__init__(**others)
        self.prefix_gru, self.embed_proj, self.uncorrected = gru, correction, uncorrected

    def no_memory(self, states: Tensor) -> Tensor:
        """Returns s_0, (1, memory)."""
        return states.new_zeros(1, self.prefix_gru.hidden_size)

    def slot(self, index: int, base: Tensor, state: Tensor, ids: Tensor, memory: Tensor) -> Slot:
        before = nn.functional.embedding(ids, self._embedding.weight).to(state.dtype)
        memory = self.prefix_gru(before, memory)
        logits = base.expand(len(ids), -1)
        if index >= self.uncorrected:
            logits = logits + self.embed_proj(torch.cat([state.expand(len(ids), -1), memory], dim=-1))
        return Slot(logits, None, memory)


def _head(files: BlockFiles, target: PreTrainedModel) -> tuple[nn.GRUCell, nn.Sequential, int]:
    """Returns the GRU, the layers of the correction, whose tensors say how large they are, and the number of slots that
    are not corrected.

    Raises:
        PlaygroundError: a tensor is missing, or its shape does not fit the others.
    """
    name, parts = files.weights.name, files.parts
    missing = [part for part in (*GRU, *CORRECTION) if part not in parts]
    if missing:
        raise PlaygroundError(
            f"{name} is not a complete Domino drafter: it has no {missing[0]}. Fetch it again, or choose another "
            "drafter."
        )
    width, memory, middle = files.base.config.hidden_size, parts[GRU[1]].shape[1], len(parts[CORRECTION[0]])
    text = target.config.get_text_config(decoder=True)
    drafted = text.vocab_size if files.draft_ids is None else len(files.draft_ids)
    wanted = (3 * memory, width), (3 * memory, memory), (middle, width + memory), (drafted, middle)
    for part, shape in zip((*GRU, *CORRECTION), wanted, strict=True):
        if parts[part].shape != shape:
            raise PlaygroundError(
                f"The head of {name} does not fit: {part} has the shape {tuple(parts[part].shape)}, and by the network "
                f"and its other parts it is {shape}. Fetch it again, or choose another drafter."
            )
    like: dict[str, Any] = {"bias": False, "dtype": target.dtype, "device": target.device}
    gru = nn.GRUCell(width, memory, **like)
    gru.load_state_dict({"weight_ih": parts[GRU[0]], "weight_hh": parts[GRU[1]]})
    first, last = nn.Linear(width + memory, middle, **like), nn.Linear(middle, drafted, **like)
    correction = nn.Sequential(first, nn.SiLU(), last)
    correction.load_state_dict({"0.weight": parts[CORRECTION[0]], "2.weight": parts[CORRECTION[1]]})
    return gru, correction, int(files.layout.given.get("pure_draft_prefix_len") or 0)


load_domino = partial(load_block, "domino", Domino, PARTS, _head)
