"""The parts of the benchmark: ratios of interleaved runs with their spread, start-up time and memory.

A part with a ratio runs two alternatives in turn, pair by pair, and gives the ratio of each pair: above 1, ours is
faster. A noisy machine slows both sides of a pair alike, so the ratios hold where seconds do not.
"""

from __future__ import annotations

import copy
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from transformers import GenerationConfig, PreTrainedModel

from benchmarks import launches, page
from playground import metrics, validation
from playground.backends.local import LocalBackend
from playground.decoding.clock import Clock
from playground.decoding.contract import OBEYED, entries
from playground.errors import PlaygroundError
from playground.experiments.events import Watch
from playground.experiments.race import decode
from playground.export import SCHEMA_VERSION
from playground.lane import Lane, Request, assisted_lane, lanes_of, standard_lane
from playground.models.load import LoadedModel
from playground.models.networks.early_exit import first_layers
from playground.models.quantised import precision
from playground.models.store import LoadedPair, ModelStore
from playground.presets import Pair, load_pairs, load_suites
from playground.progress import Progress
from playground.trace import Environment, Trace

T = TypeVar("T")
ASSISTANT_SHARE = 5  # an assistant cut from a target has one of this many layers
LOOKAHEAD = 5
LONG_TOKENS = 1000
LONG_RUNS = 2
ON_REQUEST = {"launches"}  # parts that run only if they are named
PRESETS_ALONE = {"page", "long", "start", "memory"}  # parts whose own process takes a preset by its name


@dataclass(frozen=True)
class Measurement:
    """One value a run, or a pair of runs. `unit` is "×" for a ratio. `identical`: whether the outputs of all pairs were
    the same tokens; None if that is not compared. `traces`: our runs; files leave them out."""

    what: str
    values: tuple[float, ...]
    median: float
    unit: str = "×"
    identical: bool | None = None
    traces: tuple[Trace, ...] = ()


