"""Makes the runners of models: static ones where they are wanted and the model allows it, else native ones where the
CPU engine runs the model, else eager ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from playground.decoding.runners.base import Runner
from playground.decoding.runners.buffers import WIDTHS
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.graphs import Graphs, graphs_for
from playground.decoding.runners.native import NativeRunner
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_cache import why_eager
from playground.decoding.runners.static_model import StaticModel
from playground.models.cpu.native.model import NativeModel
from playground.models.load import LoadedDrafter, LoadedModel

NEW_TOKENS = 2048


class Sampling(NamedTuple):
    """The captured work of sampling and verification with a target, which outlives the runs."""

    graphs: Graphs


@dataclass
class Runners:
    """Makes the runners of a backend.

    Attributes:
        compiled: whether models get static runners where possible.
        room: tokens of the longest sequence requested so far, for which static caches allocate memory at once.
        widest: tokens of the widest pass, which static runners capture at once.
        prompt: tokens of the next prompt, for which native runners allocate memory before a clock runs.
    """

    compiled: bool = False
    room: int = 0
    widest: int = WIDTHS[-1]
    prompt: int = 0

    def expect(self, prompt: int, new_tokens: int, drafted: int, *models: LoadedModel | LoadedDrafter) -> None:
        """Prepares for a request of `prompt` and `new_tokens` tokens, of which at most `drafted` are verified in a
        pass; so are the runners that an earlier turn left with `models`. For an answer of more than NEW_TOKENS a static
        cache grows during the run."""
        self.room = max(self.room, prompt + min(new_tokens, NEW_TOKENS))
        self.widest = max(self.widest, drafted + 1)
        self.prompt = prompt
        for static in (static for model in models for static in model.static.values()):
            if isinstance(static, StaticModel):
                static.room = max(static.room, self.room)

    def __call__(self, loaded: LoadedModel, use: str = "target") -> Runner:
        """Makes a runner with an empty cache. Its buffers and graphs are stored with the model, one set for each `use`:
        a model can be its own drafter."""
        if not self.compiled or why_eager(loaded.model):
            if isinstance(loaded.native, NativeModel):
                return NativeRunner(loaded.model, loaded.native, self.prompt)
            return EagerRunner(loaded.model)
        if use not in loaded.static:
            loaded.static[use] = StaticModel(loaded.model, graphs_for(loaded.model.device))
        return StaticRunner(loaded.static[use], self.room, self.widest if use == "target" else WIDTHS[-1])

    def sampling(self, loaded: LoadedModel) -> Graphs | None:
        """Returns what captures sampling and verification with a target; None where nothing is compiled."""
        target = loaded.static.get("target")
        if not self.compiled or (target and target.graphs.failure):
            return None
        return loaded.static.setdefault("sampling", Sampling(graphs_for(loaded.model.device))).graphs

    def clear(self, *models: LoadedModel | LoadedDrafter) -> None:
        """Drops what static runners keep with these models, and what is expected, since memory ran out."""
        self.room, self.widest, self.prompt = 0, WIDTHS[-1], 0
        for model in models:
            model.static.clear()

    def native(self, loaded: LoadedModel) -> bool:
        """True where the CPU engine runs the model."""
        return not self.compiled and isinstance(loaded.native, NativeModel)

    def describe(self, loaded: LoadedModel) -> str:
        """Describes how the target is run, such as "compiled (CUDA graphs)", with the reason where it is run eagerly
        although `compiled` is set."""
        if not self.compiled:
            native = loaded.native
            if isinstance(native, NativeModel):
                return f"native ({native.engine.name})"
            return f"eager: {native}" if native else "eager"
        if reason := why_eager(loaded.model):
            return f"eager: {reason}"
        if "target" in loaded.static:
            return loaded.static["target"].how
        return graphs_for(loaded.model.device).kind

    def seconds(self, *models: LoadedModel | LoadedDrafter) -> float | None:
        """Returns the seconds that capturing took; None if nothing was captured."""
        return sum(static.graphs.seconds for model in models for static in model.static.values()) or None


def wants_compiled(choice: str, device: torch.device) -> bool:
    """Returns whether to compile. `choice`: "on", "off", or "auto", which is on where kernel launches limit a pass: on
    CUDA."""
    return choice == "on" or (choice == "auto" and device.type == "cuda")
