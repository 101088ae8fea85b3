"""The speed-up of a comparison in words: how large, how certain, and why to doubt it. Page, files and terminal show the
same."""

from __future__ import annotations

from playground import metrics
from playground.format import beginning, count, number, ratio, span
from playground.metrics import Repeated
from playground.trace import Comparison, Trace

# Plain passes that a round takes at least, but for the noise of a quiet machine.
IMPOSSIBLE = 0.95


def speedup(comparison: Comparison) -> str:
    """Such as "1.87× (1.80 to 1.95)", or "1.87× (n = 1)" where nothing ran again, with "≈" where there is a doubt: the
    first lane beside the baseline; a dash if a lane has no speed."""
    other = comparison.others[0]
    repeats = metrics.repeated(comparison, other)
    if metrics.headline(comparison, other) is None:
        return figure(comparison)
    return f"{figure(comparison)} ({span(repeats.low, repeats.high) if repeats else 'n = 1'})"


def figure(comparison: Comparison) -> str:
    """The same without the range."""
    other = comparison.others[0]
    return ("≈ " if doubts(comparison, other) else "") + ratio(metrics.headline(comparison, other))


def title(comparison: Comparison, chosen: str) -> str:
    """What was compared, with the headline of the chosen lane and the beginning of the prompt, on one line."""
    shown, prompt = metrics.beside(comparison, chosen), comparison.standard.request.asked
    more = f" and {len(comparison.others) - 1} more" if len(comparison.others) > 1 else ""
    return " ".join(
        f"{chosen}{more} on {shown.others[0].lane.target}, {speedup(shown)}: {beginning(prompt, 72)}".split()
    )


def meaning(comparison: Comparison) -> str:
    """What the figure says of the first lane beside the baseline."""
    base, other = comparison.standard, comparison.others[0]
    value = metrics.headline(comparison, other)
    if value is None:
        return "speed-up: assisted ÷ standard"
    if other.lane.drafter == "none" and same_program(base, other):
        return "second ÷ first standard run: the noise of the measurement"
    if metrics.tied(comparison, other):
        return "no clear difference in speed"
    if noisy(comparison, other):
        return "timing too noisy to say"
    each = "" if base.request.greedy else " per token"  # the texts differ
    return (
        f"{'faster' if value > 1 else 'slower'}{each} than {comparison.baseline[:1].lower()}{comparison.baseline[1:]}"
    )


def runs(comparison: Comparison) -> str:
    """The range of the speed-up and the runs behind it, such as "1.71 to 1.94, 4 runs"."""
    repeats = metrics.repeated(comparison, comparison.others[0])
    return spread(repeats) if repeats else "one run each"


def spread(repeats: Repeated) -> str:
    """As `runs`."""
    low_to_high = span(repeats.low, repeats.high)
    against = f" against {repeats.baselines} of the baseline" if repeats.runs == 1 else ""
    return f"{low_to_high}, {count(repeats.runs, 'run')}{against}"


def doubts(comparison: Comparison, other: Trace) -> list[str]:
    """Why not to believe the speed-up of one lane over the baseline; empty if it holds."""
    found = [synthetic(other)]
    repeats, shown = metrics.repeated(comparison, other), metrics.beside(comparison, other.lane.name)
    base, other = shown.standard, shown.others[0]
    equation = metrics.equation(*metrics.compared_rounds(base, other))
    if not same_program(base, other):
        found.append(
            f"The lanes ran in different programs, {base.lane.program} and {other.lane.program}: the ratio compares "
            "these too, not speculation alone."
        )
    elif equation and equation.cost < IMPOSSIBLE:
        found.append(
            f"A round took {equation.cost:.2f} plain passes on average, and it cannot take less than 1: the machine "
            "was faster in one lane than in the other."
        )
    if metrics.headline(comparison, other) and metrics.tied(comparison, other):
        found.append(_tie(comparison, repeats))
    found.append(noisy(comparison, other))
    found.append(cut(base, other))
    difference = metrics.first_difference(base, other)
    if difference and base.request.greedy and "stopped" not in (base.finish, other.finish):
        found.append(f"The lanes wrote different text from token {difference.index + 1} on.")
    return [*filter(None, found)]


def noisy(comparison: Comparison, other: Trace) -> str:
    """A warning where a lane ran few times on a machine too busy to time it; "" where its times can be trusted."""
    repeats, shown = metrics.repeated(comparison, other), metrics.beside(comparison, other.lane.name)
    return "" if repeats and repeats.runs >= metrics.MANY else caveat(shown.standard, shown.others[0])


def _tie(comparison: Comparison, repeats: Repeated | None) -> str:
    if repeats is None:
        return f"No clear difference: one run each, and two runs of one lane may differ by {metrics.FLOOR - 1:.0%}."
    if repeats.low <= 1 <= repeats.high:
        return f"No clear difference: the range ({spread(repeats)}) includes 1."
    noise = max(metrics.noise(comparison) or 1.0, metrics.FLOOR)
    return f"No clear difference: two runs of one lane may differ by {noise - 1:.0%} here ({spread(repeats)})."


def synthetic(trace: Trace) -> str:
    """That the lane's verdicts were drawn; "" if they are the target's."""
    if not trace.lane.drawn:
        return ""
    return (
        "Synthetic acceptance: how much a round accepts was drawn, not judged. Times are measured; acceptance and "
        "speed-up say what a drafter that is right so often would bring."
    )


def cut(baseline: Trace, other: Trace) -> str:
    """Over which tokens the speed-up is, where a lane was stopped; "" where none was, or none has tokens."""
    compared = [len(rounds) for rounds in metrics.compared_rounds(baseline, other)]
    if compared == [len(baseline.rounds), len(other.rounds)] or not min(compared):
        return ""
    n = min(len(baseline.tokens), len(other.tokens))
    return (
        f"Stopped: the speed-up is over the first {count(n, 'token')}, as far as both lanes got; each lane's tok/s is "
        "over all that it decoded."
    )


def same_program(baseline: Trace, other: Trace) -> bool:
    """Whether the same program decoded both lanes, so that their times compare."""
    return baseline.lane.program == other.lane.program


def caveat(*lanes: Trace) -> str:
    """A warning if timing was too noisy for the figures to mean much, else ""."""
    spreads = [metrics.unsteadiness(lane.rounds) for lane in lanes]
    worst = max((spread for spread in spreads if spread), default=0.0)
    if worst < metrics.UNSTEADY:
        return ""
    return (
        f"Timing is noisy: slow passes took {number(worst, 1)}x as long as fast ones (p90 ÷ p10, same size). "
        "Something else is using this machine. Run again before you trust the speed-up."
    )
