"""The details of a run: figures by segment of the outputs, calibration of the drafter's q, settings and environment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from playground import metrics
from playground.conversation import read_tools
from playground.format import count, number, percent, ratio
from playground.lane import LOCAL, Request, verified_by
from playground.metrics import Measured, Segment, SegmentFigures, Timed
from playground.results import ALL, STANDARD, Row, SuiteResult, by_unit, names_of
from playground.settings import CONSTRAINTS, SAMPLING, SETTINGS
from playground.trace import Comparison, Environment, Trace
from playground.views import facts
from playground.views.table import Table

Speedups = Mapping[tuple[str, Segment], str]  # formatted, by lane and segment


def of_comparison(comparison: Comparison, names: Sequence[str] = ()) -> Table | None:
    """Return a row for each lane and segment; None where the outputs consist of answers only.

    Args:
        names: the lanes to show with the baseline; empty for all.
    """
    names = names or [trace.lane.name for trace in comparison.others]
    speedups: dict[tuple[str, Segment], str] = {}
    for name in names:
        for segment, (over, interval) in metrics.segment_speedups(comparison, name).items():
            speedups[name, segment] = ratio(over, interval) if interval else f"{ratio(over)}, one run"
    lanes = [it for it in metrics.shown(comparison).lanes if it.lane.name in (comparison.baseline, *names)]
    return _table({it.lane.name: metrics.by_segment(it) for it in lanes}, comparison.baseline, speedups)


def of_suite(result: SuiteResult) -> Table | None:
    """Return a row for each lane and segment, over all prompts. A speed-up is pooled over the prompts that have the
    segment in both lanes; where these are too few for an interval, it has their number."""
    names = names_of(result.lanes)
    rows: dict[str, dict[tuple[int, int], Row]] = {}
    for row in result.rows:
        rows.setdefault(row.lane, {})[row.question, row.turn] = row
    speedups: dict[tuple[str, Segment], str] = {}
    for lane in rows.keys() - {STANDARD}:
        for segment in metrics.SEGMENTS:
            both = [
                (row.unit, _timed(rows[STANDARD].get(at), segment), _timed(row, segment))
                for at, row in rows[lane].items()
            ]
            pairs = [(unit, base, ours) for unit, base, ours in both if base and ours]
            if pairs:
                base, ours = by_unit((it[0], it[1]) for it in pairs), by_unit((it[0], it[2]) for it in pairs)
                pooled = metrics.pooled(base, ours)
                prompts = "" if pooled.interval else f", {count(len(pairs), 'prompt')}"
                speedups[names[lane], segment] = ratio(pooled.speedup, pooled.interval) + prompts
    overall = {names.get(it.lane, it.lane): it.segments for it in result.summaries if it.category == ALL}
    return _table(overall, names[STANDARD], speedups)


def _timed(row: Row | None, segment: Segment) -> Timed | None:
    """Return tokens and seconds of a prompt's segment, without the prefill."""
    figures = next((it for it in row.segments if it.segment == segment), None) if row else None
    return Timed((figures.timed,), (figures.seconds,)) if figures and figures.timed and figures.seconds else None


def _table(lanes: Mapping[str, Sequence[SegmentFigures]], baseline: str, speedups: Speedups) -> Table | None:
    """Return the table. Speeds leave the prefill out; a speed-up is over the lane `baseline` in the same segment."""
    if len({figures.segment for of_lane in lanes.values() for figures in of_lane}) < 2:
        return None
    rows = tuple(
        (lane, it.segment, f"{it.tokens:,}", percent(it.acceptance_rate), number(it.mean_accepted_length, 2),
         number(it.tokens_per_s, 1), "" if lane == baseline else speedups.get((lane, it.segment), ratio(None)))
        for lane, of_lane in lanes.items()
        for it in of_lane
    )  # fmt: skip
    columns = ("lane", "segment", "tokens", "accepted", "tokens per check", "tokens/s", "speed-up")
    return Table("By segment, prefill left out", columns, rows, numbers=5)


# Calibration: does the drafter's confidence predict acceptance?


def tables(traces: Iterable[Trace]) -> list[Table]:
    """Return calibration by position in the draft, then by q, for the lanes that drafted with a q. Synthetic lanes have
    none, because their verdicts were drawn."""
    calibrated = {trace.lane.name: metrics.calibration(trace) for trace in traces}
    calibrated = {name: each for name, each in calibrated.items() if each}
    if not calibrated:
        return []
    by_position = [
        (name, "all" if it.position is None else str(it.position), f"{it.tokens:,}", number(it.q), percent(it.accepted),
         number(it.ece, 3), number(it.brier, 3))
        for name, each in calibrated.items()
        for it in each
    ]  # fmt: skip
    by_q = [
        (name, f"{it.low:.1f} to {it.high:.1f}", f"{it.tokens:,}", number(it.q), percent(it.accepted))
        for name, each in calibrated.items()
        for it in each[0].bins
    ]
    return [
        Table(
            "Is the drafter's confidence worth anything? q against acceptance, by position in the draft",
            ("lane", "position", "tokens", "mean q", "accepted", "ECE", "Brier"),
            tuple(by_position),
            numbers=5,
        ),
        Table("Reliability of q", ("lane", "q", "tokens", "mean q", "accepted"), tuple(by_q), numbers=3),
    ]


def sentence(trace: Trace) -> str:
    """Summarise the calibration over all positions; "" without one."""
    found = metrics.calibration(trace)
    if not found:
        return ""
    it = found[0]
    return (
        f"mean q {it.q:.2f}, accepted {it.accepted:.0%} of {it.tokens:,} judged draft tokens; calibration error "
        f"{it.ece:.3f}, Brier score {it.brier:.3f}"
    )


