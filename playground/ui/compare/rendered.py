"""What the page shows of a whole comparison, by the names of its components: the figures, the files to share and save,
the controls' values. For a long one it takes seconds of Python, which is why these functions run in another process
where strangers ask."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import Any

from playground import export, metrics
from playground.hosting.size_limits import make_room
from playground.presets import Pair
from playground.trace import Comparison
from playground.ui import panels
from playground.ui.compare import prefill, share
from playground.ui.compare.screen import Screen, details
from playground.ui.compare.shown import goes_on_with


def outcome(comparison: Comparison, chosen: str, pairs: Mapping[str, Pair], room: int) -> dict[str, Any]:
    """The run's details, and what `shared` gives.

    Args:
        chosen: the name of the lane beside the baseline.
        room: the bytes that the files of all visitors may take.
    """
    return {"details": details(comparison, chosen)} | shared(comparison, chosen, pairs, room)


def shared(comparison: Comparison, chosen: str, pairs: Mapping[str, Pair], room: int) -> dict[str, Any]:
    """The Share menu's Markdown, the HTML file and the trace; as `outcome`."""
    make_room(room)
    lane = comparison.others[0].lane
    drafter = lane.drafter if len(comparison.others) == 1 else "all-drafters"
    name = f"trace-{lane.target[-60:]}-{drafter[:20]}"
    text, page = share.results(comparison, chosen, pairs)
    trace = json.dumps(export.to_json(comparison)).encode()
    return {"menu": text, "html": panels.saved(f"{name}.html", page), "save": panels.saved(f"{name}.json", trace)}


def file(data: bytes, most: int, pairs: dict[str, Pair], room: int) -> tuple[bytes, str, dict[str, Any]]:
    """Reads a trace file of at most `most` tokens: the comparison, packed; the lane that is shown; the stage, the
    outcome and the controls' values.

    Raises:
        PlaygroundError: it is no trace, or too long.
    """
    comparison = export.load(data, most)
    screen = Screen()
    screen.opened(comparison, "a file")
    screen.goes_on = goes_on_with(comparison, screen.chosen, pairs) is not None
    values = prefill.from_comparison(metrics.beside(comparison, screen.chosen), pairs)
    drawn = {"stage": screen.packed(), **outcome(comparison, screen.chosen, pairs, room)}
    return pickle.dumps(comparison), screen.chosen, drawn | prefill.updates(values, pairs)


def beside(packed: bytes, name: object, pairs: Mapping[str, Pair], room: int) -> dict[str, Any] | None:
    """Another lane beside the baseline of a comparison that `file` packed: the stage and the outcome; None if it has
    no lane of this name."""
    comparison: Comparison = pickle.loads(packed)
    if name not in [trace.lane.name for trace in comparison.others]:
        return None
    screen = Screen()
    screen.load(comparison)
    screen.choose(str(name))
    screen.goes_on = goes_on_with(comparison, str(name), pairs) is not None
    return {"stage": screen.packed(), **outcome(comparison, str(name), pairs, room)}
