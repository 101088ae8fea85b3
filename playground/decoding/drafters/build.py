"""Builds the drafter of a lane. Each method has its own builder in its drafter's file; its registration names it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from playground.decoding.drafters.base import Drafter
from playground.decoding.pass_cost import PassCost, cost_of
from playground.decoding.runners.base import Runner
from playground.decoding.runners.factory import Runners
from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError
from playground.lane import Lane
from playground.models.load import LoadedDrafter, LoadedModel
from playground.models.store import LoadedPair


@dataclass(frozen=True)
class Setup:
    """The arguments of a builder. They hold nothing of a request, since a drafter serves all turns of a conversation: a
    request's sampler comes with `Drafter.propose`.

    Attributes:
        models: the target and the drafter's weights, loaded.
        target: the runner that the decode loop uses, with the target's KV cache.
        runners: makes the runners of draft models.
    """

    models: LoadedPair
    lane: Lane
    target: Runner
    runners: Runners = field(default_factory=Runners)

    @cached_property
    def cost(self) -> PassCost:
        """The measured cost of the target's passes, as wide as the lane's drafts need them."""
        tree = METHODS[self.lane.drafter].tree
        most = 1 + (self.lane.nodes if tree else self.lane.lookahead)
        return cost_of(self.models.target, self.runners, self.target, most)

    @property
    def priced(self) -> list[PassCost]:
        """Returns the `cost` as arguments of a chain's constructor: none where the lane's policy does not go by it."""
        return [self.cost] if self.lane.policy == "auto" else []

    @property
    def eos_ids(self) -> Set[int]:
        """The tokens after which nothing is drafted."""
        return self.models.target.eos_ids

    @property
    def assistant(self) -> LoadedModel:
        """The draft model, for methods whose weights are a model or the target's layers."""
        assert isinstance(self.models.drafting, LoadedModel)
        return self.models.drafting

    @property
    def network(self) -> nn.Module:
        """The draft network, for methods whose weights are a network."""
        assert isinstance(self.models.drafting, LoadedDrafter)
        return self.models.drafting.network


def build_drafter(models: LoadedPair, lane: Lane, target: Runner, runners: Runners | None = None) -> Drafter:
    """Builds the drafter of a lane. `runners`: eager ones by default.

    Raises:
        PlaygroundError: the lane's method cannot draft for the target.
    """
    method = METHODS[lane.drafter]
    return method.resolve(method.builder)(Setup(models, lane, target, runners or Runners()))


def refuse_recurrent(model: Runner, name: str) -> None:
    """Refuses a recurrent model, for methods that roll back or branch within a round.

    Raises:
        PlaygroundError: the model has recurrent layers.
    """
    if model.recurrent:
        raise PlaygroundError(
            f"{name} has recurrent layers. Their state cannot drop tokens it has read, such as rejected ones or the "
            "other branches of a draft tree. Choose another drafter."
        )
