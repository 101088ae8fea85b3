"""The facts of a trace in plain text: figures with units, and sentences. Page and terminal show the same words."""

from __future__ import annotations

from dataclasses import dataclass

from playground import metrics
from playground.metrics import FirstDifference, Metrics
from playground.trace import Comparison, Environment, Trace

# How many times as long as the quick tenth of passes the slow tenth may take.
UNSTEADY = 2.0
# Two logits this close can change places when the same pass is computed over more tokens at once. bf16 keeps 8 bits:
# logits between 16 and 32 lie 0.125 apart.
# int8 rounds what goes into each layer, and a difference in the last place can turn that: seen up to 1.25 in bfloat16.
NEAR_TIE = {
    "bfloat16": 0.5,
    "float16": 0.1,
    "float32": 0.001,
    "int8 weights, bfloat16": 2.0,
    "int8 weights, float32": 0.5,
}


@dataclass(frozen=True)
class Figure:
    """One figure: what it is called, its value and unit as shown, and what it means."""

    label: str
    value: str
    unit: str
    meaning: str


def figures(m: Metrics, *, drafting: bool) -> list[Figure]:
    """The line of figures over a lane; those about drafts only where the lane drafts."""
    line = [
        Figure("TTFT", *_ms(m.ttft_s), "measured time to first token: prompt handed over to first round done"),
        Figure("Speed", _number(m.tokens_per_s, 1), "tok/s", "tokens ÷ total time, the prompt's prefill included"),
        Figure("Tokens", f"{m.tokens:,}", "", "new tokens in the output"),
        Figure("Total", _number(m.total_s, 2), "s", "prompt handed over to last round done"),
    ]
    if drafting:
        line += [
            Figure("Acceptance", _percent(m.acceptance_rate), "%", "accepted ÷ drafted tokens, whole run"),
            Figure(
                "Accepted length",
                _number(m.mean_accepted_length, 2),
                "tok/pass",
                "mean accepted length: tokens out per target pass, the target's own token counted",
            ),
            Figure(
                "Passes saved",
                f"{m.passes_saved:,}",
                f"of {m.tokens:,}",
                "target passes that standard decoding would have needed for these tokens, and this lane did not",
            ),
        ]
    return line


def speedup(comparison: Comparison) -> str:
    """The one large figure, such as "1.87×"; a dash where a lane has no speed."""
    ratio = metrics.compare(*comparison.lanes[:2]).speedup
    return f"{ratio:.2f}×" if ratio else "–"


def speedup_meaning(comparison: Comparison) -> str:
    """What the large figure compares."""
    if comparison.lanes[1].lane.drafter == "none":
        return "second ÷ first standard run, tokens per second: how far two equal measurements lie apart"
    return "times as fast: assisted ÷ standard, tokens per second, one run each, this prompt"


def sameness(comparison: Comparison) -> str:
    """Whether the two outputs are the same and, if not, where they part and why they may."""
    baseline, other = comparison.lanes[:2]
    n = min(len(baseline.tokens), len(other.tokens))
    difference = metrics.first_difference(baseline, other)
    if difference is None:
        return f"The same {_count(n, 'token')}."
    if "stopped" in (baseline.finish, other.finish) and difference.index == n:
        far = f"The same {_count(n, 'token')} as far as both go" if n else "There is nothing to compare"
        return f"{far}: the run was stopped."
    if not baseline.request.greedy:
        return (
            f"Sampled outputs need not be the same: both follow the target's distribution. "
            f"They part at token {difference.index + 1}."
        )
    return _greedy_difference(difference, baseline.environment.dtype)


def _greedy_difference(difference: FirstDifference, dtype: str) -> str:
    place = f"They part at token {difference.index + 1}"
    if difference.margin is None or None in difference.token_ids:
        return f"{place}, where one of them ends."
    where = f"{place}, where the target's two best tokens were {difference.margin:.3f} logits apart"
    tie = NEAR_TIE.get(dtype, NEAR_TIE.get(dtype.split()[-1], 0.0))
    dtype = dtype.replace(" weights, ", " and ")
    if difference.margin <= tie:
        return f"{where}: a near-tie that {dtype} rounding can turn."
    return f"{where}: more than {dtype} rounding explains."


def passes(comparison: Comparison) -> str:
    """How many target passes the two lanes took; "" where one took none."""
    baseline, other = map(len, metrics.compared_rounds(*comparison.lanes[:2]))
    if not (baseline and other):
        return ""
    if other == baseline:
        return f"{other:,} target {'pass' if other == 1 else 'passes'} in both lanes."
    return f"{other:,} target {'pass' if other == 1 else 'passes'} instead of {baseline:,}."


