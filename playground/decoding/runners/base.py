"""The interface between models and their users, the loop and the drafters: feed tokens, commit the accepted ones.

    runner.forward(ids, keep) -> logits        feeds tokens, all of which the cache then holds
    runner.commit(length, path)                rolls the cache back to what was accepted

A runner hides how a pass is run and how its cache is stored. It knows neither drafts nor sampling. Layers and networks
that draft from a model's hidden states have runners of their own (`LayerRunner`, `BlockRunner`).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from playground.decoding.transfer import to_device
from playground.errors import PlaygroundError
from playground.models.attention import context_of
from playground.models.networks.dflash import DFlash
from playground.models.networks.eagle3 import Eagle3Head
from playground.models.networks.mtp import MtpLayer, NativeLayer
from playground.models.quantised import precision

Its = TypeVar("Its", bound="Runner")
Tensors = tuple[torch.Tensor, ...]
RecursiveLayer = MtpLayer | Eagle3Head | NativeLayer  # those that can read their own output as hidden states
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"  # transformers' layer types


class Runner(ABC):
    """A causal language model and its cache of one sequence. Target and assistant are both run this way.

    Attributes:
        length: tokens of the sequence that the cache holds.
        passes: forward passes run so far, including those of `commit`.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.length = 0
        self.passes = 0
        self._hidden: torch.Tensor | None = None  # of the tokens of the last pass, if any layers are watched

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def vocab_size(self) -> int:
        """The number of columns of the logits."""
        return self.model.config.get_text_config(decoder=True).vocab_size

    @property
    def context_limit(self) -> int:
        """The longest sequence, in tokens, that the model takes."""
        return context_of(self.model.config)

    @property
    def hidden(self) -> torch.Tensor:
        """The hidden states of the last pass's tokens, (tokens, layers x width), with those of the watched layers
        concatenated. Tokens that were rolled back are not included."""
        assert self._hidden is not None, "watched, after a pass"
        return self._hidden

    @property
    def recurrent(self) -> bool:
        """True where the model has a recurrent state: rolling back then costs a pass over the accepted tokens."""
        return False

    @property
    def takes_trees(self) -> bool:
        """True where a draft tree can be verified exactly."""
        return True

    @property
    def discards_old(self) -> bool:
        """True where `commit` also drops old entries, so that the cache cannot be rolled back past the last commit."""
        return False

    @property
    @abstractmethod
    def cache_bytes(self) -> int:
        """The size in bytes of the tokens in the cache."""

    @property
    def shared_kv(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Layer type -> keys and values, both (1, heads, entries, head dimension), of the last layer of that type:
        transformers' `shared_kv_states`. A sliding window has its last window + 1 entries, which the masks of Gemma 4's
        assistants cover."""
        raise NotImplementedError("Gemma 4, whose assistants read it, is run by torch")

    def share_kv(self) -> None:
        """Makes each sliding window hold two more entries from now on, for `shared_kv`. By default nothing, as where
        windows hold all entries."""
        return None

    def prepare(self) -> None:
        """Prepares the next pass: allocates memory and captures graphs. Must be called where nothing is timed; a pass
        that was not prepared is only slower. By default nothing has to be prepared."""
        return None

    def computed(self, tokens: int) -> int:
        """Returns how many tokens a pass over `tokens` computes, padding included; by default there is none."""
        return tokens

    @abstractmethod
    def forward(self, ids: Sequence[int] | torch.Tensor, keep: int, tree: Sequence[int] | None = None) -> torch.Tensor:
        """Feeds the tokens that follow those in the cache.

        Args:
            ids: token ids; numbers, or for a single token a (1,) tensor on the device.
            keep: how many of the last tokens to return logits for.
            tree: if the last of `ids` are a draft tree: for each of its tokens the index of its parent in the tree, -1
                for the last token before the tree.

        Returns:
            (keep, vocabulary) logits in float32, on the model's device. Their attribute `highest`, where they have it,
            is the list of the highest column of each row, -1 if the row has NaN.
        """

    def not_numbers(self) -> PlaygroundError:
        """Returns the error to raise where NaN is read from the logits. `forward` does not check them: that would wait
        for the device once more."""
        return PlaygroundError(
            f"The logits of {type(self.model).__name__} are not numbers (NaN): its weights are damaged, or its values "
            f"overflow in {precision(self.model)}. Download it again, or choose a dtype of wider range: bfloat16 or "
            "float32."
        )

    @abstractmethod
    def commit(self, length: int, path: Sequence[int] = ()) -> None:
        """Rolls the cache back to its first `length` tokens and those with the indices `path` among the tokens after
        them. Must follow every pass, or the passes of one draft, even where nothing is dropped."""

    def run(self, key: Hashable, work: Callable[..., Tensors], *given: torch.Tensor) -> Tensors:
        """Returns `work(*given)`, with all tensors on the device, for a network that drafts for this model; a static
        runner replays it where it was captured, see `Graphs.call`. `key` is unique to what `work` depends on in
        addition to its arguments."""
        return work(*(to_device(tensor, self.device) for tensor in given))

    @abstractmethod
    def watch(self, layers: Sequence[int]) -> None:
        """Starts to collect `hidden`: the output of each of these layers, counted from 0. -1 is the output of the last
        layer after the final norm."""

    @abstractmethod
    def layer(self, layer: RecursiveLayer) -> LayerRunner:
        """Returns a runner, with an empty cache, of a layer that drafts from this model's hidden states. It is static
        or eager like this one, where the layer allows it."""

    @abstractmethod
    def block(self, network: DFlash) -> BlockRunner:
        """Returns a runner, with an empty cache, of a network that drafts a block at once from this model's hidden
        states. It is static or eager like this one, where the network allows it."""

    @abstractmethod
    def first_layers(self, layers: PreTrainedModel) -> Runner:
        """Returns a runner of `layers`, the first layers of this model, on this runner's cache of those layers. Tokens
        that it feeds must be rolled back before this runner's next pass. It has its own `length`."""

    def _view(self: Its, layers: PreTrainedModel) -> Its:
        """Returns a copy that runs the first layers, and watches none. Its cache is still that of all."""
        view = copy.copy(self)
        view.model, view.passes, view._hidden = layers, 0, None
        return view

    def _roll_back(self, length: int, path: Sequence[int]) -> None:
        """Implements `commit` for the length and the hidden states."""
        tail, self.length = self.length - length, length + len(path)
        if self._hidden is None:
            return
        start = max(0, len(self._hidden) - tail)
        if not in_place(path):
            rows = to_device([start + i for i in path], self.device)
            self._hidden[start : start + len(path)] = self._hidden.index_select(0, rows)
        self._hidden = self._hidden[: start + len(path)]


def in_place(path: Sequence[int]) -> bool:
    """True where nothing has to be moved: for a chain, and a tree's first branch."""
    return list(path) == list(range(len(path)))


class LayerRunner(Protocol):
    """A layer and its KV cache of one sequence. Its passes return logits, (tokens, draft vocabulary), and the layer's
    output, (tokens, width), which the next pass may overwrite."""

    @property
    def cache_bytes(self) -> int: ...

    def read(self, ids: Sequence[int], hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Feeds the tokens of the text that follow those in the cache.

        Args:
            ids: the tokens, from position 1 on.
            hidden: (tokens, features), the target's hidden states, from position 0 on.

        Returns:
            Logits, (1, draft vocabulary), and output, (1, width), of the last token.
        """

    def grow(self, ids: Sequence[int] | torch.Tensor, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Feeds tokens of a draft, all at one depth, each with the output of the token before it.

        Args:
            ids: the tokens; numbers, or for a chain a (1,) tensor on the device.
            rows: for each token the row of the last pass that it follows; [0] for a chain.
        """

    def end(self) -> None:
        """Drops the tokens of the draft."""

    def rewind(self, entries: int) -> int:
        """Rolls back to the first `entries` entries of the text; returns how many are left, 0 if it cannot roll
        back."""


class BlockRunner(Protocol):
    """A network that drafts blocks, and its KV cache of one sequence."""

    @property
    def cache_bytes(self) -> int: ...

    def read(self, token: int, hidden: torch.Tensor) -> torch.Tensor:
        """Drafts after the text.

        Args:
            token: the last token of the text.
            hidden: (positions, features), the target's hidden states before it that the cache lacks.

        Returns:
            The network's own output, (positions, …): one row for each token of the draft, by default its logits.
        """

    def end(self) -> None:
        """Drops the block."""

    def rewind(self, entries: int) -> int:
        """Rolls back to at most the first `entries` entries of the text; returns how many are left, 0 if it cannot roll
        back."""
