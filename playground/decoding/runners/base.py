"""What the loop and the drafters ask of a model: feed tokens, commit the accepted ones.

    runner.forward(ids, keep) -> logits        feeds tokens, all of which the cache then holds
    runner.commit(length, path)                rolls the cache back to what was accepted

A runner hides how a pass is run and how its cache is stored. It knows neither drafts nor sampling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import nn
from transformers import Cache, DynamicCache, PretrainedConfig, PreTrainedModel

from playground.errors import PlaygroundError
from playground.models.quantised import precision

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"  # transformers' layer types


class Runner(Protocol):
    """A causal language model and its cache of one sequence. Target and assistant are both run this way.

    Attributes:
        length: tokens of the sequence that the cache holds.
        passes: forward passes run so far, those included that `commit` needs.
    """

    length: int
    passes: int

    @property
    def device(self) -> torch.device: ...

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""

    @property
    def context_limit(self) -> int:
        """The longest sequence, in tokens, that the model takes."""

    @property
    def hidden(self) -> torch.Tensor:
        """(tokens, layers x width): hidden states of the last pass's tokens, those of the watched layers side by side.
        Tokens that were rolled back are gone."""

    @property
    def recurrent(self) -> bool:
        """Whether the model has a recurrent state: rolling back then costs a pass over the accepted tokens."""

    @property
    def takes_trees(self) -> bool:
        """Whether a draft tree can be verified exactly."""

    @property
    def discards_old(self) -> bool:
        """Whether `commit` also drops old entries, so that the cache cannot be rolled back past the last commit."""

    @property
    def cache_bytes(self) -> int:
        """Of the tokens that the cache holds."""

    @property
    def shared_kv(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Layer type -> keys and values, both (1, heads, entries, head dimension), of the last layer of that type:
        transformers' `shared_kv_states`. Of a sliding window, the last window + 1 entries, which is what the masks of
        Gemma 4's assistants cover."""

    def prepare(self) -> None:
        """Makes ready what the next pass needs beside the weights: room, and captured graphs. To be called where
        nothing is timed; a pass that was not prepared is only slower."""

    def computed(self, tokens: int) -> int:
        """How many tokens a pass over so many computes, padding included."""

    def forward(self, ids: Sequence[int] | torch.Tensor, keep: int, tree: Sequence[int] | None = None) -> torch.Tensor:
        """Feeds the tokens that follow those in the cache.

        Args:
            ids: token ids; numbers, or of one token a tensor on the device.
            keep: how many of the last tokens to return logits for.
            tree: where the last of `ids` are a draft tree: for each of its tokens the index of its parent in the tree,
                -1 for the last token before the tree.

        Returns:
            (keep, vocabulary) logits in float32, on the model's device.
        """

    def not_numbers(self) -> PlaygroundError:
        """For whoever reads NaN from the logits: a check of its own would wait for the device once more."""

    def commit(self, length: int, path: Sequence[int] = ()) -> None:
        """Rolls the cache back to its first `length` tokens and those with the indices `path` among the tokens after
        them. Must follow every pass, or the passes of one draft, even where nothing is dropped."""

    def watch(self, layers: Sequence[int]) -> None:
        """Collects `hidden` from now on: the output of each of these layers, counted from 0. -1 is the output of the
        last layer after the final norm."""

    def share_kv(self) -> None:
        """Keeps two more entries of each sliding window from now on, as `shared_kv` promises."""

    def layer(self, layer: RecursiveLayer) -> LayerRunner:
        """A runner of a layer that drafts from this model's hidden states, with an empty cache. It is run as this model
        is, where it can be."""

    def block(self, network: BlockNetwork) -> BlockRunner:
        """The same of a network that drafts a block at once."""

    def first_layers(self, layers: PreTrainedModel) -> Runner:
        """A runner of `layers`, the first layers of this model, on this runner's cache of those layers. What it feeds
        must be rolled back before this runner goes on. It has its own `length`."""


class RecursiveLayer(Protocol):
    """A layer that can read its own output as hidden states, such as `MtpLayer`.

    Attributes:
        config: of its attention, as transformers has it.
        draft_ids: (draft vocabulary,), the token id of each column of its logits.
    """

    config: PretrainedConfig
    draft_ids: torch.Tensor

    def modules(self) -> Iterator[nn.Module]: ...

    def new_cache(self) -> DynamicCache: ...

    def __call__(
        self,
        ids: torch.Tensor,
        hidden: torch.Tensor,
        cache: Cache,
        positions: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor: ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


class LayerRunner(Protocol):
    """A layer and its KV cache of one sequence. Its passes return logits, (tokens, draft vocabulary), and the layer's
    output, (tokens, width), which the next pass overwrites."""

    @property
    def cache_bytes(self) -> int: ...

    def read(self, ids: Sequence[int], hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Feeds the tokens of the text that follow those in the cache.

        Args:
            ids: the tokens, from position 1 on.
            hidden: (tokens, features), the target's hidden states, from position 0 on.

        Returns:
            As said above, of the last token alone.
        """

    def grow(self, ids: Sequence[int] | torch.Tensor, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Feeds tokens of a draft, all at one depth, each with the output of the token before it.

        Args:
            ids: the tokens; numbers, or of a chain a tensor on the device.
            rows: for each the row of the last pass that it follows. Of a chain [0].
        """

    def end(self) -> None:
        """Drops the tokens of the draft."""

    def rewind(self, entries: int) -> int:
        """Rolls back to the first entries of the text; returns how many are left, 0 if there is no way back."""


class BlockNetwork(Protocol):
    """A network that drafts a block in one pass, such as `DFlash`, which documents the members."""

    config: PretrainedConfig
    block_size: int
    draft_ids: torch.Tensor

    def new_cache(self) -> DynamicCache: ...

    def __call__(self, token: int, hidden: torch.Tensor, cache: Cache) -> torch.Tensor: ...

    def drafted(
        self,
        token: torch.Tensor,
        hidden: torch.Tensor,
        cache: Cache,
        positions: torch.Tensor,
        masks: Mapping[str, torch.Tensor | None],
    ) -> torch.Tensor: ...

    def sees(self, kind: str, block: torch.Tensor, positions: torch.Tensor) -> torch.Tensor | None: ...


class BlockRunner(Protocol):
    """A network that drafts blocks, and its KV cache of one sequence."""

    @property
    def cache_bytes(self) -> int: ...

    def read(self, token: int, hidden: torch.Tensor) -> torch.Tensor:
        """Drafts after the text.

        Args:
            token: the last of the text.
            hidden: (positions, features), the target's hidden states before it that the cache lacks.

        Returns:
            (positions, …), what the network returns: one row for each token of the draft, by default its logits.
        """

    def end(self) -> None:
        """Drops the block."""

    def rewind(self, entries: int) -> int:
        """As `LayerRunner.rewind`: at most so many entries."""


def not_numbers(model: PreTrainedModel) -> PlaygroundError:
    """The sentence for `Runner.not_numbers`."""
    return PlaygroundError(
        f"The logits of {type(model).__name__} are not numbers (NaN): its weights are damaged, or its values overflow "
        f"in {precision(model)}. Download it again, or choose a dtype of wider range: bfloat16 or float32."
    )
