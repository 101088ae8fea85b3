"""Settings to deploy: a measured lane in the terms of other engines, or the nearest measured one that each can decode.

Engines draft a constant number of tokens, and most of them chains. A speed-up is shown with a command only where that
very setting was measured; otherwise its note says so, and how to measure it.

A load test gives a schedule of draft lengths, for engines that change the lookahead with the batch.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from playground import __version__, metrics, theory
from playground.drafting_methods import METHODS
from playground.lane import LOCAL, Lane, Request, label, names, preset_of
from playground.metrics import Measured
from playground.metrics.load import pays
from playground.presets import NATIVE, Pair, load_pairs
from playground.results import LoadResult
from playground.trace import Comparison, Trace
from playground.views import again, headline
from playground.views.engine_commands import (
    ENGINES,
    LLAMA_DRAFTS,
    MIXED,
    ONLY_HERE,
    CannotError,
    Wanted,
    as_exported,
    check_known,
    export_command,
    hub_name,
    sent_with_each,
)


@dataclass(frozen=True)
class Settings:
    """A lane's settings for one engine. `text`: to paste, in `language`; "" where the engine cannot decode this way.
    `note`: why not, or what differs from the measured lane. `instead`: the name of the lane that it decodes in place of
    the requested one, or "". `drafter`, `lookahead`: the method and the constant lookahead to run for the speed-up of
    this very setting, where it was not measured and can be here; else "" and 0. `lane`: the name of the lane that has
    measured it, where that is another than the requested one; else "". `about`: what is known of the setting, with
    which the notes of several engines begin."""

    engine: str
    written_for: str
    language: str
    text: str
    note: str = ""
    instead: str = ""
    drafter: str = ""
    lookahead: int = 0
    lane: str = ""
    about: str = ""


@dataclass(frozen=True)
class Given:
    """What a lane gave here. `figure`: its speed-up in words, such as "1.42×"; "" where it did not run. `lookahead`:
    the constant one that replaces its policy in engines. `chosen`: how that was found; "" for the lane's own."""

    figure: str
    lookahead: int
    chosen: str = ""


BY_COSTS = "{} is the best constant lookahead by this run's costs and acceptance."
BY_ACCEPTANCE = "Lookahead {} is one more than a check accepted on average."
SERVERS = ("vLLM", "SGLang", "llama-server")


def settings(lane: Lane, method: str | None = None, request: Request | None = None) -> list[Settings]:
    """Return the settings of a lane for each engine.

    Args:
        method: the method whose weights a tree uses, as `Pair.drafts_by` names it; None looks up the preset with these
            models.
        request: the measured request.
    """
    return [_settings(engine, lane, method, request)[0] for engine in ENGINES]


def _settings(engine: str, lane: Lane, method: str | None, request: Request | None) -> tuple[Settings, str]:
    """Return the settings of a lane for one engine, and how it drafts otherwise; see `Written`."""
    written_for, language, write = ENGINES[engine]
    wanted = _wanted(engine, lane, method, request)
    try:
        check_known(wanted, engine)
        step = export_command(wanted, engine)
        text, differs, note = write(wanted)
    except CannotError as reason:
        return Settings(engine, written_for, language, "", str(reason)), ""
    if step and language == "shell":
        text = f"{step}\n{text}"
    elif step:
        note = f"{note} First write the drafter: `{step}`."
    note = f"{_line(note)} {sent_with_each(engine, request)}".strip()
    return Settings(engine, written_for, language, text, note), differs


def _line(note: str) -> str:
    """Return a note as one line, which a comment is."""
    return " ".join(note.split())


def _wanted(engine: str, lane: Lane, method: str | None, request: Request | None) -> Wanted:
    """Return a lane in the terms of an engine. A lookup that llama-server combines with a draft takes the first of the
    preset's drafters that it reads, where it does not read the lane's own."""
    method = _network(lane, method)
    layers = re.search(r"\d+", lane.assistant or "") if method == "early-exit" else None
    model = layers[0] if layers else hub_name(lane.assistant or "")
    wanted = Wanted(hub_name(lane.target), method, model, lane, request)
    pair = preset_of(lane, _presets())
    if engine == "llama-server" and lane.drafter in MIXED and pair and method in ONLY_HERE and model != NATIVE:
        read = ((name, str(weights)) for name, weights in pair.weights.items() if name in LLAMA_DRAFTS)
        other = next((it for it in read if it[0] not in ONLY_HERE), None)
        return replace(wanted, method=other[0], model=other[1]) if other else wanted
    return wanted


def runs_in(lane: Lane) -> str:
    """Return the engines that can decode this way, such as "vLLM, SGLang"; for a server's lane, that server."""
    if lane.backend != LOCAL:
        return lane.program
    able = [it.engine for it in settings(lane) if it.text]
    return ", ".join(able) or "only here"


