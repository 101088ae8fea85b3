"""The facts of a trace in plain text: figures with units, and sentences. Page and terminal show the same words."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playground import metrics
from playground.drafting_methods import METHODS
from playground.format import UNKNOWN, count, megabytes, number, percent, ratio
from playground.lane import OTHER_RULE, Lane, Request, verified_by
from playground.metrics import FirstDifference, Measured, Metrics
from playground.trace import Comparison, Environment, Trace
from playground.views.table import Table

OF_SAMPLING = (
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "top_h",
)  # rules of a model that do not affect greedy decoding


@dataclass(frozen=True)
class Figure:
    """One figure: its label, value and unit as shown, and its meaning."""

    label: str
    value: str
    unit: str
    meaning: str

    @property
    def shown(self) -> str:
        """The value with its unit, on one line."""
        if self.value == UNKNOWN:
            return UNKNOWN
        return f"{self.value}{'' if self.unit.startswith('%') else ' '}{self.unit}".strip()

    @property
    def rate(self) -> str:
        """The value of a percentage, without what it is of."""
        return self.value if self.value == UNKNOWN else f"{self.value}%"


def figures(m: Metrics, *, drafting: bool) -> list[Figure]:
    """Return the line of figures above a lane; those about drafts only if the lane drafts."""
    line = [
        Figure("First token", *_time(m.ttft_s), "TTFT, time to first token: prompt handed over to first round done"),
        Figure("Speed", number(m.tokens_per_s, 1), "tok/s", "tokens ÷ total time, prefill included"),
        Figure("Tokens", _count(m.tokens), "", "new tokens in the output"),
        Figure("Total", number(m.total_s, 2), "s", "time of decoding: prompt handed over to last round done"),
    ]
    if drafting:
        line += [
            acceptance(m),
            Figure(
                "Tokens per check",
                number(m.mean_accepted_length, 2),
                "",
                "mean accepted length: new tokens ÷ verify passes, the target's own token included",
            ),
            Figure(
                "Passes saved",
                _count(m.passes_saved),
                f"of {_count(m.tokens)}",
                "tokens − target passes: standard decoding needs one pass a token",
            ),
        ]
    if m.mask_s and m.tokens:
        each = 1000 * m.mask_s / m.tokens
        line.append(
            Figure("Masks", number(each, 2), "ms/token", "making the grammar's masks ÷ tokens; part of the passes")
        )
        if drafting:
            forced = "drafted tokens that the grammar forced, which cost nothing to draft"
            line.append(Figure("Forced", f"{m.forced:,}", f"of {_count(m.drafted)}", forced))
    return line


def acceptance(m: Metrics) -> Figure:
    """Return the acceptance rate: of a chain's tokens; of trees what was kept of the longest branches, since a round
    keeps one branch and rejects all others."""
    if m.depth and m.drafted and m.accepted is not None and m.depth < m.drafted:
        nodes = f"of all {m.drafted:,} nodes {percent(m.acceptance_rate)}"
        kept = percent(m.accepted / m.depth).removesuffix("%")
        meaning = f"accepted tokens ÷ the tokens of each tree's longest branch, whole run; {nodes}"
        return Figure("Acceptance", kept, f"% of {m.depth:,} tree levels", meaning)
    of = f"% of {_count(m.drafted)} drafted" if m.drafted else ""
    rate = percent(m.acceptance_rate).removesuffix("%")
    return Figure("Acceptance", rate, of, "accepted ÷ drafted tokens, whole run")


def how(lane: Lane) -> str:
    """Say where a lane's tokens come from, after its name where that is not the method's."""
    if lane.drafter == "none":
        return "the big model, one token a step" if lane.name == "Standard" else lane.name
    method = METHODS.get(lane.drafter)
    if not method or not method.does:
        return lane.name
    return method.does if lane.name == method.label else f"{lane.name}: {method.does}"


def fine_tuning(comparison: Comparison, other: Trace) -> str:
    """Return what the adapter of a lane's target costs in acceptance, against the lane with the same drafter and no
    adapter; "" without an adapter."""
    same = (it for it in comparison.others if it.lane.drafter == other.lane.drafter and not it.lane.adapter)
    plain = next(same, None)
    if not other.lane.adapter or not plain:
        return ""
    adapted, without = (metrics.measure(trace).acceptance_rate for trace in (other, plain))
    if adapted is None or without is None:
        return ""
    return (
        f"{percent(adapted)} of its draft tokens were accepted, {percent(without)} without the adapter: the drafter "
        "was made for the target as it was."
    )


def sameness(found: Measured) -> str:
    """Say whether two outputs are the same and, if not, where they differ and whether rounding can explain it."""
    baseline, other, difference = found.base, found.ours, found.difference
    if other.lane.adapter:
        return f"Its target has the adapter {Path(other.lane.adapter).name}, and writes another text."
    n = min(len(baseline.tokens), len(other.tokens))
    if difference is None:
        return "Identical output." if baseline.totals or other.totals else f"Identical output: {count(n, 'token')}."
    if "stopped" in (baseline.finish, other.finish) and difference.index == n:
        if not n:
            return "Stopped before both lanes had output."
        return f"Identical output as far as both lanes got: {count(n, 'token')}."
    if not baseline.request.greedy:
        return (
            f"Random sampling: texts differ from token {difference.index + 1} on, as expected; both follow the "
            "target's distribution."
        )
    return _greedy_difference(difference, baseline.environment.dtype, ended=difference.index == n)


def _greedy_difference(difference: FirstDifference, dtype: str | None, *, ended: bool) -> str:
    at = f"Outputs differ from token {difference.index + 1}"
    if ended:
        return f"{at}, where one of them ends."
    if difference.margin is None:
        return f"{at}."
    margin = f"The target's two best logits are {difference.margin:.3f} apart there"
    if dtype is None:
        return f"{at}. {margin}."
    rounding = f"{dtype.replace(' weights, ', ' and ')} rounding"
    if metrics.near_tie(difference.margin, dtype):
        return f"{at}. {margin}: a near-tie, which {rounding} can flip."
    return f"{at}. {margin}: more than {rounding} explains."


def passes(found: Measured) -> str:
    """Say how many target passes the lane took for its tokens; "" if one of the two took none, or a server does not
    report it."""
    rounds = metrics.compared_rounds(found.base, found.ours)[1]
    if not (found.base.rounds and rounds):
        return ""
    passes, tokens = sum(round_.passes for round_ in rounds), sum(len(round_.tokens) for round_ in rounds)
    if passes >= tokens:
        return "No steps saved."
    return f"{count(passes, 'model step')} instead of {tokens:,}."


def sentences(found: Measured) -> list[str]:
    """Say whether a lane wrote what the baseline wrote, and in how many passes."""
    return [*filter(None, (sameness(found), passes(found)))]


def notes(baseline: Trace, other: Trace) -> list[str]:
    """Return further remarks on a lane: context, memory, the other exact rule, and settings that were not obeyed."""
    return [*filter(None, (out_of_context(other), shortage(other), both_rules(other))), *left_out(baseline, other)]


def left_out(*lanes: Trace) -> list[str]:
    """Return each setting that a model asks for and these lanes do not follow, once."""
    said = dict.fromkeys(not_obeyed(trace.environment, trace.request) for trace in lanes)
    return [*filter(None, said)]


def not_obeyed(environment: Environment, request: Request) -> str:
    """Name the settings of the target's generation_config.json that no lane follows; "" if there are none."""
    rules = environment.not_obeyed or {}
    left_out = rules_line({name: rules[name] for name in rules if not (request.greedy and name in OF_SAMPLING)})
    return f"Not obeyed of the model's generation_config.json: {left_out}." if left_out else ""


