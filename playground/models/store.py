"""Keeps the models of one pair in memory, so that a second run starts at once."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from playground.models.compatibility import check_same_tokenizer
from playground.models.device import resolve_device, resolve_dtype
from playground.models.load import LoadedModel, load
from playground.models.trained import TrainedDrafter, load_trained
from playground.presets import Pair
from playground.progress import Progress

M = TypeVar("M", LoadedModel, TrainedDrafter)


@dataclass
class LoadedPair:
    """`assistant` and `trained` are None where the drafter does not need them."""

    pair: Pair
    target: LoadedModel
    assistant: LoadedModel | None = None
    trained: TrainedDrafter | None = None


class ModelStore:
    """Holds one pair at a time. Asking for another one frees the memory of the models that it does not share first.

    Safe to use from several threads: the second waits until the first has its pair.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[tuple[str, torch.dtype, torch.device], LoadedModel | TrainedDrafter] = {}
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
        """The pair, loaded, with what the drafter needs and no more. A dtype of "auto" is the pair's.

        Raises:
            PlaygroundError: the pair has nothing for this drafter, or something that does not fit the target; a model
            cannot be had or loaded.
        """
        weights = pair.weights_of(drafter)
        where = resolve_device(device)
        format_ = resolve_dtype(pair.dtype if dtype == "auto" else dtype, where)
        with self._lock:
            trained_names = [f"{name} for {pair.target}" for name in (pair.mtp, pair.heads) if name]
            names = [name for name in (pair.target, pair.assistant) if name] + trained_names
            self._keep({(name, format_, where) for name in names})
            target = self._load(pair.target, format_, where, partial(load, pair.target, format_, where, progress))
            if weights is None:
                return LoadedPair(pair, target)
            if drafter != "assistant":
                key = f"{weights} for {pair.target}"  # it shares the target's weights
                trained = self._load(key, format_, where, partial(load_trained, weights, target))
                return LoadedPair(pair, target, trained=trained)
            assistant = self._load(weights, format_, where, partial(load, weights, format_, where, progress))
            if (pair.target, weights) not in self._checked:
                check_same_tokenizer(target, assistant)
                self._checked.add((pair.target, weights))
            return LoadedPair(pair, target, assistant)

    def _keep(self, wanted: set[tuple[str, torch.dtype, torch.device]]) -> None:
        if self._models.keys() <= wanted:
            return
        self._models = {key: model for key, model in self._models.items() if key in wanted}
        self._checked.clear()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _load(self, name: str, dtype: torch.dtype, device: torch.device, load_it: Callable[[], M]) -> M:
        key = (name, dtype, device)
        if key not in self._models:
            self._models[key] = load_it()
        return self._models[key]
