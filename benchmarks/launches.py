"""Counts what a round costs the host: kernels that it launches one by one, and waits for the device.

Counts, unlike times, are the same on a CPU as on a GPU, except that a CPU also counts work on the host's own tensors.
A CUDA graph counts as one launch. The clock's waits are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from benchmarks.waits import Waits
from playground.backends.local import LocalRun
from playground.decoding.runners.factory import Runners, Sampling
from playground.decoding.runners.graphs import Graphs, Work
from playground.decoding.runners.static_cache import why_eager
from playground.decoding.runners.static_model import StaticModel
from playground.lane import Lane, Request
from playground.models.load import LoadedModel
from playground.models.store import LoadedPair
from playground.trace import Round

BEFORE = 3  # rounds that are not counted: the prefill, and one-time work of drafters and captures
NO_KERNEL = {
    *("aten::empty", "aten::empty_like", "aten::new_empty", "aten::lift_fresh", "aten::_local_scalar_dense"),
    "aten::detach_",  # of `torch.tensor`
}


class Counts(NamedTuple):
    """The counts of one round, or their means over several."""

    launches: float
    waits: float


class Counter(TorchDispatchMode):
    """Counts launches and waits while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = 0
        self._inside = False
        self.waits = 0
        self._watch = Waits(self._waited)

    @property
    def counts(self) -> Counts:
        return Counts(self.launches, self.waits)

    def _waited(self, name: str) -> None:
        self.waits += 1

    def __enter__(self) -> Counter:
        self._watch.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._watch.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.launches += _is_kernel(func)
        return func(*args, **kwargs or {})

    def capture(self, work: Work) -> Work:
        """Replaces a graph's capture: each replay of the work counts as one launch, with what it replays itself."""
        return partial(self._replay, work)

    def _replay(self, work: Work) -> None:
        self.launches += not self._inside
        inside, self._inside = self._inside, True
        try:
            with _disable_current_modes(), torch._C.DisableTorchFunction():  # nothing in it is launched or waits
                work()
        finally:
            self._inside = inside


@cache
def _is_kernel(func: Any) -> bool:
    return not (func.is_view or func._schema.name in NO_KERNEL)


def of_a_round(models: LoadedPair, lane: Lane, request: Request, *, compiled: bool) -> Counts | None:
    """Returns the means over the rounds of a run; None if it has too few rounds."""
    counter = Counter()
    static = partial(_static, capture=counter.capture)
    if compiled:
        sampling = {"sampling": Sampling(Graphs("counted", counter.capture))}
        target = static(models.target, "target")
        models = replace(models, target=replace(target, static=target.static | sampling))
        if isinstance(models.drafting, LoadedModel):
            models = replace(models, drafting=static(models.drafting, "assistant"))
    return mean_of(counter, LocalRun(models, lane, request, Runners(compiled)).rounds)


def mean_of(counter: Counter, run: Iterable[Round]) -> Counts | None:
    """Returns the means over the rounds after the first BEFORE; None if there are no others."""
    rounds = of_rounds(counter, run)
    if not rounds:
        return None
    return Counts(mean(each.launches for each in rounds), mean(each.waits for each in rounds))


def of_rounds(counter: Counter, run: Iterable[Round]) -> list[Counts]:
    """Returns the counts of each round after the first BEFORE."""
    with counter:
        so_far = [counter.counts for _ in run]
    each = [Counts(b.launches - a.launches, b.waits - a.waits) for a, b in itertools.pairwise(so_far)]
    return each[BEFORE - 1 :]


def _static(model: LoadedModel, use: str, capture: Callable[[Work], Work]) -> LoadedModel:
    if why_eager(model.model):
        return model
    return replace(model, static={use: StaticModel(model.model, Graphs("counted", capture))})
