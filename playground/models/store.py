"""Keeps the models of one pair in memory, so that a second run starts at once."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from playground.errors import PlaygroundError
from playground.models.compatibility import check_same_tokenizer
from playground.models.device import resolve_device, resolve_dtype
from playground.models.load import LoadedModel, load
from playground.presets import Pair
from playground.progress import Progress


@dataclass
class LoadedPair:
    """`assistant` is None where the drafter needs no model of its own."""

    pair: Pair
    target: LoadedModel
    assistant: LoadedModel | None


class ModelStore:
    """Holds one pair at a time. Asking for another one frees the memory of the models that it does not share first.

    Safe to use from several threads: the second waits until the first has its pair.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[tuple[str, torch.dtype, torch.device], LoadedModel] = {}
        self._checked: set[tuple[str, str]] = set()

    def get(
        self,
        pair: Pair,
        *,
        drafter: str,
        dtype: str = "auto",
        device: str = "auto",
        progress: Callable[[Progress], None],
    ) -> LoadedPair:
        """The pair, loaded. The assistant is loaded only for the drafter "assistant". A dtype of "auto" is the pair's.

        Raises:
            PlaygroundError: the pair has no assistant, or one with another tokenizer; a model cannot be had or loaded.
        """
        if drafter == "assistant" and pair.assistant is None:
            raise PlaygroundError(
                f"The pair {pair.title} has no assistant model. Choose another drafter, or name an assistant."
            )
        where = resolve_device(device)
        format_ = resolve_dtype(pair.dtype if dtype == "auto" else dtype, where)
        with self._lock:
            self._keep({(name, format_, where) for name in (pair.target, pair.assistant) if name})
            target = self._load(pair.target, format_, where, progress)
            if drafter != "assistant":
                return LoadedPair(pair, target, None)
            assistant = self._load(pair.assistant, format_, where, progress)
            if (pair.target, pair.assistant) not in self._checked:
                check_same_tokenizer(target, assistant)
                self._checked.add((pair.target, pair.assistant))
            return LoadedPair(pair, target, assistant)

    def _keep(self, wanted: set[tuple[str, torch.dtype, torch.device]]) -> None:
        if self._models.keys() <= wanted:
            return
        self._models = {key: model for key, model in self._models.items() if key in wanted}
        self._checked.clear()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _load(
        self, name: str, dtype: torch.dtype, device: torch.device, progress: Callable[[Progress], None]
    ) -> LoadedModel:
        key = (name, dtype, device)
        if key not in self._models:
            self._models[key] = load(name, dtype, device, progress)
        return self._models[key]
