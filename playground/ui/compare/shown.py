"""What a page shows: a comparison, which of its lanes, and what ran it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from playground.experiments.history import new_id
from playground.lane import LOCAL, preset_of
from playground.presets import Pair
from playground.trace import Comparison
from playground.ui.compare.opened_traces import Held
from playground.ui.compare.screen import Screen


@dataclass(frozen=True)
class Shown:
    """What a page shows. `held`: the comparison, or where a trace from a file is kept. `chosen`: the name of the lane
    beside the baseline. `pair`: what ran it on this page, so that it can run again; None for a trace from a file. `id`:
    what the history calls it; a repeat keeps it."""

    held: Comparison | Held
    chosen: str
    pair: Pair | None = None
    id: str = field(default_factory=new_id)

    @property
    def comparison(self) -> Comparison:
        return self.held.comparison if isinstance(self.held, Held) else self.held

    def screen(self) -> Screen:
        screen = Screen()
        screen.load(self.comparison)
        screen.choose(self.chosen)
        screen.repeatable = screen.goes_on = self.repeatable
        return screen

    @property
    def repeatable(self) -> bool:
        return self.pair is not None and all(trace.finish != "stopped" for trace in self.comparison.lanes)


def goes_on_with(comparison: Comparison, chosen: str, pairs: Mapping[str, Pair]) -> Pair | None:
    """The preset whose models decode the next turn in both lanes of a run from elsewhere, as they are; None where there
    is none."""
    both = (comparison.standard, next(trace for trace in comparison.others if trace.lane.name == chosen))
    lanes = [trace.lane for trace in both]
    plain = all(it.backend == LOCAL and it.rule == "exact" and not (it.adapter or it.drawn) for it in lanes)
    whole = plain and lanes[0].drafter == "none" and all(trace.finish != "stopped" for trace in both)
    return preset_of(lanes[1], pairs.values()) if whole and lanes[0].target == lanes[1].target else None
