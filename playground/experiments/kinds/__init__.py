"""The kinds of experiments, one file each. Tab, command and endpoint of a kind are made from it.

docs/add-an-experiment.md shows how to add one.
"""

from __future__ import annotations

from playground.experiments.kinds import acceptance, depth, load, lossless, recommend, suite, sweep, traffic
from playground.experiments.kinds.kind import Kind

KINDS: dict[str, Kind] = {
    module.KIND.name: module.KIND for module in (suite, recommend, sweep, traffic, depth, acceptance, lossless, load)
}  # by the name in the history