def of_ranked(
    given: Mapping[Lane, Given],
    method: str | None = None,
    ran: Trace | None = None,
    known: Mapping[Lane, Given] | None = None,
) -> list[Settings]:
    """Return for each engine the first of these lanes that it can decode, with what is known of that very setting.

    Args:
        given: lanes of this process, the most wanted first.
        method: see `settings`.
        ran: the baseline's run, with the request and the machine; None where there was more than one.
        known: all lanes that ran, where there are more than those given.
    """
    measured = {_setting(lane): (lane, it.figure) for lane, it in {**given, **(known or {})}.items() if it.figure}
    return [_of_engine(engine, given, measured, method, ran) for engine in ENGINES]


def _of_engine(
    engine: str,
    given: Mapping[Lane, Given],
    measured: Mapping[object, tuple[Lane, str]],
    method: str | None,
    ran: Trace | None,
) -> Settings:
    (wanted, *_), refused = given, ""
    for lane, gave in given.items():
        exported = as_exported(lane, engine, gave.lookahead)
        found, differs = _settings(engine, exported, method, ran.request if ran else None)
        if not found.text:
            refused = refused or found.note
            continue
        own = {_setting(lane): (lane, gave.figure)} if gave.figure else {}  # before others of the same setting
        by, figure = {**measured, **own}.get(_setting(exported), (None, "")) if not differs else (None, "")
        if exported.drafter == "none":
            figure, about = "", f"{gave.figure[0].upper()}{gave.figure[1:]} here."
        elif figure:
            about = f"Measured as exported: {figure}."
        else:
            about = _not_measured(engine, lane, exported, gave, differs, ran)
            if not differs:
                found = replace(found, drafter=exported.drafter, lookahead=exported.lookahead)
        if lane != wanted:
            name = names([exported])[label(exported)] if exported.drafter != "none" else exported.name
            nearest = "" if exported.drafter == "none" else f"The nearest is {name}."
            about, found = f"{refused} {nearest} {about}", replace(found, instead=name)
        if by and figure and by != wanted:
            found = replace(found, lane=by.name)
        about = _line(about)
        return replace(found, note=f"{about} {found.note}".strip(), about=about)
    return Settings(engine, *ENGINES[engine][:2], "", refused)


def _setting(lane: Lane) -> object:
    """Return all that a lane's speed depends on."""
    return label(lane), lane.target, lane.assistant, lane.adapter, lane.keep_free_gb


def _not_measured(engine: str, lane: Lane, exported: Lane, gave: Given, differs: str, ran: Trace | None) -> str:
    """Say that an exported setting was not measured, why, and how to measure it."""
    chosen = gave.chosen if exported != lane else ""
    if differs:
        how = (
            f"Start {engine} so and once without a drafter, and run "
            "`python -m playground compare --baseline-server URL --server URL` with your prompt."
        )
        return f"Not measured: {differs}. {chosen} {how if engine in SERVERS else ''}"
    cause = "" if lane.policy == "constant" else f" The lane ran with the lookahead policy {lane.policy}."
    command = again.measuring(exported, ran, _presets())
    return f"Not measured as exported.{cause} {chosen} Measure it: `{command}`."


def first(found: Sequence[Settings]) -> Settings | None:
    """Return the command to show on its own: that of the requested lane where an engine has it. None if no engine has
    any."""
    return min((it for it in found if it.text), key=lambda it: bool(it.instead), default=None)


def shown(found: Sequence[Settings]) -> list[Settings]:
    """Return the settings that a report shows: the first command, or why no engine has one."""
    if not found:
        return []
    reasons = " ".join(dict.fromkeys(it.note for it in found))
    return [first(found) or Settings("No engine", "", "", "", reasons)]


def of_comparison(comparison: Comparison, lane: Lane, method: str | None = None) -> list[Settings]:
    """Return the settings of `of_ranked` for this lane; where an engine does not have it, for those that were seen to
    be faster than the baseline, and at last for the chain of a tree's network. The list is empty for a lane that drafts
    nothing, is lossy or has drawn verdicts, for one whose drafter has too short a context for the text, and for a
    server's, which is already deployed. For a trained drafter that is accepted no more often than by
    chance it is the command that examines it."""
    if lane.drafter == "none" or lane.backend != LOCAL or lane.forced_rates or lane.rule != "exact":
        return []
    ranked = [it for it in metrics.ranked(comparison) if not metrics.out_of_context(it.ours.rounds)]
    found = {it.ours.lane: it for it in ranked if it.ours.lane.backend == LOCAL and not it.ours.lane.forced_rates}
    if lane not in found:
        return []
    kind = METHODS[lane.drafter]
    if kind.drafts_with and kind.weights != "layers" and (chance := metrics.first_of_chance(found[lane].ours)):
        return [_examined(lane, *chance)]
    given = {it: _given(measured) for it, measured in found.items() if it.drafter != "none"}
    faster = [it for it in given if found[it].outcome == "faster" and it.rule == "exact"]
    tried = {it: given[it] for it in (lane, *faster)}
    if chain := _chain(lane, _network(lane, method)):
        tried[chain] = Given("", given[lane].lookahead, f"The lane drafted a tree. {given[lane].chosen}")
    return of_ranked(tried, method, comparison.standard, given)


