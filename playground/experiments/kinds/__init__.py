"""The kinds of experiments: one file each, from which the tab, the terminal's command and the endpoint are made.

docs/add-an-experiment.md shows how to add one.
"""

from __future__ import annotations

from playground.experiments.kinds import acceptance, load, lossless, recommend, suite, sweep
from playground.experiments.kinds.kind import Kind

KINDS: dict[str, Kind] = {
    module.KIND.name: module.KIND for module in (suite, sweep, recommend, lossless, acceptance, load)
}  # by the name that the history has