@dataclass(frozen=True)
class BenchResult:
    """What the parts measured, and where."""

    environment: Environment
    results: tuple[Measurement, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the result as data for JSON, without the traces."""
        results = [asdict(replace(result, traces=())) for result in self.results]
        return {"schema_version": SCHEMA_VERSION, "kind": "bench", **asdict(self), "results": results}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BenchResult:
        """Reads the data that `to_json` made."""
        return validation.read(cls, data, extra="ignore")


def run(
    pair: Pair,
    *,
    runs: int,
    max_new_tokens: int,
    only: Collection[str] | None,
    dtype: str,
    device: str,
    say: Callable[[str], None],
    keep: Callable[[BenchResult], None],
) -> list[str]:
    """Runs the parts named in `only`, or all. Passes each measurement to `say` as it comes, and all so far to `keep`
    after each part, also after one that failed.

    Returns:
        The parts that failed; `say` got the reason.

    Raises:
        PlaygroundError: a part has no such name, or takes only a preset, or the target cannot be loaded.
    """
    unknown = set(only or ()) - PARTS.keys()
    if unknown:
        raise PlaygroundError(f"The benchmark has no part {', '.join(sorted(unknown))}, only {', '.join(PARTS)}.")
    chosen = [name for name in PARTS if (name in only if only else name not in ON_REQUEST)]
    presets, _ = load_pairs()
    if pair.name not in presets:
        asked = PRESETS_ALONE & set(only or ())
        if asked:
            raise PlaygroundError(f"{', '.join(sorted(asked))} takes a preset, by --pair: another process loads it.")
        chosen = [name for name in chosen if name not in PRESETS_ALONE]
    lane = standard_lane(pair)
    backend = LocalBackend(ModelStore(), pair, dtype, device)
    backend.load(replace(lane, drafter="ngram"), lambda step: say(_line(step)))
    bench = Bench(backend.models(lane), backend, runs, max_new_tokens, dtype)
    environment = backend.describe(lane)
    say(f"{environment.device_name}, {environment.device}, {environment.dtype}, {environment.threads} threads")
    results: list[Measurement] = []
    failed = []
    for name in chosen:
        try:
            for result in PARTS[name](bench):
                say(describe(result))
                results.append(result)
        except Exception as problem:  # transformers raises any, and what was measured stays
            say(f"{name} failed: {str(problem) or type(problem).__name__}")
            failed.append(name)
        keep(BenchResult(backend.describe(lane), tuple(results)))  # with the number of threads that was chosen
    return failed


@dataclass(frozen=True)
class Bench:
    """The input of the parts: loaded models and their backend, `runs` of each side, of `n` new tokens."""

    models: LoadedPair
    backend: LocalBackend
    runs: int
    n: int
    dtype: str


def describe(result: Measurement) -> str:
    """Describes a measurement in a line: the median, the range and whether the outputs were the same."""
    same = {True: ", same tokens", False: ", NOT the same tokens", None: ""}[result.identical]
    runs = "interleaved pairs" if result.unit == "×" else "runs"
    low, high = min(result.values), max(result.values)
    return (
        f"{result.what}: {result.median:.2f} {result.unit} ({low:.2f} to {high:.2f}, {len(result.values)} {runs}{same})"
    )


def measured(what: str, values: Sequence[float], **more: Any) -> Measurement:
    """Returns a measurement of these values, with their median."""
    return Measurement(what, tuple(values), statistics.median(values), **more)


def _standard(bench: Bench) -> list[Measurement]:
    lane = standard_lane(bench.models.pair)
    return _against_generate("standard lane against generate()", bench, bench.models, lane, {})


def _ngram(bench: Bench) -> list[Measurement]:
    lane = assisted_lane(bench.models.pair, "ngram", LOOKAHEAD, policy="constant")
    options = {"prompt_lookup_num_tokens": LOOKAHEAD}
    return _against_generate(
        "n-gram lane against generate(prompt_lookup_num_tokens)", bench, bench.models, lane, options
    )


def _assistant(bench: Bench) -> list[Measurement]:
    """Measures an assistant cut from the target. Acceptance does not matter here, since both sides draft the same."""
    models = bench.models
    assistant = _cut_from(models.target)
    models = replace(models, drafting=assistant, pair=with_assistant(models.pair, assistant.name))
    config = assistant.model.generation_config
    config.num_assistant_tokens = LOOKAHEAD
    config.num_assistant_tokens_schedule = "constant"
    config.assistant_confidence_threshold = 0.0
    lane = assisted_lane(models.pair, "assistant", LOOKAHEAD, policy="constant")
    what = f"assistant lane against generate(assistant_model), assistant {assistant.name}"
    return _against_generate(what, bench, models, lane, {"assistant_model": assistant.model})


def with_assistant(pair: Pair, name: str) -> Pair:
    """Returns the pair with an assistant alone, in place of its own drafters."""
    return replace(pair, weights={"assistant": name}, drafter="assistant", drafters=(), without=())


def _page(bench: Bench) -> list[Measurement]:
    ratios = page.page_against_headless(bench.models.pair, bench.runs, bench.n)
    return [measured(f"{name} against headless", values) for name, values in ratios.items()]


def _long(bench: Bench) -> list[Measurement]:
    ratios = page.page_against_headless(bench.models.pair, min(bench.runs, LONG_RUNS), LONG_TOKENS)
    return [measured(f"{LONG_TOKENS} tokens: {name} against headless", v) for name, v in ratios.items()]


def _start(bench: Bench) -> list[Measurement]:
    seconds = [page.seconds_to_answer(bench.models.pair) for _ in range(bench.runs)]
    return [measured("`python app.py` until the page answers, weights cached", seconds, unit="s")]


def _memory(bench: Bench) -> list[Measurement]:
    """Measures the largest resident set of a whole `compare` process, libraries included."""
    command = [sys.executable, "-m", "playground", "compare", "--pair", bench.models.pair.name, "--dtype", bench.dtype]
    command += ["--max-new-tokens", str(bench.n), "--prompt", "Write a list of ten animals.", "--json", os.devnull]
    peaks = []
    for _ in range(bench.runs):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise PlaygroundError(
                f"`{' '.join(command[1:6])}` failed, so that its memory tells nothing. Run it by itself to see why."
            )
        peaks.append(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9)
    return [measured(f"peak memory of `compare` in {precision(bench.models.target.model)}", peaks, unit="GB")]


def _launches(bench: Bench) -> Iterator[Measurement]:
    """Counts launches and waits in each lane of the pair, on the first example."""
    for lane in lanes_of(bench.models.pair, {"policy": "constant"}, every=True):
        bench.backend.load(lane, lambda step: None)
        for compiled in (False, True):
            counts = launches.of_a_round(bench.backend.models(lane), lane, examples(bench.n)[0], compiled=compiled)
            if counts:
                what = f"{lane.drafter}, {'compiled' if compiled else 'eager'}: {{}} a round"
                yield measured(what.format("launches"), [counts.launches], unit="launches")
                yield measured(what.format("waits for the device"), [counts.waits], unit="waits")


PARTS: dict[str, Callable[[Bench], Iterable[Measurement]]] = {
    "standard": _standard,
    "ngram": _ngram,
    "assistant": _assistant,
    "page": _page,
    "long": _long,
    "start": _start,
    "memory": _memory,
    "launches": _launches,
}


def examples(n: int) -> list[Request]:
    """Returns the example prompts, as requests of `n` new tokens."""
    suites, _ = load_suites()
    return [Request(p.text, system=p.system, max_new_tokens=n) for p in suites["examples"].prompts]


def _cut_from(target: LoadedModel) -> LoadedModel:
    """Returns a model of the target's first layers, norm and head, with its own configs, which `generate()` needs."""
    count = max(1, target.model.config.num_hidden_layers // ASSISTANT_SHARE)
    model = first_layers(target, count).model
    model.config = copy.deepcopy(model.config)
    model.config.num_hidden_layers = count
    model.generation_config = copy.deepcopy(model.generation_config)
    name = f"the target's first {count} layers"
    return LoadedModel(model, target.tokenizer, name, name)


def _against_generate(
    what: str, bench: Bench, models: LoadedPair, lane: Lane, options: dict[str, Any]
) -> list[Measurement]:
    """Returns the ratio, and the share of our time that annotating the trace takes. One example prompt after the other,
    greedy; the first pair of runs warms up and is not counted."""
    requests = examples(bench.n)
    backend = LocalBackend(Holding(models), models.pair)
    ratios, traces, identical = [], [], True
    for i in range(bench.runs + 1):
        ours_s, ours = _timed(models, partial(_ours, backend, lane, requests[i % len(requests)]))
        theirs_s, theirs = _timed(models, partial(generate, models, ours, options))
        if i:
            # Where outputs differ after a near-tie their lengths may differ too, so the time per token is compared.
            ratios.append((theirs_s / len(theirs)) / (ours_s / len(ours.tokens)))
            identical &= list(ours.token_ids) == theirs
            traces.append(ours)
    spent = [(m.annotate_s or 0.0, m.total_s) for m in map(metrics.measure, traces)]
    annotation = [100 * annotate_s / (annotate_s + decode_s) for annotate_s, decode_s in spent]
    return [
        measured(what, ratios, identical=identical, traces=tuple(traces)),
        measured(f"annotating the trace of the {lane.drafter} lane, share of its time", annotation, unit="%"),
    ]


@dataclass(frozen=True)
class Holding:
    """A store of one loaded pair."""

    models: LoadedPair

    def get(self, pair: Pair, **_: Any) -> LoadedPair:
        return self.models


def _ours(backend: LocalBackend, lane: Lane, request: Request) -> Trace:
    return decode(backend, lane, request, Watch())


def generate(models: LoadedPair, ours: Trace, options: dict[str, Any]) -> list[int]:
    """Runs the request of a trace through transformers, with further options, and returns the new tokens."""
    model, ends = models.target.model, sorted(models.target.eos_ids)
    ids = torch.tensor([ours.prompt_ids], device=model.device)
    limit = len(ours.tokens) if ours.finish == "context" else ours.request.max_new_tokens
    rules = entries(model.generation_config, OBEYED)
    bare = GenerationConfig(eos_token_id=ends, pad_token_id=ends[0] if ends else None, **rules)
    with _without_defaults(model, bare):
        generate: Any = model.generate  # PreTrainedModel does not declare it
        out = generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, do_sample=False, **options)
    return out[0, ids.shape[1] :].tolist()


@contextmanager
def _without_defaults(model: PreTrainedModel, bare: GenerationConfig) -> Iterator[None]:
    """Removes the checkpoint's own sampling settings, such as a repetition penalty, which greedy `generate()` applies
    too."""
    theirs, model.generation_config = model.generation_config, bare
    try:
        yield
    finally:
        model.generation_config = theirs


def _timed(models: LoadedPair, work: Callable[[], T]) -> tuple[float, T]:
    clock = Clock(models.target.model.device)
    start = clock()
    result = work()
    return clock() - start, result


def _line(step: Progress) -> str:
    return step.label if step.fraction is None else f"{step.label}: {step.fraction:.0%}"
