"""A comparison as Markdown, to paste into an issue or a chat, and the command that repeats it.

Names, devices and prompts are untrusted: in a table cell they are escaped, and the fence of a code block is longer than
any in the text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from playground import metrics
from playground.lane import LOCAL, preset_of
from playground.presets import DTYPES, Pair
from playground.settings import ANSWER, DRAFTING, PRESET, default, flag
from playground.trace import Comparison
from playground.views import facts, headline, run_details
from playground.views.comparison import figures
from playground.views.table import escaped


def table(comparison: Comparison, pairs: Iterable[Pair]) -> str:
    """Return Markdown with each lane's figures, whether the outputs are the same, settings, device, and the command.

    Args:
        pairs: the presets, which the command names where it can.
    """
    sentences = [f"- {escaped(sentence)}" for sentence in _sentences(comparison)]
    command = repeat(comparison, pairs)
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", command) or [""]))
    return "\n".join([figures(comparison).markdown(), "", *sentences, "", f"{fence}sh", command, fence, ""])


def repeat(comparison: Comparison, pairs: Iterable[Pair]) -> str:
    """Return the command that runs the first drafting lane's comparison again: the models, and each setting that is not
    at its default."""
    trace = comparison.others[0]
    lane, request = trace.lane, trace.request
    pair = preset_of(lane, pairs)
    usual = {name: default(name) for name in (*DRAFTING, *ANSWER)}
    if lane.backend != LOCAL:
        models = []
    elif pair:
        models = ["--pair", pair.name]
        usual |= {name: getattr(pair, name) for name in PRESET}
    else:
        models = ["--target", lane.target, *_assistant(lane.assistant)]
    here = [other.lane for other in comparison.others if other.lane.backend == LOCAL and not other.lane.forced_rates]
    drafters = [] if not here else ["--drafter", lane.drafter] if len(here) == 1 else ["--all-drafters"]
    words = [*models, *drafters, *_servers(comparison)]
    if again := sum(len(traces) == len(comparison.lanes) for traces in comparison.repeats):
        words.append(f"--repeat={again}")
    dtype = (trace.environment.dtype or "").split(" ")[0]
    if dtype in DTYPES:
        words += ["--dtype", dtype]
    for rates in (other.lane.forced_rates for other in comparison.others if other.lane.forced_rates):
        words.append(f"--force-acceptance={','.join(map(str, rates))}")
    for name, value in usual.items():
        words += _option(name, getattr(lane if name in DRAFTING else request, name), value)
    words += _option("messages", request.history_json, "")
    prompt = [f"--prompt={request.prompt}"] if request.prompt else []
    return shlex.join(["python", "-m", "playground", "compare", *words, *prompt])


def _servers(comparison: Comparison) -> list[str]:
    """Return the options that name the servers which decoded lanes."""
    lanes = {"--baseline-server": comparison.standard.lane, "--server": comparison.others[-1].lane}
    return [word for flag, lane in lanes.items() if lane.backend != LOCAL for word in (flag, lane.server_url)]


def _option(name: str, value: object, usual: object) -> list[str]:
    if value == usual:
        return []
    if isinstance(value, bool):
        return [flag(name) if value else flag(name).replace("--", "--no-", 1)]
    return [f"{flag(name)}={value}"]  # one word, so that a text may begin with a dash


def _assistant(name: str | None) -> list[str]:
    """Return the option for the drafter's weights, as `Pair.weights_of` names them."""
    if name is None or name == "native":
        return []
    layers = re.fullmatch(r"its first (\d+) layers", name)
    return ["--early-exit", layers[1]] if layers else ["--assistant", name]


def _sentences(comparison: Comparison) -> list[str]:
    """Return what the headline compares, each lane against the baseline, then settings and machine."""
    lanes = [metrics.measured(comparison, other.lane.name) for other in comparison.others]
    meaning = headline.meaning(lanes[0])
    said = [f"{meaning[0].upper()}{meaning[1:]}."]
    for found in lanes:
        name = f"{found.ours.lane.name}: " if len(lanes) > 1 else ""
        sentences = facts.sameness(found), facts.out_of_context(found.ours), *headline.doubts(found)
        said += [name + sentence for sentence in sentences if sentence]
    said += facts.left_out(*comparison.lanes)
    wanted = ("Target", "Drafter", "Lookahead", "Decoding", "Limit", "Ran on", "Run at")
    known = dict(run_details.details(lanes[0]))
    return said + [f"{name}: {known[name]}" for name in wanted]
