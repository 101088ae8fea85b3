"""Settings to deploy: a measured lane in the terms of other engines, or the nearest that each can decode.

A load test gives a schedule of draft lengths, for engines that change the lookahead with the batch.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from playground import __version__, metrics
from playground.drafting_methods import METHODS
from playground.lane import LOCAL, Lane, Request, label, names, preset_of
from playground.metrics.load import pays
from playground.presets import Pair, load_pairs
from playground.results import LoadResult
from playground.trace import Comparison
from playground.views import headline
from playground.views.engine_commands import (
    ENGINES,
    CannotError,
    Wanted,
    check_known,
    export_command,
    hub_name,
    sent_with_each,
)


@dataclass(frozen=True)
class Settings:
    """A lane's settings for one engine. `text`: to paste, in `language`; "" where the engine cannot decode this way.
    `note`: why not, or what differs from the measured lane. `instead`: the name of the lane that it decodes in place of
    the requested one, or "". `drafter`: that lane's method, where it did not run here; else "". `lane`: its own
    name, where it did; else "". `about`: what is known of that lane, with which the notes of several engines begin."""

    engine: str
    written_for: str
    language: str
    text: str
    note: str = ""
    instead: str = ""
    drafter: str = ""
    lane: str = ""
    about: str = ""


def settings(lane: Lane, method: str | None = None, request: Request | None = None) -> list[Settings]:
    """Return the settings of a lane for each engine.

    Args:
        method: the method whose weights a tree uses, as `Pair.drafts_by` names it; None looks up the preset with these
            models.
        request: the measured request.
    """
    own = METHODS[lane.drafter].weights or not METHODS[lane.drafter].tree
    method = lane.drafter if own else method or _network(lane)
    layers = re.search(r"\d+", lane.assistant or "") if method == "early-exit" else None
    model = layers[0] if layers else hub_name(lane.assistant or "")
    wanted = Wanted(hub_name(lane.target), method, model, lane.lookahead, lane, request)
    written = []
    for engine, (written_for, language, write) in ENGINES.items():
        try:
            check_known(wanted)
            step = export_command(wanted, engine)
            text, note = write(wanted)
            if step and language == "shell":
                text = f"{step}\n{text}"
            elif step:
                note = f"{note} First write the drafter: `{step}`."
        except CannotError as reason:
            text, note = "", str(reason)
        also = sent_with_each(engine, request) if text else ""
        note = f"{' '.join(note.split())} {also}".strip()  # a line: a comment
        written.append(Settings(engine, written_for, language, text, note))
    return written


def runs_in(lane: Lane) -> str:
    """Return the engines that can decode this way, such as "vLLM, SGLang"; for a server's lane, that server."""
    if lane.backend != LOCAL:
        return lane.program
    able = [it.engine for it in settings(lane) if it.text]
    return ", ".join(able) or "only here"


def of_ranked(given: Mapping[Lane, str], method: str | None = None, request: Request | None = None) -> list[Settings]:
    """Return for each engine the first of these lanes that it can decode, so that every verdict ends in a command. If
    they include neither prompt lookup nor standard decoding, prompt lookup is tried last, because it needs no weights.

    Args:
        given: lanes of this process, the most wanted first, each with its measured speed-up, such as "1.42×".
        method, request: see `settings`.
    """
    wanted = next(iter(given))
    lookup = replace(wanted, name=METHODS["ngram"].label, drafter="ngram", assistant=None)
    known = any(lane.drafter in ("ngram", "none") for lane in given)
    tried = given if known else {**given, lookup: ""}
    written = {lane: settings(lane, method, request) for lane in tried}
    return [_first_able([(lane, written[lane][i], gave) for lane, gave in tried.items()]) for i in range(len(ENGINES))]


def _first_able(tried: Sequence[tuple[Lane, Settings, str]]) -> Settings:
    """Return the first settings that one engine can decode. `tried`: each lane with its settings and its measured
    speed-up, "" if it did not run."""
    (wanted, wanted_settings, _), *_ = tried
    for lane, written, gave in tried:
        if not written.text:
            continue
        given = f"{gave} here" if gave else "not measured here"
        said = f"{given[0].upper()}{given[1:]}."
        if lane == wanted:
            return replace(written, note=f"{said} {written.note}".strip(), about=said)
        name = names([lane])[label(lane)] if lane.drafter != "none" else lane.name
        nearest = said if lane.drafter == "none" else f"The nearest is {name}: {given}."
        about = f"{wanted_settings.note} {nearest}".strip()
        ran = {"lane": lane.name} if gave else {"drafter": lane.drafter}
        return replace(written, note=f"{about} {written.note}".strip(), about=about, instead=name, **ran)
    return next((why_not for lane, why_not, _ in tried if lane.drafter == "ngram"), wanted_settings)


def first(found: Sequence[Settings]) -> Settings | None:
    """Return the command to show on its own: that of the requested lane where an engine has it. None if no engine has
    any."""
    return min((it for it in found if it.text), key=lambda it: bool(it.instead), default=None)


def of_comparison(comparison: Comparison, lane: Lane, method: str | None = None) -> list[Settings]:
    """Return the settings of `of_ranked` for this lane and then the others, the fastest first. The list is empty for a
    lane that drafts nothing, is lossy or has drawn verdicts, for one whose drafter has too short a context for the
    text, and for a server's, which is already deployed. For a trained drafter that is accepted no more often than by
    chance it is the command that examines it."""
    if lane.drafter == "none" or lane.backend != LOCAL or lane.forced_rates or lane.rule != "exact":
        return []
    ranked = [it for it in metrics.ranked(comparison) if not metrics.out_of_context(it.ours.rounds)]
    found = {it.ours.lane: headline.speedup(it) for it in ranked}
    if lane not in found:
        return []
    trace = metrics.measured(comparison, lane.name).ours
    kind = METHODS[lane.drafter]
    if kind.drafts_with and kind.weights != "layers" and (chance := metrics.first_of_chance(trace)):
        return [_examined(lane, *chance)]
    able = [it for it in found if it.backend == LOCAL and not it.forced_rates and it.drafter != "none"]
    return of_ranked({it: found[it] for it in (lane, *able)}, method, comparison.standard.request)


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


def _network(lane: Lane) -> str:
    """Return the method whose weights a lane's tree uses; "" where no preset has these models."""
    pair = preset_of(lane, _presets())
    return (pair.drafts_by(lane.drafter) or "") if pair else ""


def text(found: Sequence[Settings]) -> str:
    """Return all settings as text for a terminal."""
    parts = []
    for it in found:
        note = f"# {it.note}\n" if it.note else ""
        parts.append(f"# {it.engine} (written for {it.written_for})\n{note}{it.text}".rstrip())
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
