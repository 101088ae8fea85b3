"""A long experiment while it runs, and in the list of all, in words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from playground.experiments.events import LevelDone, PartDone, PromptDone
from playground.experiments.history import Entry
from playground.format import ratio
from playground.views.load import by_level
from playground.views.table import Table

MINUTE_S, HOUR_S = 60, 3600


def state(entry: Entry, left_s: float | None = None) -> str:
    """Such as "Prompt 3 of 12: MTP tree. About 4 minutes left."."""
    match entry.status:
        case "running":
            left = f". {about(left_s)} left." if left_s else ""
            return f"{entry.note or 'Running'}{left}"
        case "failed":
            return entry.note
        case "stopped":
            note = f": {entry.note}" if entry.note else ""
            return f"Stopped at {entry.fraction:.0%}{note}. Resume continues from there."
    return "Finished."


def about(seconds: float) -> str:
    """A duration, rounded as an estimate is."""
    for unit, name in ((HOUR_S, "hour"), (MINUTE_S, "minute")):
        if seconds >= 1.5 * unit:
            return f"About {round(seconds / unit)} {name}s"
    return "About a minute" if seconds > MINUTE_S / 2 else "Less than a minute"


def at(seconds: float) -> str:
    """A moment, in UTC."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"


def so_far(parts: Sequence[PartDone]) -> Table:
    """Of the parts that have ended, one or more: the levels of a load; or the prompts of the last stage, with each
    lane's speed-up, or why it has none."""
    last = parts[-1]
    if isinstance(last, LevelDone):
        return by_level(last.points)
    stage = last.stage
    done = [event for event in parts if isinstance(event, PromptDone) and event.stage == stage]
    lanes = list(dict.fromkeys(lane for event in done for lane in event.speedups))
    rows = []
    for event in reversed(done):
        failure = event.result.failure
        cells = [ratio(event.speedups.get(lane)) for lane in lanes]
        name = f"{event.result.question + 1} {event.category}"
        rows.append((f"{name}: {failure.reason}" if failure else name, *cells))
    return Table(f"{stage or 'So far'}: speed-up by prompt", ("prompt", *lanes), tuple(rows), numbers=len(lanes))
