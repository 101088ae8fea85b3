"""The words of a terminal's command that runs a lane: its models, and the settings that are not at their defaults."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any

from playground.lane import LOCAL, Lane, preset_of
from playground.presets import DTYPES, Pair
from playground.settings import ANSWER, DRAFTING, PRESET, SETTINGS, default, flag
from playground.trace import Environment, Trace

LONG = 200  # characters of a prompt that a command in a sentence holds


def models_of(lane: Lane, pairs: Iterable[Pair]) -> tuple[list[str], dict[str, Any]]:
    """Return the options that name a lane's models, none for a server's, and the defaults of all settings with them.

    Args:
        pairs: the presets, which the options name where they can.
    """
    usual = {name: default(name) for name in (*DRAFTING, *ANSWER)}
    if lane.backend != LOCAL:
        return [], usual
    if pair := preset_of(lane, pairs):
        return ["--pair", pair.name], usual | {name: getattr(pair, name) for name in PRESET}
    return ["--target", lane.target, *_assistant(lane.assistant)], usual


def option(name: str, value: object, usual: object) -> list[str]:
    """Return the option of a setting; none at its default."""
    if value == usual:
        return []
    if isinstance(value, bool):
        return [flag(name) if value else flag(name).replace("--", "--no-", 1)]
    return [f"{flag(name)}={value}"]  # one word, so that a text may begin with a dash


def format_of(environment: Environment) -> list[str]:
    """Return the option of a run's number format, where it has one."""
    dtype = (environment.dtype or "").split(" ")[0]
    return ["--dtype", dtype] if dtype in DTYPES else []


def measuring(lane: Lane, ran: Trace | None, pairs: Iterable[Pair]) -> str:
    """Return the command that measures a drafting lane of this process, in one line: with the request and the number
    format of a run or, without one, on a suite of prompts. Texts of several lines, and long ones, are named as
    files."""
    models, usual = models_of(lane, pairs)
    words = [*models, "--drafter" if ran else "--drafters", lane.drafter]
    words += ["--lookahead", str(lane.lookahead), "--policy", lane.policy]
    if ran is None:
        return shlex.join(["python", "-m", "playground", "suite", *words])
    request, words = ran.request, [*words, *format_of(ran.environment)]
    for name in ANSWER:
        value = getattr(request, name)
        long = SETTINGS[name].text and not _short(value)
        words += option(name, f"{name.upper()}.txt" if long else value, usual[name])
    if request.history:
        words.append("--messages=MESSAGES.json")
    prompt = [f"--prompt={request.prompt}"] if _short(request.prompt) else ["--prompt-file=PROMPT.txt"]
    return shlex.join(["python", "-m", "playground", "compare", *words, *(prompt if request.prompt else [])])


def _short(text: str) -> bool:
    return len(text) <= LONG and text == " ".join(text.split())


def _assistant(name: str | None) -> list[str]:
    """Return the option for the drafter's weights, as `Pair.weights_of` names them."""
    if name is None or name == "native":
        return []
    layers = re.fullmatch(r"its first (\d+) layers", name)
    return ["--early-exit", layers[1]] if layers else ["--assistant", name]