def rules_line(rules: Mapping[str, Any] | None) -> str:
    """Return entries of a generation_config.json, long ones cut, such as "num_beams 4; suppress_tokens [7, 8]"."""
    return "; ".join(f"{name} {reprlib.repr(value)}" for name, value in (rules or {}).items())


def memory(comparison: Comparison) -> Table | None:
    """Return each lane's memory, a row for each part; None if a lane does not report it."""
    held = [trace.memory for trace in comparison.lanes if trace.memory]
    if len(held) < len(comparison.lanes):
        return None
    parts = [
        ("Target's weights", [m.target_weights for m in held]),
        ("Target's KV cache", [m.target_cache for m in held]),
        ("Drafter's weights", [m.drafter_weights for m in held]),
        ("Drafter's KV cache", [m.drafter_cache for m in held]),
        ("Total", [m.total for m in held]),
    ]
    rows = tuple((name, *(megabytes(size, 1) for size in sizes)) for name, sizes in parts)
    return Table("Memory at the end", ("", *(trace.lane.name for trace in comparison.lanes)), rows, numbers=len(held))


def memory_line(*lanes: Trace) -> str:
    """Return the total memory of each lane; "" if a lane does not report it."""
    if not all(trace.memory for trace in lanes):
        return ""
    return "; ".join(f"{trace.lane.name} {megabytes(trace.memory.total, 1)}" for trace in lanes if trace.memory)


def reused(trace: Trace) -> str:
    """Say how much of the prompt came from the cache of earlier turns, and how large the cache is."""
    if trace.reused is None:
        return UNKNOWN
    of = f" of {len(trace.prompt_ids):,}" if trace.prompt_ids else ""
    weighs = f", {megabytes(trace.reused.bytes, 1)}" if trace.reused.bytes else ""
    return f"{trace.reused.tokens:,}{of} tokens{weighs}"


