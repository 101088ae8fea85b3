"""Why this speed-up? A waterfall and sentences, what the formulas predict, and the cost of a token.

The predictions are of other lookaheads, of batches, of load, and of the memory's limit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from playground import metrics, theory
from playground.format import number
from playground.metrics import Equation, Measured
from playground.theory import Against, Attribution, Band, BatchPoint, Decoding, Limit, LoadPoint, WhatIf
from playground.theory.lookahead import Asynchronous
from playground.theory.queueing import SEEDS
from playground.trace import Trace
from playground.views import charts, headline
from playground.views.table import Table


def waterfall(measured: Measured) -> go.Figure | None:
    """Draw the steps from tokens per check of drafting rounds to the measured speed-up; None where they cannot be
    computed."""
    found, other = theory.attribute(measured), measured.ours
    if found is None:
        return None
    labels, values = zip(*found.steps, strict=True)
    changes = [values[0], *(now - before for before, now in itertools.pairwise(values)), values[-1]]
    figure = charts.blank(
        "Why this speed-up?",
        f"{escape(other.lane.name)}: tokens per check to speed-up",
        "",
        "speed-up",
    )
    figure.add_waterfall(
        x=[*labels, "measured"],
        y=changes,
        measure=["absolute", *["relative"] * (len(values) - 1), "total"],
        text=[f"{values[0]:.2f}", *map(_signed, changes[1:-1]), f"{values[-1]:.2f}×"],
        textposition="outside",
        connector={"line": {"color": charts.GRID}},
        increasing={"marker": {"color": charts.STANDARD}},
        decreasing={"marker": {"color": charts.STANDARD}},
        customdata=[LIGHTS[label] for label in (*labels, "measured")],
        totals={"marker": {"color": charts.ASSISTED}},
        hovertemplate="%{x}: %{y:.2f}<extra></extra>",
    )
    figure.add_hline(y=1, line={"color": charts.STANDARD, "dash": "dot", "width": 1})
    figure.update_layout(meta=paragraph(measured))
    return figure.update_yaxes(range=[0, 1.15 * max(*values, 1)])


LIGHTS = {  # the things each step counts, by their names in assets/stage/lit.js
    "tokens per check": "gain",
    "rounds without a draft": "idle",
    "checking": "verify",
    "guessing": "draft",
    "rest": "other",
    "cost of a check": "cost",
    "prefill": "first",
    "measured": "all",
}


def lights(measured: Measured) -> list[tuple[str, str]]:
    """Return the steps that can be highlighted in timeline and text, with rounds without a draft, each with the name of
    what it counts."""
    found = theory.attribute(measured)
    if found is None:
        return []
    gain, *costs = (label for label, _ in found.steps)
    labels = [gain, *["rounds without a draft"] * bool(found.idle), *costs, "measured"]
    return [(label, LIGHTS[label]) for label in labels]


def paragraph(measured: Measured) -> str:
    """Explain the speed-up in sentences; "" where it cannot be computed."""
    found = theory.attribute(measured)
    if found is None:
        return ""
    it = found.equation
    sentences = [f"A check gave {it.tokens_per_pass:.2f} tokens: the speed-up if it cost one standard step."]
    if found.idle:
        sentences.append(f"Where it drafted it gave {found.drafting:.2f}; {found.idle:.0%} of rounds drafted nothing.")
    sentences += [_cost(found), _whole(it)]
    if largest := _largest(found):
        sentences.append(f"What costs most is {largest}.")
    if measured.interval and measured.runs > 1:
        sentences.append(
            "Tokens and text are those of the run in the middle by speed; speed-up and cost are those of all runs: "
            f"{headline.runs(measured)}."
        )
    return " ".join(sentences)


def second_device(found: Asynchronous) -> str:
    """Say what a second device for drafting is predicted to give, and what that assumes."""
    return (
        f"Predicted, not measured: {found.speedup:.2f}x if a second device drafted while the target verifies (SSD); it "
        f"would have foreseen {found.foreseen:.0%} of the verdicts, and foreseeing every one would give "
        f"{found.limit:.2f}x. Assumed: {'; '.join(found.assumed)}."
    )


def overlapped(measured: Measured, found: Asynchronous) -> go.Figure:
    """Draw the lane as measured, and as predicted: the target's passes and the second device's drafts."""
    first, *rounds = measured.ours.rounds
    prefill = (first.start_s, first.end_s - first.start_s)
    passes = [(it.end_s - (it.verify_s or 0.0), it.verify_s or 0.0) for it in rounds]
    drafts = [(at - (it.draft_s or 0.0), it.draft_s or 0.0) for it, (at, _) in zip(rounds, passes, strict=True)]
    predicted = [(it.end_s - it.verify_s, it.verify_s) for it in found.rounds]
    ahead = [it.hidden_s + it.wait_s for it in found.rounds]
    early = [(at - draft_s, draft_s) for (at, _), draft_s in zip(predicted, ahead, strict=True)]
    figure = charts.blank(
        "A second device that drafts, predicted",
        "grey: passes; hatched: drafting",
        "seconds",
        "",
    )
    for row, spans, color, shape in (
        ("measured", [prefill, *passes], charts.STANDARD, ""),
        ("measured", drafts, charts.ASSISTED, "/"),
        ("predicted: target", [prefill, *predicted], charts.STANDARD, ""),
        ("predicted: drafter", early, charts.ASSISTED, "/"),
    ):
        figure.add_bar(
            y=[row] * len(spans),
            base=[start for start, _ in spans],
            x=[seconds for _, seconds in spans],
            orientation="h",
            marker={"color": color, "line": {"width": 0}, "pattern": {"shape": shape, "size": 4}},
            hovertemplate="%{x:.4f} s from %{base:.3f} s on<extra></extra>",
        )
    figure.update_layout(barmode="overlay", bargap=0.4, height=240, meta=second_device(found))
    return figure.update_yaxes(autorange="reversed").update_xaxes(rangemode="tozero")


def _cost(found: Attribution) -> str:
    it = found.equation
    if it.verify is None or it.draft is None or it.other is None:
        return f"A check cost {it.cost:.2f} standard steps; the server does not report how it is split."
    return (
        f"A check cost {it.cost:.2f} standard steps: checking {it.verify:.2f}{_wider(found)}, guessing {it.draft:.2f}, "
        f"the rest of the loop {it.other:.2f}."
    )


def _whole(it: Equation) -> str:
    """Return the equation with its numbers."""
    if f"{it.prefill:.2f}" == "1.00":
        return f"{it.tokens_per_pass:.2f} ÷ {it.cost:.2f} is the speed-up of {it.speedup:.2f}x."
    return (
        f"{it.tokens_per_pass:.2f} ÷ {it.cost:.2f} × {it.prefill:.2f} is the speed-up of {it.speedup:.2f}x: the last "
        "factor is the prefill, which drafting does not shorten."
    )


def _wider(found: Attribution) -> str:
    """Explain the time of the verify passes, where it is more than noise. A wider pass does not take less."""
    if _seen(found):
        return " because it reads several tokens"
    if found.wider and found.wider[1] < 0:
        return " because the machine was faster in this lane (checking several tokens does not take less)"
    return " (within the noise of the timing)"


def _signed(value: float) -> str:
    """Return a number with its sign; one that rounds to zero has a plus."""
    return f"{round(value, 2) + 0.0:+.2f}"


def _seen(found: Attribution) -> bool:
    return found.wider is not None and found.wider[0] > 0


def _largest(attribution: Attribution) -> str:
    """Name the step that costs most, of those that are more than noise; "" where there is none, or it is not
    reported."""
    if attribution.equation.verify is None:
        return ""
    (_, first), *later = attribution.steps
    before, drops = first, {"rounds without a draft": attribution.drafting - first}
    for name, after in later:
        drops[COSTS[name]] = before - after
        before = after
    if not _seen(attribution):
        del drops[COSTS["checking"]]
    largest = max(drops, key=drops.__getitem__)
    return largest if drops[largest] > 0 else ""


COSTS = {
    "checking": "checking several tokens at once",
    "guessing": "drafting",
    "rest": "the work between checks",
    "prefill": "the prefill",
}


def against(ours: Decoding, other: Against) -> str:
    """Explain the difference between a measured speed-up and a published one."""
    text = f"Published: {other.published:.2f}x; measured here, prefill left out: {ours.speedup:.2f}x."
    shares = (
        f"Of what a check costs here beyond a standard step, guessing is {other.draft_share:.0%}, checking "
        f"{other.verify_share:.0%} and the rest of the loop {other.other_share:.0%}."
    )
    if other.acceptance is None or other.cost is None:
        needed = ours.tokens_per_pass / other.published
        return (
            f"{text} With your {ours.tokens_per_pass:.2f} tokens per check, {other.published:.2f}x would take checks "
            f"that cost {needed:.2f} standard steps; yours cost {ours.cost:.2f}. {shares}"
        )
    return (
        f"{text} Tokens per check explain a factor of {other.acceptance:.2f} (acceptance: the drafter, the prompts, "
        f"the lookahead), the cost of a check {other.cost:.2f} (drafting and this machine). {shares}"
    )


def lookahead(found: WhatIf, other: Trace) -> str:
    """Say what another lookahead would have given, and whether the model can be trusted with this run."""
    best, at = found.best, other.lane.lookahead
    which = "no drafting" if best.lookahead == 0 else f"a lookahead of {best.lookahead}"
    text = f"Another lookahead, prefill left out of all figures: predicted best is {which}, about {best.speedup:.1f}x."
    model = f"For the run's own drafts ({found.used:.1f} tokens) the model says {found.predicted:.2f}x, measured is "
    text = f"{text} {model}{found.measured:.2f}x."
    if found.agrees:
        return text
    return f"{text} They are more than a tenth apart: {', '.join(reasons(other, at)) or 'no cause is visible'}."


def reasons(other: Trace, lookahead: int) -> list[str]:
    """Return the reasons in the trace that can explain a prediction that misses."""
    causes = []
    noise = metrics.unsteadiness(other)
    if noise and noise >= metrics.UNSTEADY:
        causes.append(f"timing is noisy (same-size passes p90/p10 = {noise:.1f})")
    lengths = [len(round_.drafted) for round_ in other.rounds[1:]]
    if other.lane.policy != "constant" or any(0 < length < lookahead for length in lengths):
        causes.append("drafts had different lengths, and the drafter stopped where it was unsure")
    if not all(lengths):
        causes.append("some rounds drafted nothing")
    if len(other.tokens) < 64:
        causes.append(f"{len(other.tokens)} tokens are few")
    return causes


def batches(points: Sequence[BatchPoint]) -> str:
    """Return predicted speed-ups by batch size, for a terminal, and where speculation stops paying."""
    line = ", ".join(f"{it.batch}: {it.speedup:.2f}{'*' if it.extrapolated else ''}" for it in points)
    beyond = " * wider passes than were measured." if any(it.extrapolated for it in points) else ""
    return f"Predicted speed-up by batch size: {line}. {batch_end(points)}{beyond}"


def batch_end(points: Sequence[BatchPoint]) -> str:
    """Return the batch sizes between which speculation stops paying."""
    stops = next((i for i, it in enumerate(points) if it.speedup < 1), None)
    if stops is None:
        return "It pays at every batch size shown."
    if not stops:
        return "It pays at no batch size."
    return f"It stops paying between a batch of {points[stops - 1].batch} and one of {points[stops].batch}."


def load(points: Sequence[LoadPoint]) -> str:
    """Return simulated times under load, for a terminal, and where speculation stops paying."""
    line = ", ".join(f"{it.rate:.2g}/s: {band(it.standard)} and {band(it.assisted)} s" for it in points)
    return (
        "Simulated load (Poisson arrivals, one replica), mean time of an answer with its 95 % interval over "
        f"{SEEDS} simulations, standard and assisted: {line}. {load_end(points)}"
    )


def load_end(points: Sequence[LoadPoint]) -> str:
    """Say at which load speculation stops paying: where the lines of the chart cross."""
    if at := theory.crossing(points):
        return f"Speculation stops paying at about {at:.2g} requests/s."
    return "Speculation pays at every rate shown." if points[0].pays else "Speculation pays at none of these rates."


def band(found: Band) -> str:
    """Return a mean with its interval, such as "1.2 (1.0 to 1.4)"."""
    return f"{found.mean:.1f} ({found.low:.1f} to {found.high:.1f})"


UNCOUNTED = 1.5  # a store may first read its line: a copy then moves three bytes for two that are counted


def limit(trace: Trace) -> str:
    """Say how near a lane comes to the limit of the memory's bandwidth; "" where that is unknown."""
    bound, reached = theory.limit_of(trace), metrics.measure(trace).tokens_per_s
    if bound is None or reached is None:
        return ""
    experts = f" {experts_read(trace, bound)}." if bound.experts else ""
    spread = trace.environment.bandwidth_spread
    copied = f"{(trace.environment.bandwidth or 0) / 1e9:.0f} GB/s by a copy"
    if reached <= bound.tokens_per_s:
        said = (
            f"{reached:.0f} of at most {bound.tokens_per_s:.0f} tok/s, at which the memory's bandwidth ({copied}) "
            "would limit reading the weights"
        )
    elif spread and reached > bound.tokens_per_s * spread * UNCOUNTED:
        alike = " or its tokens share experts" if bound.experts else ""
        said = f"faster than the memory's bandwidth ({copied}) allows, so its weights come from caches{alike}"
    else:
        said = f"about as fast as the memory's bandwidth ({copied}) allows; how near cannot be told from that reading"
    return f"{trace.lane.name}: {said}.{experts}"