# Settings and environment, to repeat the run.


def details(found: Measured) -> list[tuple[str, str]]:
    """Return labels and values, without those of which there is nothing to say."""
    first, second = found.base, found.ours
    request, lane, environment, rule = first.request, second.lane, second.environment, verified_by(second.lane)
    prompt = f"{len(first.prompt_ids):,} tokens, " if first.prompt_ids is not None else ""
    rows = [
        ("Target", lane.target),
        ("Drafter", lane.drafter + (f": {lane.assistant}" if lane.assistant else "")),
        ("Lookahead", _lookahead(second)),
        ("Rejections", rejections(second)),
        ("Confidence", sentence(second)),
        ("Verification", "" if rule == "token" else facts.RULES[rule].lower()),
        ("Verify passes", verify_passes(environment) if environment.pass_times else ""),
        ("Decoding", _decoding(first)),
        ("Limit", f"{request.max_new_tokens:,} new tokens"),
        ("Memory at the end", facts.memory_line(first, second)),
        ("Ended by", ", ".join(f"{trace.finish} ({trace.lane.name})" for trace in (first, second))),
        ("Prompt", f"{prompt}{'chat template' if request.chat_template else 'no chat template'}"),
        ("Earlier messages", earlier(request)),
        ("", request.question),
        ("System prompt", request.system or "none"),
        ("Stop strings", ", ".join(json.dumps(each, ensure_ascii=False) for each in request.stops)),
        *((SETTINGS[name].label, getattr(request, name)) for name in CONSTRAINTS),
        ("Tools", ", ".join(tool["function"]["name"] for tool in read_tools(request.tools))),
        ("Template arguments", request.template),
        ("Lanes", "ran by turns, a few rounds each time" if second.schedule == "by turns" else "each ran alone"),
        ("Ran on", f"{facts.environment_line(environment)} ({environment.platform or 'unknown platform'})"),
        ("Precision", facts.precision(environment)),
        ("Passes", passes(environment) if environment.runner else ""),
        ("Weights", "; ".join(environment.weights)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in environment.versions.items())),
        ("Run at", environment.created),
        ("The model's rules", facts.rules_line(environment.obeyed)),
        *(("Note", note) for note in (*environment.notes, *facts.left_out(first, second))),
    ]
    return [(label, value) for label, value in rows if value]


def earlier(request: Request) -> str:
    """Return the number of messages of each role before the answered one, such as "2 user, 2 assistant"."""
    roles = Counter(turn.role for turn in request.turns[:-1])
    return ", ".join(f"{n} {role}" for role, n in roles.items())


def html(comparison: Comparison, chosen: str) -> str:
    """Return the details of the baseline and the chosen lane: figures by segment, where the outputs consist of more
    than answers, and settings and environment."""
    found = of_comparison(comparison, [chosen])
    segments = f"<h3>{escape(found.caption)}</h3>{found.html()}" if found else ""
    rows = details(metrics.measured(comparison, chosen))
    cells = "".join(f'<dt>{escape(name)}</dt><dd dir="auto">{escape(value)}</dd>' for name, value in rows)
    return f"{segments}<dl>{cells}</dl>"


def passes(environment: Environment) -> str:
    """Return the runner of the target's passes, and the seconds that compiling them took before the lanes ran."""
    took = "" if environment.compile_s is None else f", compiled beforehand in {environment.compile_s:.1f} s"
    return f"{facts.runner(environment)}{took}"


def verify_passes(environment: Environment) -> str:
    """Return the measured cost of a pass by its width."""
    one, *more = environment.pass_times
    wider = "; ".join(f"{time.tokens} tokens: {time.seconds / one.seconds:.2f}x" for time in more)
    return f"{wider} a single-token pass ({1000 * one.seconds:.1f} ms)"


def rejections(trace: Trace) -> str:
    """Return where the target's choice ranked among the drafter's candidates: would a wider draft have helped?"""
    ranks = metrics.ranks(trace.rounds)
    if not ranks.rejections:
        return "none at a position where the drafter scored candidates"
    counts = [
        ("1st choice (another was sampled)", ranks.best),
        ("2nd choice", ranks.second),
        ("3rd to 8th", ranks.third_to_eighth),
        ("lower", ranks.further),
        ("none of its tokens", ranks.never),
    ]
    found = "; ".join(f"{name}: {n}" for name, n in counts if n)
    return f"{ranks.rejections:,}; the target's token was the drafter's {found}"


def _lookahead(trace: Trace) -> str:
    lane = trace.lane
    if lane.drafter == "none":
        return "none"
    if lane.backend != LOCAL and all(round_.lookahead is None for round_ in trace.rounds):
        return "set by the server"
    threshold = f", threshold {lane.confidence_threshold:g}" if lane.policy == "confidence" else ""
    trees = any(round_.is_tree for round_ in trace.rounds)
    tree = f", trees of at most {count(lane.nodes, 'token')}" if trees else ""
    return f"{count(lane.lookahead, 'token')}, {lane.policy}{threshold}{tree}"


def _decoding(trace: Trace) -> str:
    request = trace.request
    names = [name for name in SAMPLING if SETTINGS[name].greedy or not request.greedy]
    said = list(filter(None, (SETTINGS[name].detail(getattr(request, name)) for name in names)))
    if request.greedy:
        return ", ".join(["greedy", *said])
    return f"sampled at {', '.join(said)}, seed {request.seed}"
