"""The speed-up of a lane in words: how large, how certain, and why to doubt it. Page, files and terminal share it."""

from __future__ import annotations

from collections.abc import Sequence

from playground import metrics
from playground.format import beginning, bracketed, count, number, ratio, span
from playground.metrics import Measured
from playground.trace import Comparison, Trace, once

BUSY = "Timing is noisy: something else is using this machine. Run again before you trust the speed-up."
# A round takes at least this many plain passes, allowing for the noise of a quiet machine.
IMPOSSIBLE = 0.95
SEEN = 1.03  # the ratio of two speed-ups from which on a reader sees that they differ


def speedup(found: Measured) -> str:
    """Return the speed-up such as "1.87× (1.80 to 1.95)", or "1.87× (one run)" for a single run, like `figure`."""
    if found.speedup is None:
        return figure(found)
    return figure(found) + (bracketed(found.interval) or " (one run)")


def figure(found: Measured) -> str:
    """Return the speed-up without its interval, such as "1.87×", with "≈" where there is a doubt. A lane without a
    speed has a dash."""
    return ("≈ " if found.speedup and doubts(found) else "") + ratio(found.speedup)


def title(comparison: Comparison, chosen: str) -> str:
    """Return one line, which begins with what runs differ in: the headline of the chosen lane, what was compared, the
    beginning of the prompt, and the target."""
    found, prompt = metrics.measured(comparison, chosen), comparison.standard.request.question
    more = f" and {len(comparison.others) - 1} more" if len(comparison.others) > 1 else ""
    return " ".join(f"{speedup(found)}, {chosen}{more}: {beginning(prompt, 72)} · {found.ours.lane.target}".split())


def meaning(measured: Measured) -> str:
    """Say what the speed-up means."""
    base, other = measured.base, measured.ours
    if measured.outcome is None:
        return "speed-up: assisted ÷ standard"
    if other.lane.drafter == "none" and same_program(base, other):
        return "second ÷ first standard run: the noise of the measurement"
    if metrics.out_of_context(other.rounds):
        return "nothing was drafted: the text is too long for the drafter"
    if measured.too_short:
        return "too short to tell"
    if measured.outcome == "unclear":
        return "no clear difference in speed"
    if noisy(measured):
        return f"probably {measured.outcome} on this busy machine"
    each = "" if base.request.greedy else " per token"  # the texts differ
    name = base.lane.name
    return f"{measured.outcome}{each} than {name[:1].lower()}{name[1:]}"


def runs(found: Measured) -> str:
    """Return the interval of the speed-up and its number of runs, such as "95 % interval 1.71 to 1.94, 4 runs each".
    One run of lanes that took turns has an interval too, since each of its rounds was compared."""
    if found.interval is None:
        return "one run each"
    interval = f"95 % interval {span(*found.interval)}"
    if found.runs == 1 and found.ours.schedule == "by turns":
        return f"{interval}, within one run{whole_run(found)}"
    return f"{interval}, {count(found.runs, 'run')} each{whole_run(found)}"


def whole_run(found: Measured) -> str:
    """Name the ratio of the whole times of the runs that are shown, where it is another than the speed-up: other
    programs slowed one lane more, or the runs differ; "" else."""
    base, ours, whole = metrics.measure(found.base), metrics.measure(found.ours), found.whole_run_ratio
    if not (whole and found.speedup and base.tokens == ours.tokens):
        return ""
    if 1 / SEEN < whole / found.speedup < SEEN:
        return ""
    return f"; the whole times shown, {base.total_s:.2f} ÷ {ours.total_s:.2f} s, give {ratio(whole)}"


@once
def doubts(measured: Measured) -> Sequence[str]:
    """Return the reasons to doubt the speed-up of one lane over the baseline; empty if there are none."""
    base, other = measured.base, measured.ours
    said = [synthetic(other)]
    equation = measured.equation
    if not same_program(base, other):
        said.append(
            f"The lanes ran in different programs, {base.lane.program} and {other.lane.program}: the ratio compares "
            "these too, not speculation alone."
        )
    elif equation and equation.cost < IMPOSSIBLE:
        said.append(
            f"A check took {equation.cost:.2f} standard steps on average, and it cannot take less than 1: the machine "
            "was faster in one lane than in the other."
        )
    if measured.outcome == "unclear":
        said.append(_unclear(measured))
    said.append(noisy(measured))
    said.append(cut(base, other))
    difference = measured.difference
    if difference and base.request.greedy and "stopped" not in (base.finish, other.finish):
        said.append(f"The lanes wrote different text from token {difference.index + 1} on.")
    return [*filter(None, said)]


def noisy(found: Measured) -> str:
    """Return a warning where the machine was too busy to time a lane; "" where its times can be trusted."""
    if found.interval and found.ours.schedule == "by turns":
        low, high = found.interval
        return BUSY if high / low >= metrics.WIDE else ""
    return "" if found.interval and found.runs >= metrics.MANY else caveat(found.base, found.ours)


def _unclear(found: Measured) -> str:
    if len(found.base.rounds) == len(found.ours.rounds) == 1:
        return "No clear difference: both answers ended with the first step."
    if found.too_short:
        return "Too short to tell: the lanes took turns for too few rounds to compare moments."
    if found.interval is None:
        return f"No clear difference: one run each, and two runs of one lane may differ by {metrics.FLOOR - 1:.0%}."
    return f"No clear difference: the speed-up may be 1 ({runs(found)})."


def synthetic(trace: Trace) -> str:
    """Say that the lane's verdicts were drawn; "" if they are the target's."""
    if not trace.lane.forced_rates:
        return ""
    return (
        "Synthetic acceptance: how much a round accepts was drawn, not judged. Times are measured; acceptance and "
        "speed-up say what a drafter that is right so often would bring."
    )


def cut(baseline: Trace, other: Trace) -> str:
    """Say which tokens the speed-up is measured over, where a lane was stopped; "" where none was, or none has
    tokens."""
    compared = [len(rounds) for rounds in metrics.compared_rounds(baseline, other)]
    if compared == [len(baseline.rounds), len(other.rounds)] or not min(compared):
        return ""
    n = min(len(baseline.tokens), len(other.tokens))
    return (
        f"Stopped: the speed-up is over the first {count(n, 'token')}, as far as both lanes got; each lane's tok/s is "
        "over all that it decoded."
    )


def same_program(baseline: Trace, other: Trace) -> bool:
    """Return True if the same program decoded both lanes, so that their times compare."""
    return baseline.lane.program == other.lane.program


def caveat(*lanes: Trace) -> str:
    """Return a warning if timing was too noisy for the figures to mean much, else ""."""
    spreads = map(metrics.unsteadiness, lanes)
    worst = max((spread for spread in spreads if spread), default=0.0)
    if worst < metrics.UNSTEADY:
        return ""
    return (
        f"Timing is noisy: slow steps took {number(worst, 1)}x as long as fast ones (p90 ÷ p10, same size). "
        "Something else is using this machine. Run again before you trust the speed-up."
    )
