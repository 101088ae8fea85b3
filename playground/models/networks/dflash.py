"""DFlash: a few layers that read the target's hidden states and draft a whole block of tokens in one pass.

Chen et al. 2026, "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036). The block is the last
token of the sequence and a mask token for each position to draft. Block tokens attend to each other, and to the
sequence through its features: hidden states of several target layers, projected to one width, from which each layer
computes keys and values. Embedding and head are the target's.

From a block of γ slots z-lab's drafters predict the masked tokens: γ - 1 of them. DeepSpec's read each slot as a
language model does, so that the last token's slot predicts too: γ tokens. Published drafters have Qwen3's layers. So
has transformers' one DFlash class, the assistant of Muse Glimmer, which is the network here for all of them.

JetSpec (Hu et al. 2026, arXiv 2606.18394; later JetFlow, github.com/hao-ai-lab/JetSpec) is this network, trained with a
causal mask inside the block, and drafts a tree: the likeliest combinations of the positions' tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel

from playground.models.attention import attend_by_groups
from playground.models.load import LoadedDrafter, LoadedModel, explained
from playground.models.networks.dflash_files import BlockFiles, read_block
from playground.progress import Progress


class DFlash(nn.Module):
    """The network.

    Args:
        base: the layers, on the target's device and in its dtype.
        target: the target, whose embedding and head are shared, not copied.
        causal: the kinds of layers in which a block token attends only to earlier ones.
        layers: the target's layers to read, `Layout.layers`; None for those that the config of `base` names.
        from_anchor: whether the block's first slot drafts too, which gives one more token.
        draft_ids: (draft vocabulary,), the token id of each column of the logits, which then come from the network's
            own head. None for the whole vocabulary, with the target's head.
    """

    _embedding: nn.Embedding
    _head: nn.Module

    def __init__(
        self,
        base: PreTrainedModel,
        target: PreTrainedModel,
        causal: frozenset[str],
        *,
        layers: Sequence[int] | None = None,
        from_anchor: bool = False,
        draft_ids: Tensor | None = None,
    ) -> None:
        super().__init__()
        attend_by_groups(base, target.device)
        self.base = base
        self.config = base.config
        self.block_size: int = base.config.block_size
        text = target.config.get_text_config(decoder=True)
        # Target layers whose outputs are read, from 0; of the last layer, the output after the final norm.
        last = text.num_hidden_layers - 1
        self.layers = list(layers or (-1 if i == last else i for i in base.config.target_layer_ids))
        self.drafts = self.block_size if from_anchor else self.block_size - 1
        ids = torch.arange(text.vocab_size) if draft_ids is None else draft_ids
        self.draft_ids, self.vocab_size = ids.to(target.device), text.vocab_size
        like: dict[str, Any] = {"dtype": target.dtype, "device": target.device}
        own = draft_ids is not None
        self.lm_head = nn.Linear(base.config.hidden_size, len(ids), bias=False, **like) if own else None
        self.causal = causal
        object.__setattr__(self, "_embedding", target.get_input_embeddings())  # not submodules: they are the target's
        object.__setattr__(self, "_head", target.get_output_embeddings())

    def new_cache(self) -> DynamicCache:
        return DynamicCache()  # holds all entries; the masks apply sliding windows

    def forward(self, token: int, hidden: Tensor, cache: Cache) -> Tensor:
        """Drafts a block.

        Args:
            token: the last token of the sequence.
            hidden: (positions, layers x width), the target's hidden states at the earlier positions that the cache
                lacks.
            cache: receives the entries of these positions, then those of the block.

        Returns:
            (drafts, draft vocabulary), logits for the positions after the token.
        """
        start, known = cache.get_seq_length(), cache.get_seq_length() + len(hidden)
        positions = torch.arange(known + self.block_size, device=hidden.device)
        masks = {kind: self.sees(kind, positions[known:], positions) for kind in set(self.config.layer_types)}
        last = torch.full((1,), token, device=hidden.device)
        return self.drafted(last, hidden, cache, positions[start:], masks)

    def drafted(
        self, token: Tensor, hidden: Tensor, cache: Cache, positions: Tensor, masks: Mapping[str, Tensor | None]
    ) -> Tensor:
        """Drafts a block like `forward`, with all inputs on the device.

        Args:
            token: (1,).
            positions: (positions + block_size,), those of the hidden states and those of the block.
            masks: for each kind of layer the result of `sees`.
        """
        return self.output(self.states(token, hidden, cache, positions, masks))

    def output(self, states: Tensor) -> Tensor:
        """Returns what a pass gives, of the (drafts, width) states of the slots: their logits."""
        return self.logits(states)

    def states(
        self, tokens: Tensor, hidden: Tensor, cache: Cache, positions: Tensor, masks: Mapping[str, Tensor | None]
    ) -> Tensor:
        """Returns the states that the logits are computed from, (blocks x drafts, width). `tokens`: (blocks,), the
        first of each block; `masks` must hide several blocks from each other. Other arguments are those of
        `drafted`."""
        out = self.base(
            noise_embeds=self.embedded(tokens)[None],
            context_hidden_states=hidden[None],
            attention_mask=dict(masks),
            position_ids=positions[None],
            past_key_values=cache,
        )
        slots = out.last_hidden_state.view(len(tokens), self.block_size, -1)
        return slots[:, -self.drafts :].flatten(0, 1)

    def embedded(self, tokens: Tensor) -> Tensor:
        """Returns the embeddings of blocks, (blocks x block_size, width). `tokens`: (blocks,), the first of each."""
        masks_after = tokens.new_full((len(tokens), self.block_size - 1), self.config.mask_token_id)
        blocks = torch.cat([tokens[:, None], masks_after], dim=1).flatten()
        # The plain embedding: training did not apply the scales and norms of some target classes.
        noise = nn.functional.embedding(blocks, self._embedding.weight).to(self.base.dtype)
        return noise * getattr(self.config, "input_embedding_scale", 1.0)

    def logits(self, states: Tensor) -> Tensor:
        """Maps (…, width) to (…, draft vocabulary) logits: column j is token draft_ids[j]."""
        return (self._head if self.lm_head is None else self.lm_head)(states)

    def sees(self, kind: str, block: Tensor, positions: Tensor) -> Tensor | None:
        """Returns a bool mask (1, 1, block, entries), true where a block token attends to an entry of the cache; None
        if each attends to all.

        Args:
            kind: the kind of layer.
            block: (block,), the positions of the block.
            positions: (entries,), those of all entries, the block's own included.
        """
        windowed, causal = kind == "sliding_attention", kind in self.causal
        if not windowed and not causal:
            return None
        back = block[:, None] - positions
        near = back < self.config.sliding_window if windowed else torch.ones_like(back, dtype=torch.bool)
        return (near & (back >= 0) if causal else near)[None, None]


def load_block(
    method: str,
    kind: Callable[..., DFlash],
    parts: str,
    more: Callable[[BlockFiles, PreTrainedModel], Sequence[Any]],
    name: str,
    target: LoadedModel,
    progress: Callable[[Progress], None],
) -> LoadedDrafter:
    """Loads a drafter that is a `DFlash`, with further parts perhaps.

    Args:
        method, parts: see `read_block`.
        kind: the class of the network. It is called with `more`, and by their names with the arguments of `DFlash`.
        more: makes and loads the further parts.

    Raises:
        PlaygroundError: there is no such drafter, it is of another method, its parts are missing, unknown or do not
            fit, it was trained for another target, or its files are broken.
    """
    files = read_block(name, method, target, parts, progress)
    layout = files.layout
    arguments = {"base": files.base, "target": target.model, "causal": layout.causal, "layers": layout.layers}
    arguments |= {"from_anchor": layout.from_anchor, "draft_ids": files.draft_ids}
    with explained(files.weights, target.model.device):
        network = kind(*more(files, target.model), **arguments)
        if network.lm_head is not None:
            network.lm_head.load_state_dict({"weight": files.parts["lm_head.weight"]})
    return LoadedDrafter(network.eval().requires_grad_(False), files.weights.name, files.weights.origin)


def _nothing(files: BlockFiles, target: PreTrainedModel) -> tuple[()]:
    return ()


load_dflash = partial(load_block, "dflash", DFlash, "", _nothing)
load_jetspec = partial(load_block, "jetspec", DFlash, "", _nothing)  # its block tokens see earlier ones alone
