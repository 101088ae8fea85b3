"""A run's settings and where it ran, for whoever wants to repeat it."""

from __future__ import annotations

import json
from collections import Counter
from html import escape

from playground import metrics
from playground.conversation import read_tools
from playground.format import count
from playground.lane import LOCAL, Request, verified_by
from playground.settings import CONSTRAINTS, SAMPLING, SETTINGS
from playground.trace import Comparison, Environment, Trace
from playground.views import calibration, facts, segments


def details(comparison: Comparison) -> list[tuple[str, str]]:
    """Labels and values."""
    first, second = comparison.standard, comparison.others[0]
    request, lane, environment = first.request, second.lane, second.environment
    prompt = f"{len(first.prompt_ids):,} tokens, " if first.prompt_ids is not None else ""
    return [
        ("Target", lane.target),
        ("Drafter", lane.drafter + (f": {lane.assistant}" if lane.assistant else "")),
        ("Lookahead", _lookahead(second)),
        ("Rejections", rejections(second)),
        *([("Confidence", confidence)] if (confidence := calibration.sentence(second)) else []),
        *([("Verification", facts.RULES[rule].lower())] if (rule := verified_by(lane)) != "token" else []),
        *([("Verify passes", verify_passes(environment))] if environment.pass_times else []),
        ("Decoding", _decoding(first)),
        ("Limit", f"{request.max_new_tokens:,} new tokens"),
        *([("Memory at the end", held)] if (held := facts.memory_line(comparison)) else []),
        ("Ended by", ", ".join(f"{trace.finish} ({trace.lane.name})" for trace in comparison.lanes)),
        ("Prompt", f"{prompt}{'chat template' if request.chat_template else 'no chat template'}"),
        *([("Earlier messages", earlier(request))] if len(request.turns) > 1 else []),
        ("", request.asked),
        ("System prompt", request.system or "none"),
        *(
            [("Stop strings", ", ".join(json.dumps(each, ensure_ascii=False) for each in request.stops))]
            * bool(request.stops)
        ),
        *((SETTINGS[name].label, getattr(request, name)) for name in CONSTRAINTS if getattr(request, name)),
        *([("Tools", ", ".join(tool["function"]["name"] for tool in read_tools(request.tools)))] * bool(request.tools)),
        *([("Template arguments", request.template)] if request.template else []),
        ("Ran on", f"{facts.environment_line(environment)} ({environment.platform or 'unknown platform'})"),
        *([("Passes", passes(environment))] if environment.runner else []),
        ("Weights", "; ".join(environment.weights)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in environment.versions.items())),
        ("Run at", environment.created),
        *([("The model's rules", facts.rules_line(environment.obeyed))] if environment.obeyed else []),
        *(("Note", note) for note in (*environment.notes, *facts.left_out(first, second))),
    ]


def earlier(request: Request) -> str:
    """How many messages of each role come before the one that is answered, such as "2 user, 2 assistant"."""
    roles = Counter(turn.role for turn in request.turns[:-1])
    return ", ".join(f"{n} {role}" for role, n in roles.items())


def html(rows: list[tuple[str, str]]) -> str:
    """The same as a folded list."""
    if not rows:
        return ""
    cells = "".join(f'<dt>{escape(name)}</dt><dd dir="auto">{escape(value)}</dd>' for name, value in rows)
    return f"<details><summary>Run details</summary><dl>{cells}</dl></details>"


def by_segment(comparison: Comparison, chosen: str) -> str:
    """How the baseline and the chosen lane did in each segment of their outputs, folded; "" where those are answers
    alone."""
    found = segments.of_comparison(comparison, [chosen])
    return f"<details><summary>{escape(found.caption)}</summary>{found.html()}</details>" if found else ""


def passes(environment: Environment) -> str:
    """How the target's passes were run, and what compiling them took before the lanes ran."""
    took = "" if environment.compile_s is None else f", compiled beforehand in {environment.compile_s:.1f} s"
    return f"{environment.runner}{took}"


def verify_passes(environment: Environment) -> str:
    """The measured cost of a pass by its width."""
    one, *more = environment.pass_times
    wider = "; ".join(f"{time.tokens} tokens: {time.seconds / one.seconds:.2f}x" for time in more)
    return f"{wider} a single-token pass ({1000 * one.seconds:.1f} ms)"


def rejections(trace: Trace) -> str:
    """Where the target's choice ranked among the drafter's: would a wider draft have helped?"""
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
