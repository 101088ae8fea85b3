"""Holds the models of one pair in memory, so that a second run starts at once."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from traceback import clear_frames
from typing import Any, TypeVar, cast

import torch
from transformers import PreTrainedTokenizerBase

from playground.drafting_methods import METHODS, DraftingMethod
from playground.errors import check
from playground.models.cpu.packed import is_packed, lay_out, pack
from playground.models.cpu.threads import tensors_apart
from playground.models.device import (
    COST,
    free_bytes,
    is_spread,
    keeps_blocks,
    resolve_device,
    resolve_dtype,
    weight_bits,
)
from playground.models.fit import Fit, check_before_fetching, fits, is_here
from playground.models.fused import fuse_and_join
from playground.models.load import Format, LoadedDrafter, LoadedModel, load, sampling_defaults
from playground.models.networks.readings import Reading, read_as
from playground.models.sizing import weights_bytes
from playground.presets import NATIVE, Pair
from playground.progress import Progress

M = TypeVar("M", LoadedModel, LoadedDrafter)
# The name of a model, or of a drafter for a target; its format; the target's adapter and the drafter's reading.
Key = tuple[str, Format, str]


@dataclass
class LoadedPair:
    """A pair whose models are in memory. `drafting`: the drafter's weights: a model, which may be the target's first
    layers, or a network that reads the target's hidden states; None for a lookup."""

    pair: Pair
    target: LoadedModel
    drafting: LoadedModel | LoadedDrafter | None = None


class ModelStore:
    """Holds one pair at a time. Loading another pair first frees the models that the two do not share.

    It is safe for several threads: the second waits until the first has its pair.

    Attributes:
        current: the pair whose target is in memory.
    """

    def __init__(self) -> None:
        self.current: Pair | None = None
        self._lock = threading.Lock()
        self._models: dict[Key, LoadedModel | LoadedDrafter] = {}
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
        """Loads the pair with only the weights that the drafter needs. A dtype of "auto" is the pair's.

        Raises:
            PlaygroundError: the pair has no weights for this drafter, or weights that do not fit the target; a model
                cannot be fetched or loaded; a model to fetch is too large for the device.
        """
        pair.weights_of(drafter)  # raises where the drafter lacks its weights
        kind = pair.drafts_by(drafter)
        where = resolve_device(device)
        named = pair.dtype if dtype == "auto" else dtype
        format_ = Format(resolve_dtype(named, where), where, weight_bits(named, where), keeps_blocks(named, where))
        progress(Progress(f"Loading {pair.title}"))  # shown even while another run or the start of the page loads it
        with self._lock:
            networks = [f"{drafting} for {pair.target}" for drafting in (*pair.models, NATIVE)]
            self._keep({(model, format_) for model in (*pair.models, *networks)})
            if (pair.target, format_, "") not in self._models:
                check_before_fetching(pair, where)
            self.current = None
            target = self._model(pair.target, format_, progress, pair.adapter)
            self.current = pair
            if kind is None:
                return LoadedPair(pair, target)
            method, weights = METHODS[kind], str(pair.weights[kind])
            check(
                method.weights == "model" or not is_spread(target.model),
                f"{target.name} is too large for one GPU. {COST} Choose an assistant, a lookup or a smaller target.",
            )
            if method.weights == "layers":
                return LoadedPair(pair, target, method.resolve(method.loader)(target, pair.weights[kind]))
            if method.weights == "network":
                reading = pair.readings.get(kind, {})
                network = partial(self._network, method, weights, target, progress, reading)
                how = f"{pair.adapter} {dict(reading)}" if reading else pair.adapter
                return LoadedPair(pair, target, self._load((f"{weights} for {pair.target}", format_, how), network))
            assistant = self._model(weights, format_, progress)
            if method.check and (pair.target, weights) not in self._checked:
                method.resolve(method.check)(target, assistant)
                self._checked.add((pair.target, weights))
            return LoadedPair(pair, target, assistant)

    def fit(self, pair: Pair, device: str = "auto") -> Fit:
        """Decides whether the pair can run now; models of other pairs are freed first."""
        where = resolve_device(device)
        wanted = {*pair.models, *(f"{drafting} for {pair.target}" for drafting in (*pair.models, NATIVE))}
        held = {name: model for (name, *_), model in tuple(self._models.items())}
        if pair.target in held and is_here(pair):
            return Fit("ready", 0, free_bytes(where), 0, "It is in memory.")
        return fits(pair, where, sum(weights_bytes(model.module) for name, model in held.items() if name not in wanted))

    def sampling_defaults(self, name: str) -> dict[str, float]:
        """Returns the checkpoint's own sampling settings, as fields of a Request; none if the model is not in
        memory."""
        model = self._held(name)
        return sampling_defaults(model.model.generation_config) if model else {}

    def tokenizer(self, name: str) -> PreTrainedTokenizerBase | None:
        """Returns the checkpoint's tokenizer; None if the model is not in memory."""
        model = self._held(name)
        return model.tokenizer if model else None

    def _held(self, name: str) -> LoadedModel | None:
        held = tuple(self._models.items())
        return next((model for (of, *_), model in held if of == name and isinstance(model, LoadedModel)), None)

    def _keep(self, wanted: set[tuple[str, Format]]) -> None:
        left = {key: model for key, model in self._models.items() if key[:2] in wanted}
        if len(left) == len(self._models):
            return
        self._models = left
        for model in self._models.values():
            model.static.clear()  # it may hold layers that drafted for the model, as the caches of turns do
            if isinstance(model, LoadedModel):
                model.prefix_caches.clear()
        self._checked.clear()
        _collect()

    def _model(
        self, name: str, format_: Format, progress: Callable[[Progress], None], adapter: str = ""
    ) -> LoadedModel:
        def load_it() -> LoadedModel:
            loaded = load(name, format_, progress, adapter)
            if not is_packed(loaded.model):
                lay_out(loaded.model)
            return loaded

        return self._load((name, format_, adapter), load_it)

    @staticmethod
    def _network(
        method: DraftingMethod,
        name: str,
        target: LoadedModel,
        progress: Callable[[Progress], None],
        reading: Reading,
    ) -> LoadedDrafter:
        def load_it(*given: Any) -> LoadedDrafter:
            loaded: LoadedDrafter = method.resolve(method.loader)(*given)
            read_as(loaded.network, reading)
            return loaded

        if not is_packed(target.model):
            loaded = load_it(name, target, progress)
            fuse_and_join(loaded.network, target.model.device)
            lay_out(loaded.network)
            return loaded
        with tensors_apart():
            loaded = load_it(name, target, progress)
            pack(loaded.network, drafts=True)
        return loaded

    def _load(self, key: Key, load_it: Callable[[], M]) -> M:
        if key not in self._models:
            try:
                self._models[key] = load_it()
            except BaseException as error:
                _forget(error)
                raise
        return cast(M, self._models[key])  # what `load_it` returned under this key


def _forget(error: BaseException | None) -> None:
    """Frees the tensors that were read before an error was raised: the frames of its traceback hold them."""
    while error:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    _collect()


def _collect() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
