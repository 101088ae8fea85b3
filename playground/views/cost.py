"""What a token costs: money at an hourly rate, and energy where the device has a counter."""

from __future__ import annotations

from playground import metrics, theory
from playground.format import number
from playground.trace import Comparison
from playground.views.table import Table

NO_COUNTER = "No energy counter of this device could be read (RAPL, or NVML), so the energy is unknown."
ENERGY = "The energy is the device's during the run, other programs included."


def table(comparison: Comparison, hourly_rate: float | None) -> Table:
    """A row for each lane. `hourly_rate`: of the machine, in any currency; None leaves the price out."""
    rows = []
    for trace in comparison.lanes:
        cells = [number(metrics.measure(trace).tokens_per_s, 1)]
        if hourly_rate:
            cells.append(number(theory.price_of(trace, hourly_rate), 2))
        if measured(comparison):
            cells.append(number(theory.joules_per_token(trace), 2))
        rows.append((trace.lane.name, *cells))
    price, energy = ["price per million tokens"] * bool(hourly_rate), ["J per token"] * measured(comparison)
    columns = ("lane", "tokens/s", *price, *energy)
    return Table("Cost", columns, tuple(rows), numbers=len(columns) - 1)


def measured(comparison: Comparison) -> bool:
    """Whether the energy of a lane is known."""
    return any(theory.joules_per_token(trace) for trace in comparison.lanes)