def caveat(comparison: Comparison) -> str:
    """A warning where the machine was too busy for the figures to mean much; else ""."""
    spreads = [metrics.unsteadiness(lane.rounds) for lane in comparison.lanes[:2]]
    worst = max((spread for spread in spreads if spread), default=0.0)
    if worst < UNSTEADY:
        return ""
    return (
        f"Unsteady: passes of one size differed {worst:.1f}-fold, the slow tenth to the quick. "
        "Something else was using this machine: run again before you trust the speed-up."
    )


def memory_rows(comparison: Comparison) -> list[list[str]]:
    """What each lane held in memory: a head line, then a line for each part; empty where it was not measured."""
    lanes = comparison.lanes[:2]
    held = [trace.memory for trace in lanes]
    if None in held:
        return []
    parts = [
        ("Target's weights", [m.target_weights for m in held]),
        ("Target's KV cache", [m.target_cache for m in held]),
        ("Drafter's weights", [m.drafter_weights for m in held]),
        ("Drafter's KV cache", [m.drafter_cache for m in held]),
        ("Together", [m.total for m in held]),
    ]
    return [["", *(trace.lane.name for trace in lanes)]] + [[name, *map(_megabytes, sizes)] for name, sizes in parts]


def shortage(comparison: Comparison) -> str:
    """Where drafts were cut to keep memory free; else ""."""
    assisted = comparison.lanes[1]
    capped = sum(round_.capped for round_ in assisted.rounds)
    if not capped:
        return ""
    return (
        f"Memory was short: drafts were cut in {capped:,} of {_count(len(assisted.rounds), 'round')}, to keep "
        f"{assisted.lane.keep_free_gb:g} GB free."
    )


def environment_line(environment: Environment) -> str:
    """Device and precision, short enough for a status line."""
    threads = f" · {_count(environment.threads, 'thread')}" if environment.device == "cpu" else ""
    return f"{environment.device_name} · {environment.dtype}{threads}"


def details(comparison: Comparison) -> list[tuple[str, str]]:
    """What the run was asked and where it ran: labels and values, for whoever wants to repeat it."""
    first, second = comparison.lanes[:2]
    request, lane, environment = first.request, second.lane, second.environment
    rows = [
        ("Target", lane.target),
        ("Drafter", lane.drafter + (f": {lane.assistant}" if lane.assistant else "")),
        ("Lookahead", _lookahead(second)),
        ("Rejections", rejections(second)),
        *([("Verify passes", verify_passes(environment))] if environment.pass_times else []),
        ("Decoding", _decoding(first)),
        ("Limit", f"{request.max_new_tokens:,} new tokens"),
        ("Ended by", f"{first.finish} (standard), {second.finish} (assisted)"),
        ("Prompt", f"{len(first.prompt_ids):,} tokens{', chat template' if request.chat_template else ', as it is'}"),
        ("", request.prompt),
        ("System prompt", request.system or "none"),
        ("Ran on", f"{environment_line(environment)} ({environment.platform})"),
        ("Weights", "; ".join(environment.weights)),
        (
            "Versions",
            f"playground {environment.playground}, python {environment.python}, torch {environment.torch}, "
            f"transformers {environment.transformers}",
        ),
        ("Run at", environment.created),
    ]
    return rows


def verify_passes(environment: Environment) -> str:
    """What one over several tokens takes."""
    one, *more = environment.pass_times
    told = ", ".join(f"over {time.tokens} tokens {time.seconds / one.seconds:.2f}" for time in more)
    return f"{told} times one over a single token, which took {1000 * one.seconds:.1f} ms"


def rejections(trace: Trace) -> str:
    """Whether a wider draft would have helped."""
    ranks = metrics.ranks(trace.rounds)
    if not ranks.rejections:
        return "none whose place the drafter had other candidates for"
    counts = [
        (ranks.best, "the drafter's best (something else was drawn)"),
        (ranks.second, "its second"),
        (ranks.third_to_eighth, "its third to eighth"),
        (ranks.further, "further down"),
        (ranks.never, "a token that it never drafts"),
    ]
    told = "; ".join(f"{_count(n, 'time')} {what}" for n, what in counts if n)
    return f"of {_count(ranks.rejections, 'rejection')}, the target's choice was {told}"