def _given(found: Measured) -> Given:
    """Return what a lane of a comparison gave, and the constant lookahead that replaces its policy."""
    lane, figure = found.ours.lane, headline.speedup(found)
    if _constant(lane):
        return Given(figure, lane.lookahead)
    lookahead, by_costs = theory.constant(found.base, found.ours)
    return Given(figure, lookahead, (BY_COSTS if by_costs else BY_ACCEPTANCE).format(lookahead))


def given_by(lane: Lane, figure: str, tokens_per_check: float | None) -> Given:
    """Return what a lane gave over several prompts, and the constant lookahead that replaces its policy."""
    if _constant(lane):
        return Given(figure, lane.lookahead)
    lookahead = min(lane.lookahead, max(1, round(tokens_per_check or 1)))
    return Given(figure, lookahead, BY_ACCEPTANCE.format(lookahead))


def _constant(lane: Lane) -> bool:
    return lane.policy == "constant" and not METHODS[lane.drafter].tree


def _chain(lane: Lane, method: str) -> Lane | None:
    """Return the lane of the chain that a tree's network drafts; None for other lanes, and for a tree with a lookup,
    which such a chain would lack."""
    if lane.drafter != "tree" or not method:
        return None
    return replace(lane, name=f"{METHODS[method].label} chain", drafter=method, policy="constant")


def _examined(lane: Lane, accepted: int, drafted: int) -> Settings:
    """Return the command that examines a lane's drafter. `accepted`, `drafted`: its first draft tokens."""
    pair = preset_of(lane, _presets())
    of = ["--pair", pair.name] if pair else ["--target", lane.target, "--assistant", str(lane.assistant)]
    command = shlex.join(["python", "-m", "playground", "doctor", *of, "--drafter", lane.drafter])
    note = (
        f"{accepted} of {drafted} first draft tokens were accepted, no more than chance gives. Before you deploy it, "
        "find out whether the drafter is broken, mismatched or read wrongly."
    )
    return Settings("a terminal", f"version {__version__}", "shell", command, note)


@cache
def _presets() -> tuple[Pair, ...]:
    return tuple(load_pairs()[0].values())


def _network(lane: Lane, method: str | None) -> str:
    """Return the method whose weights a lane uses: of a tree without its own the given one, or that of the preset with
    these models; "" where there is none."""
    if METHODS[lane.drafter].weights or not METHODS[lane.drafter].tree:
        return lane.drafter
    pair = preset_of(lane, _presets())
    return method or (pair.drafts_by(lane.drafter) if pair else None) or ""


def text(found: Sequence[Settings]) -> str:
    """Return all settings as text for a terminal."""
    parts = []
    for it in found:
        note = f"# {it.note}\n" if it.note else ""
        written_for = f" (written for {it.written_for})" if it.written_for else ""
        parts.append(f"# {it.engine}{written_for}\n{note}{it.text}".rstrip())
    return "\n\n".join(parts)


Schedule = Sequence[tuple[int, int]]  # users at the same time, and the tokens to draft for each; 0 for none


def schedule(result: LoadResult) -> list[tuple[int, int]]:
    """Return for each level of users the lookahead of the fastest lane; 0 where none was seen to pay. An open-loop test
    returns nothing, because it does not fix the batch."""
    if not all(level.concurrency for level in result.levels):
        return []
    lookahead = {lane.name: lane.lookahead for lane in result.lanes}
    found = []
    for level in sorted({gain.level for gain in result.gains}, key=lambda level: level.size):
        paying = [gain for gain in result.gains if gain.level == level and pays(gain)]
        best = max(paying, key=lambda gain: gain.speedup, default=None)
        found.append((int(level.size), lookahead[best.lane] if best else 0))
    return found


def load_settings(levels: Schedule) -> list[Settings]:
    """Return the settings of engines with one entry for each measured level; nothing where no level pays."""
    if not any(k for _, k in levels):
        return []
    most = max(k for _, k in levels)
    starts = [1, *(users + 1 for users, _ in levels[:-1])]
    ranges = [[start, users, k] for start, (users, k) in zip(starts, levels, strict=True)]
    vllm = {"num_speculative_tokens": most, "num_speculative_tokens_per_batch_size": ranges}
    sglang = {str(start): {"candidate_steps": sorted({0, k})} for start, _, k in ranges}  # from this batch on
    lines = ["speculative_config:", f"  max_draft_len: {most}", "  draft_len_schedule:"]
    lines += [f"    {users}: {k}" for users, k in levels]
    beyond = f"Measured up to {levels[-1][0]} users; a batch is taken to be as large as the number of users."
    return [
        Settings("vLLM", "vLLM 0.32", "json", json.dumps(vllm), f"Into --speculative-config. {beyond}"),
        Settings(
            "SGLang",
            "SGLang 0.5.23",
            "json",
            json.dumps(sglang),
            "As a file for --speculative-adaptive-config, with --speculative-adaptive and --speculative-eagle-topk 1. "
            f"EAGLE and EAGLE-3 only. It chooses between drafting and not by its own measure. {beyond}",
        ),
        Settings("TensorRT-LLM", "TensorRT-LLM's documentation of autumn 2026", "yaml", "\n".join(lines), beyond),
    ]