def from_cache(trace: Trace) -> Figure | None:
    """Return the number of cached tokens that the TTFT of a later turn leaves out; None where nothing was reused."""
    if not trace.reused or not trace.reused.tokens:
        return None
    weighs = f"; these caches weigh {megabytes(trace.reused.bytes, 1)}" if trace.reused.bytes else ""
    meaning = f"tokens of the prompt that the cache of earlier turns held, so that TTFT leaves them out{weighs}"
    of = f"of {len(trace.prompt_ids):,}" if trace.prompt_ids else "tokens"
    return Figure("From cache", f"{trace.reused.tokens:,}", of, meaning)


def out_of_context(lane: Trace) -> str:
    """Say in how many rounds the text was too long for the drafter; "" if in none."""
    past = [round_.past_context for round_ in lane.rounds if round_.past_context is not None]
    if not past:
        return ""
    return (
        f"The drafter's context holds {count(past[0], 'token')}, and the text is longer: nothing was drafted in "
        f"{len(past):,} of {count(len(lane.rounds), 'round')}. Choose a drafter with a longer context, or a shorter "
        "text."
    )


def shortage(lane: Trace) -> str:
    """Say whether drafts were cut to save memory; "" if not."""
    capped = sum(round_.capped for round_ in lane.rounds)
    if not capped:
        return ""
    return (
        f"Memory was short: drafts were cut in {capped:,} of {count(len(lane.rounds), 'round')} to keep "
        f"{lane.lane.keep_free_gb:g} GB free."
    )


RULES = {
    "token": "Token by token",
    "block": "Block verification",
    "recursive": "Recursive rejection",
    "traversal": "Traversal",
}


def both_rules(trace: Trace) -> str:
    """Say how many tokens of the same drafts the other exact rule would have accepted; "" where none was sampled."""
    return of_both_rules(verified_by(trace.lane), metrics.both_rules(trace.rounds))


def of_both_rules(used: str, found: metrics.BothRules | None) -> str:
    """Say how many tokens the rule `used` accepted, and how many the other exact rule would have; "" without
    `found`."""
    if not found:
        return ""
    return (
        f"{RULES[used]} kept {found.accepted:,} tokens of {count(found.drafts, 'sampled draft')}. "
        f"{RULES[OTHER_RULE[used]]} would have kept {found.other_rule:,} of the same drafts with the same random "
        f"numbers: {found.gain:+.2f} tokens a draft."
    )


def done(comparison: Comparison, waited_s: float | None = None) -> str:
    """Return the status line of a finished comparison. `waited_s`: seconds that the user waited for it; None for one
    that was opened."""
    stopped = any(trace.finish == "stopped" for trace in comparison.lanes)
    environment = comparison.others[0].environment
    if waited_s is None:
        return f"{'Stopped. ' if stopped else ''}Ran on {environment_line(environment)}."
    where = environment.device_name or "an unknown device"
    return f"{'Stopped after' if stopped else 'Done in'} {waited_s:.1f} s on {where}."


def stopped(found: Measured) -> str:
    """Return the status line of a comparison that was just stopped: how far both lanes got, and what that gives."""
    tokens = [len(trace.tokens) for trace in (found.base, found.ours)]
    if not min(tokens):
        return f"Stopped after {count(max(tokens), 'token')} of one lane: nothing to compare yet."
    if found.speedup is None:
        return f"Stopped after {count(min(tokens), 'token')} of both lanes: too few to compare."
    return f"Stopped after {count(min(tokens), 'token')}. Both lanes compared so far: {ratio(found.speedup)}."


def environment_line(environment: Environment) -> str:
    """Return device, the format of the weights and an unusual way of running passes, short enough for a status line."""
    threads = f"{count(environment.threads, 'thread')}" if environment.device == "cpu" and environment.threads else ""
    passes = runner(environment).partition(":")[0]  # the reason is for the details
    weights = (environment.dtype or "").partition(",")[0]
    known = [environment.device_name, weights, threads, "" if passes == "eager" else passes]
    return " · ".join(filter(None, known)) or "unknown device"


def runner(environment: Environment) -> str:
    """Return how the target's passes are run, such as "own CPU kernels (AMX)"."""
    return (environment.runner or "eager").replace("native", "own CPU kernels")


def precision(environment: Environment) -> str:
    """Return the formats of weights and of what is computed with them. Products by AMX keep 16 of float32's 24 bits of
    an activation; the first traces of these call it float32."""
    weights, _, computed = (environment.dtype or UNKNOWN).partition(" weights, ")
    if weights == "bfloat16" and "AMX" in (environment.runner or ""):
        return "bfloat16 weights; activations as sums of two bfloat16, with 16 bits of precision; added up in float32"
    return f"{weights} weights, computed with {computed}" if computed else weights


def run_at(environment: Environment) -> str:
    """Return date and time of a run, to the minute."""
    return environment.created.replace("T", " ")[:16]


def _time(seconds: float | None) -> tuple[str, str]:
    """Return value and unit."""
    if seconds is None:
        return UNKNOWN, "ms"
    return (f"{seconds * 1000:.0f}", "ms") if seconds < 10 else (f"{seconds:.1f}", "s")


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"