def table(comparison: Comparison) -> str:
    """The comparison as a short plain-text table for a terminal, ended by the sentences and the weights' origin."""
    columns = [metrics.measure(lane) for lane in comparison.lanes]
    names = [lane.lane.name for lane in comparison.lanes]
    rows = [[figure.label, figure.unit] for figure in figures(columns[-1], drafting=True)]
    rows[-1][1] = ""
    for lane, m in zip(comparison.lanes, columns, strict=True):
        drafting = lane.lane.drafter != "none"
        values = [figure.value for figure in figures(m, drafting=drafting)]
        for row, value in zip(rows, values + [""] * (len(rows) - len(values)), strict=True):
            row.append(value)
    widths = [max(len(row[i]) for row in [["", "", *names], *rows]) for i in range(len(names) + 2)]
    lines = ["  ".join(_cells(row, widths)).rstrip() for row in [["", "", *names], *rows]]
    environment = comparison.lanes[-1].environment
    return "\n".join(
        [
            *lines,
            "",
            f"{speedup(comparison)} {speedup_meaning(comparison)}".replace("× times", " times"),
            f"{sameness(comparison)} {passes(comparison)}",
            *filter(None, [shortage(comparison), caveat(comparison)]),
            *_memory_line(comparison),
            f"{environment_line(environment)}, {'; '.join(environment.weights)}",
        ]
    )


def _memory_line(comparison: Comparison) -> list[str]:
    """What the lanes hold in memory, on one line."""
    rows = memory_rows(comparison)
    if not rows:
        return []
    *parts, together = rows[1:]
    told = ", ".join(f"{name.lower()} {sizes[-1]}" for name, *sizes in parts if sizes[-1] != "–")
    return [f"In memory: {together[1]} standard, {together[2]} assisted ({told})"]


def _cells(row: list[str], widths: list[int]) -> list[str]:
    label, unit, *values = row
    right = [f"{value:>{width}}" for value, width in zip(values, widths[2:], strict=True)]
    return [f"{label:<{widths[0]}}", *right, f"{unit:<{widths[1]}}"]


def _lookahead(trace: Trace) -> str:
    lane = trace.lane
    if lane.drafter == "none":
        return "none"
    threshold = f", threshold {lane.confidence_threshold:g}" if lane.policy == "confidence" else ""
    trees = any(round_.is_tree for round_ in trace.rounds)
    tree = f", in trees of at most {_count(lane.nodes, 'token')}" if trees else ""
    return f"{_count(lane.lookahead, 'token')}, {lane.policy}{threshold}{tree}"


def _decoding(trace: Trace) -> str:
    request = trace.request
    penalty = f", repetition penalty {request.repetition_penalty:g}" if request.repetition_penalty != 1 else ""
    if request.greedy:
        return f"greedy{penalty}"
    top_k = f"top-k {request.top_k}" if request.top_k else "every token"
    return (
        f"sampled at temperature {request.temperature:g}, top-p {request.top_p:g}, {top_k}{penalty}, "
        f"seed {request.seed}"
    )


def _ms(seconds: float | None) -> tuple[str, str]:
    if seconds is None:
        return "–", "ms"
    return (f"{seconds * 1000:.0f}", "ms") if seconds < 10 else (f"{seconds:.1f}", "s")


def _megabytes(size: int) -> str:
    """Bytes in MB of 1e6; what the target's weights already hold takes no more."""
    return f"{size / 1e6:,.1f} MB" if size else "–"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.0f}"


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def suite_table(result: dict) -> str:
    """A suite's result as a Markdown table: a line for each lane and category."""
    where, asked = result["environment"], result["request"]
    quickest = f"the quickest of {result['runs']} runs; " if result["runs"] > 1 else ""
    lines = [
        f"{where['device_name']}, {where['device']}, {where['dtype']}, {where['threads']} threads, "
        f"torch {where['torch']}, transformers {where['transformers']}; {asked['max_new_tokens']} new tokens, "
        f"temperature {asked['temperature']:g}; {quickest}speed-up: median (quartiles)",
        "",
        "| drafter, lookahead | category | prompts | tokens a pass | accepted | speed-up | all together |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for line in result["summaries"]:
        speedup = f"{line['speedup']:.2f} ({line['low']:.2f} to {line['high']:.2f})"
        together = f"{line['overall']:.2f}"
        if line["interval"]:
            together += " ({:.2f} to {:.2f})".format(*line["interval"])
        cells = [line["lane"], line["category"], line["prompts"], f"{line['mean_accepted_length']:.2f}"]
        cells += [f"{line['acceptance_rate']:.0%}", speedup, together]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)
