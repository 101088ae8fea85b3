"""The kinds of experiments, one file each. Tab, command and endpoint of a kind are made from it.

docs/add-an-experiment.md shows how to add one.
"""

from __future__ import annotations

from playground.experiments.kinds import doctor, load, lossless, recommend, suite, sweep, traffic
from playground.experiments.kinds.kind import Kind

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        suite.KIND,
        recommend.KIND,
        sweep.KIND,
        traffic.KIND,
        sweep.DEPTH,
        sweep.ACCEPTANCE,
        lossless.KIND,
        doctor.KIND,
        load.KIND,
    )
}  # by the name in the history
