"""Records as a table, and as the page that filters and sorts them. They may come from strangers: all words are text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from html import escape

from playground.drafting_methods import METHODS
from playground.format import UNKNOWN, count, number, percent, ratio, span
from playground.results.record import Drafted, Record
from playground.views import scripts
from playground.views.replay_file import framed
from playground.views.table import Table

PUBLISHED = "published, not measured here"
INTRO = (
    "How much faster each drafter was than standard decoding, run by run. A bar is the 95 % interval over prompts or "
    "runs, its mark the speed-up of all tokens over all time."
)
EMPTY = "There is no record here yet. `playground record make` makes one of a result."
FILTERS = {"target": "Model", "drafter": "Drafter", "hardware": "Hardware", "source": "Source"}
SORTS = {"speedup": "speed-up", "length": "tokens per check", "target": "model", "drafter": "drafter",
         "hardware": "hardware", "created": "date"}  # fmt: skip


def table(records: Mapping[str, Record]) -> Table:
    """Return a row for each drafter of each record."""
    rows = [
        (
            it.target,
            lane.name,
            it.hardware,
            it.dtype or UNKNOWN,
            ratio(lane.speedup, lane.interval),
            number(lane.length),
            _identical(it, lane),
            str(it.runs or UNKNOWN) if it.source == "measured" else PUBLISHED,
        )
        for it in records.values()
        for lane in it.lanes
    ]
    columns = ("target", "drafter", "hardware", "format", "speed-up", "tokens per check", "identical", "runs")
    return Table("Records", columns, tuple(rows), numbers=4)


def page(records: Mapping[str, Record]) -> str:
    """Return the records as one HTML file, which opens without a server and without a network."""
    body = f'<h1>Records</h1><p>{escape(INTRO)}</p><div id="records">{html(records)}</div>'
    script = f'{scripts.bundle("records.js")}.records({{ element: document.getElementById("records") }});'
    return framed("Records · Speculative Decoding Playground", body, script)


def html(records: Mapping[str, Record], opens: Collection[str] = ()) -> str:
    """Return filters and rows as HTML, the fastest row first. The script in `assets/records.js` makes them work.
    `opens`: the records whose run the page can show."""
    rows = [(name, it, lane) for name, it in records.items() for lane in it.lanes]
    if not rows:
        return f"<p>{escape(EMPTY)}</p>"
    rows.sort(key=lambda row: -row[2].speedup)
    found = [_keys(it, lane) for _, it, lane in rows]
    filters = "".join(_select(key, label, sorted({keys[key] for keys in found})) for key, label in FILTERS.items())
    sorts = "".join(f'<option value="{key}">{label}</option>' for key, label in SORTS.items())
    widest = max(max((lane.speedup, *(lane.interval or ()))) for _, _, lane in rows)
    shown = "".join(_row(*row, keys, widest, row[0] in opens) for row, keys in zip(rows, found, strict=True))
    return (
        f'<div class="sift">{filters}<label>Sort by <select name="sort">{sorts}</select></label></div>'
        f'<p class="found" aria-live="polite">{count(len(rows), "row")}</p><div class="list">{shown}</div>'
    )


def _keys(it: Record, lane: Drafted) -> dict[str, str]:
    """Return what rows are filtered and sorted by."""
    return {
        "target": it.target,
        "drafter": METHODS[lane.drafter].label if lane.drafter in METHODS else lane.drafter,
        "hardware": it.hardware,
        "source": "measured" if it.source == "measured" else PUBLISHED,
        "speedup": f"{lane.speedup}",
        "length": f"{lane.length or 0}",
        "created": it.created,
    }


def _select(key: str, label: str, values: list[str]) -> str:
    options = "".join(f"<option>{escape(value)}</option>" for value in values)
    return f'<label>{label} <select name="{key}"><option value="">all</option>{options}</select></label>'


def _row(name: str, it: Record, lane: Drafted, keys: Mapping[str, str], widest: float, opens: bool) -> str:
    published = it.source == "published"
    data = "".join(f' data-{key}="{escape(value)}"' for key, value in keys.items())
    where = " · ".join(filter(None, [it.hardware, (it.dtype or "").partition(",")[0], it.suite]))
    between = span(*lane.interval) if lane.interval else ""
    mark = f" <em>{PUBLISHED}</em>" if published else ""
    return (
        f'<details class="record{" published" * published}"{data}><summary>'
        f'<span class="who"><b>{escape(lane.name)}</b> on {escape(it.target)}{mark}</span>'
        f'<span class="where">{escape(where)}</span>{_bar(lane, widest)}'
        f'<span class="figure">{ratio(lane.speedup)} <small>{between}</small></span>'
        f'<span class="length">{number(lane.length)} <small>tokens per check</small></span>'
        f"</summary>{_inside(name, it, lane, opens)}</details>"
    )


def _bar(lane: Drafted, widest: float) -> str:
    """Return the interval as a bar with a mark at the speed-up, and a line at 1. `widest`: the speed-up at its end."""
    low, high = lane.interval or (lane.speedup, lane.speedup)
    left, right, at, one = (100 * min(value / widest, 1) for value in (low, high, lane.speedup, 1))
    return (
        f'<span class="bar" aria-hidden="true"><s style="left:{one:.1f}%"></s>'
        f'<i style="left:{left:.1f}%;width:{right - left:.1f}%"></i><u style="left:{at:.1f}%"></u></span>'
    )


def _inside(name: str, it: Record, lane: Drafted, opens: bool) -> str:
    """Return what a row opens: the facts of the run, acceptance by position, and the way to the run behind it. `opens`:
    whether the page can show that."""
    settings = {**(it.settings or {}), **(lane.settings or {})}
    facts = {
        "Engine": ", ".join([it.engine, *(f"{key} {value}" for key, value in (it.versions or {}).items())]),
        "Prompts": ", ".join(f"{n} {category}" for category, n in (it.categories or {}).items()),
        "Settings": ", ".join(f"{key} {value}" for key, value in settings.items()),
        "Runs": count(it.runs, "run") + " of each prompt" if it.runs else "",
        "Noise": f"a prompt's fastest run was {it.noise:.2f} times as fast as its slowest" if it.noise else "",
        "Interval": f"95 %, over {lane.over}" if lane.over else "",
        "Identical outputs": _identical(it, lane) if lane.identical is not None else "",
        "Target's weights": it.weights or "",
        "Drafter's weights": f"sha256 {lane.weights}" if lane.weights else "",
        "Date": it.created,
        "Note": it.note,
        "Record": f"records/{name}.json",
    }
    items = "".join(f"<dt>{key}</dt><dd>{escape(value)}</dd>" for key, value in facts.items() if value)
    return f"<dl>{items}</dl>{_positions(lane)}<p>{_behind(name, it, opens)}</p>"


def _behind(name: str, it: Record, opens: bool) -> str:
    if it.url:
        words = "Source" if it.source == "published" else "Open the run"
        return f'<a href="{escape(it.url)}" target="_blank" rel="noopener nofollow">{words}</a>'
    if opens:
        return f'<a href="records?run={escape(name)}">Open the run</a>'
    if it.run:
        return f"The run behind it is {escape(it.run)} in the repository."
    return "The run behind it was not kept."


def _positions(lane: Drafted) -> str:
    rows = [
        (
            str(at.position),
            f"{at.drafted:,}",
            f"{at.accepted:,}",
            percent(at.accepted / at.reached if at.reached else None),
        )
        for at in (lane.counts.positions if lane.counts else ())
    ]
    columns = ("position", "drafted", "accepted", "if reached")
    return Table("Acceptance by position", columns, tuple(rows), numbers=3).html() if rows else ""


def _identical(it: Record, lane: Drafted) -> str:
    return UNKNOWN if lane.identical is None or not it.outputs else f"{lane.identical} of {it.outputs}"
