"""The benchmark: ratios of interleaved runs with their spread, and two plain measurements (start, memory).

A ratio's part runs two ways of doing the same in turn, pair by pair, and gives the ratio of each pair: above 1, ours is
faster. A noisy machine slows both sides of a pair alike, so the ratios hold where seconds do not.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from playground.bench import page
from playground.decoding.clock import Clock
from playground.decoding.text import encode
from playground.errors import PlaygroundError
from playground.experiments.compare import LaneRun, room_for
from playground.experiments.environment import describe
from playground.lane import Lane, Request, assisted_lane
from playground.models.load import LoadedModel
from playground.models.networks.early_exit import first_layers
from playground.models.store import LoadedPair, ModelStore
from playground.presets import Pair, load_pairs, load_suites
from playground.progress import Progress

ASSISTANT_SHARE = 5  # an assistant cut from a target has one of this many layers
LOOKAHEAD = 5
LONG_TOKENS = 1000
LONG_RUNS = 2
PRESETS_ALONE = {"page", "long", "start", "memory"}  # parts whose own process takes a preset by its name


@dataclass(frozen=True)
class Result:
    """One value a run, or a pair of runs. `unit` is "×" for a ratio. `identical`: whether the outputs of all pairs were
    the same tokens; None where that is not compared."""

    what: str
    values: tuple[float, ...]
    unit: str = "×"
    identical: bool | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        same = {True: ", same tokens", False: ", NOT the same tokens", None: ""}[self.identical]
        runs = "interleaved pairs" if self.unit == "×" else "runs"
        spread = f"{min(self.values):.2f} to {max(self.values):.2f}, {len(self.values)} {runs}{same}"
        return f"{self.what}: {self.median:.2f} {self.unit} ({spread})"


def run(
    pair: Pair,
    *,
    runs: int,
    max_new_tokens: int,
    only: Collection[str] | None,
    dtype: str,
    device: str,
    say: Callable[[str], None],
) -> dict:
    """Runs the parts named in `only` (all without it) and says each result as it comes.

    Returns:
        The results and the environment, as JSON takes them.
    """
    parts = {
        "standard": _standard,
        "ngram": _ngram,
        "assistant": _assistant,
        "page": _page,
        "long": _long,
        "start": _start,
        "memory": _memory,
    }
    unknown = set(only or ()) - parts.keys()
    if unknown:
        raise PlaygroundError(f"The benchmark has no part {', '.join(sorted(unknown))}, only {', '.join(parts)}.")
    presets, _ = load_pairs()
    if pair.name not in presets:
        asked = PRESETS_ALONE & set(only or ())
        if asked:
            raise PlaygroundError(f"{', '.join(sorted(asked))} takes a preset, by --pair: another process loads it.")
        parts = {name: part for name, part in parts.items() if name not in PRESETS_ALONE}
    models = ModelStore().get(pair, drafter="ngram", dtype=dtype, device=device, progress=lambda step: say(_line(step)))
    environment = describe(models, Lane("Standard", pair.target))
    say(f"{environment.device_name}, {environment.device}, {environment.dtype}, {environment.threads} threads")
    results = []
    for name, part in parts.items():
        if not only or name in only:
            for result in part(models, runs, max_new_tokens):
                say(str(result))
                results.append({**dataclasses.asdict(result), "median": result.median})
    return {"environment": dataclasses.asdict(environment), "results": results}


def _standard(models: LoadedPair, runs: int, n: int) -> list[Result]:
    lane = Lane("Standard", models.pair.target)
    return [_against_generate("standard lane against generate()", models, lane, runs, n, {})]


def _ngram(models: LoadedPair, runs: int, n: int) -> list[Result]:
    lane = assisted_lane(models.pair, "ngram", LOOKAHEAD)
    options = {"prompt_lookup_num_tokens": LOOKAHEAD}
    return [_against_generate("n-gram lane against generate(prompt_lookup_num_tokens)", models, lane, runs, n, options)]


def _assistant(models: LoadedPair, runs: int, n: int) -> list[Result]:
    """With an assistant cut from the target: how much is accepted is beside the point here, both sides draft the
    same."""
    assistant = _cut_from(models.target)
    models = dataclasses.replace(models, drafting=assistant, pair=dataclasses.replace(models.pair, assistant="x"))
    config = assistant.model.generation_config
    config.num_assistant_tokens = LOOKAHEAD
    config.num_assistant_tokens_schedule = "constant"
    config.assistant_confidence_threshold = 0.0
    lane = assisted_lane(models.pair, "assistant", LOOKAHEAD)
    what = f"assistant lane against generate(assistant_model), assistant {assistant.name}"
    return [_against_generate(what, models, lane, runs, n, {"assistant_model": assistant.model})]


def _page(models: LoadedPair, runs: int, n: int) -> list[Result]:
    ratios = page.page_against_headless(models.pair, runs, n)
    return [Result(f"{name} against headless", tuple(values)) for name, values in ratios.items()]


def _long(models: LoadedPair, runs: int, n: int) -> list[Result]:
    ratios = page.page_against_headless(models.pair, min(runs, LONG_RUNS), LONG_TOKENS)
    return [Result(f"{LONG_TOKENS} tokens: {name} against headless", tuple(v)) for name, v in ratios.items()]


def _start(models: LoadedPair, runs: int, n: int) -> list[Result]:
    seconds = [page.seconds_to_answer(models.pair) for _ in range(runs)]
    return [Result("`python app.py` until the page answers, weights cached", tuple(seconds), "s")]


def _memory(models: LoadedPair, runs: int, n: int) -> list[Result]:
    """The largest resident set of a whole `compare` process, libraries included."""
    command = [sys.executable, "-m", "playground", "compare", "--pair", models.pair.name, "--dtype", "bfloat16"]
    command += ["--max-new-tokens", str(n), "--prompt", "Write a list of ten animals.", "--json", os.devnull]
    peaks = []
    for _ in range(runs):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise PlaygroundError(
                f"`{' '.join(command[1:6])}` failed, so that its memory tells nothing. Run it by itself to see why."
            )
        peaks.append(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9)
    return [Result("peak memory of `compare` in bfloat16", tuple(peaks), "GB")]


def _cut_from(target: LoadedModel) -> LoadedModel:
    """A model of the target's first layers, norm and head, with configs of its own, as `generate()` wants them."""
    count = max(1, target.model.config.num_hidden_layers // ASSISTANT_SHARE)
    model = first_layers(target, count).model
    model.config = copy.deepcopy(model.config)
    model.config.num_hidden_layers = count
    model.generation_config = copy.deepcopy(model.generation_config)
    name = f"the target's first {count} layers"
    return LoadedModel(model, target.tokenizer, name, name)


def _against_generate(what: str, models: LoadedPair, lane: Lane, runs: int, n: int, options: dict) -> Result:
    """One example prompt after the other, greedy; the first pair of runs warms up and is not counted."""
    suites, _ = load_suites()
    prompts = suites["examples"].prompts
    requests = [Request(prompt.text, system=prompt.system) for prompt in prompts]
    ratios, identical = [], True
    for i in range(runs + 1):
        prompt_ids = encode(models.target.tokenizer, requests[i % len(requests)])
        room = room_for(models.target, prompt_ids)
        request = dataclasses.replace(requests[i % len(requests)], max_new_tokens=min(n, room))
        ours_s, ours = _timed(models, partial(_ours, models, lane, request, prompt_ids))
        theirs_s, theirs = _timed(models, partial(_generate, models, request, prompt_ids, options))
        if i:
            # Where outputs part at a near-tie their lengths may differ too: it is the time a token that compares.
            ratios.append((theirs_s / len(theirs)) / (ours_s / len(ours)))
            identical &= ours == theirs
    return Result(what, tuple(ratios), identical=identical)


def _ours(models: LoadedPair, lane: Lane, request: Request, prompt_ids: Sequence[int]) -> list[int]:
    rounds = LaneRun(models, lane, request, prompt_ids, request.max_new_tokens).rounds
    return [token.id for round_ in rounds for token in round_.tokens]


def _generate(models: LoadedPair, request: Request, prompt_ids: Sequence[int], options: dict) -> list[int]:
    ids = torch.tensor([prompt_ids], device=models.target.model.device)
    out = models.target.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=request.max_new_tokens,
        do_sample=False,
        eos_token_id=sorted(models.target.eos_ids),
        **options,
    )
    return out[0, len(prompt_ids) :].tolist()


def _timed(models: LoadedPair, work: Callable[[], list[int]]) -> tuple[float, list[int]]:
    clock = Clock(models.target.model.device)
    start = clock()
    result = work()
    return clock() - start, result


def _line(step: Progress) -> str:
    return step.label if step.fraction is None else f"{step.label}: {step.fraction:.0%}"