def experts_read(trace: Trace, limit: Limit) -> str:
    """Return a sentence such as "A pass is expected to read 20.3 of each layer's 64 experts, a pass over one token
    8"."""
    of = trace.memory.experts if trace.memory else None
    if of is None or limit.experts is None:
        return ""
    more = f", a pass over one token {of.per_token}" if limit.experts > of.per_token else ""
    return f"A pass is expected to read {limit.experts:.1f} of each layer's {of.count} experts{more}"


def table(found: WhatIf) -> Table:
    """Return the predictions by lookahead."""
    rows = tuple(
        (str(it.lookahead), "" if it.seen else "beyond what the run drafted", number(it.tokens_per_pass),
         number(it.speedup))
        for it in found.predictions
        if it.lookahead in SHOWN
    )  # fmt: skip
    return Table("By lookahead", ("lookahead", "", "tokens per check", "speed-up (predicted)"), rows, numbers=2)


SHOWN = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16)  # lookaheads that have a row


def cost_table(lanes: Sequence[Trace], hourly_rate: float) -> Table:
    """Return the price of a token, a row for each lane. `hourly_rate`: of the machine, in any currency."""
    rows = [
        (
            trace.lane.name,
            number(metrics.measure(trace).tokens_per_s, 1),
            number(theory.price_of(trace, hourly_rate), 2),
        )
        for trace in lanes
    ]
    return Table("Cost", ("lane", "tokens/s", "price per million tokens"), tuple(rows), numbers=2)
