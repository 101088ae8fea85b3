"""Parts about whole rounds: what drafting, verifying and the host take, against plain transformers, and real pairs."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from benchmarks.gpu.correct import LOOKAHEAD, SAMPLED_TREE, WAYS, NewDrafter, drafting, eagle3_head
from benchmarks.gpu.rig import Found, Rig, rounds
from playground import export, metrics
from playground.decoding.drafters.assistant import AssistantDrafter
from playground.decoding.drafters.base import Drafter, NoDrafter
from playground.decoding.runners.base import Runner
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static import StaticRunner
from playground.decoding.verify import decide
from playground.trace import Round

SAMPLING: dict[str, dict[str, float]] = {
    "greedy": {},
    "temperature 1": dict(temperature=1.0),
    "temperature 0.6, top-k 20, top-p 0.95": dict(temperature=0.6, top_p=0.95, top_k=20),
}
BEFORE, TIMED, PROFILED = 4, 16, 4  # rounds; those that are profiled run twice
MOST = (LOOKAHEAD + 1) * (BEFORE + TIMED + 2 * PROFILED + 1)  # tokens of so many rounds, at most
VOCABULARY = 32000  # of an EAGLE-3 head
TOKENS = 64
PROMPT = "Write a Python function that returns the n-th Fibonacci number, then explain each line of it."


def decoding(rig: Rig) -> Found:
    """Times rounds, and counts what the host does in one. With random weights nearly every draft is rejected; a round
    costs what one with any other outcome does."""
    target = rig.model("Qwen3-8B")
    head = eagle3_head(target, min(VOCABULARY, target.config.vocab_size))
    rig.prepare(head)
    networks = {f"EAGLE-3 {way}": drafting(head, way) for way in WAYS}
    yield from _lanes(rig, "Qwen3-8B", target, networks)
    del target, head, networks  # there is memory for one target
    target, static = rig.model("Llama-3.1-8B"), rig.static(rig.model("Llama-3.2-1B"))

    def assistant(runner: Runner) -> Drafter:
        return AssistantDrafter(StaticRunner(static, len(rig.prompt) + MOST), runner.vocab_size, ())

    yield from _lanes(rig, "Llama-3.1-8B", target, {"Llama-3.2-1B": assistant})


def _lanes(rig: Rig, name: str, model: PreTrainedModel, drafters: dict[str, NewDrafter]) -> Found:
    static = rig.static(model)
    for way, make in {"none": lambda target: NoDrafter(), **drafters}.items():
        rule = SAMPLED_TREE if way == "EAGLE-3 sampled tree" else decide
        for kind, sampling in list(SAMPLING.items())[-1:] if rig.rehearses else SAMPLING.items():
            if sampling or rule is decide:  # a greedy request gets the plain tree
                target = StaticRunner(static, len(rig.prompt) + MOST)
                lane = rounds(target, make(target), rig.prompt, LOOKAHEAD, MOST, rule, static.graphs, **sampling)
                yield f"Rounds of {name}", {f"{way}, {kind}": _figures(rig, lane)}


def _figures(rig: Rig, lane: Iterator[Round]) -> dict[str, float]:
    before, times, profiled = (1, 1, 1) if rig.rehearses else (BEFORE, TIMED, PROFILED)
    list(islice(lane, before))
    rig.sync()
    start = time.perf_counter()
    timed = list(islice(lane, times))
    rig.sync()
    wall = time.perf_counter() - start
    seen = rig.profiled(lambda: list(islice(lane, profiled)))
    parts = {
        f"{part}, ms": 1e3 * statistics.median(getattr(round_, f"{part}_s") for round_ in timed)
        for part in ("draft", "verify", "commit", "annotate")
    }
    copies = seen.calls.get("cudaMemcpyAsync", 0)
    counts = {"launches": seen.launches, "graphs": seen.graphs, "copies": copies}
    return {**parts, "wall, ms": 1e3 * wall / times, **{name: n / profiled for name, n in counts.items()}}


def generate(rig: Rig) -> Found:
    """Compares standard decoding with transformers' own `generate()`, which runs eagerly."""
    model: Any = rig.model("Llama-3.2-1B", fused=False)
    ids = torch.tensor([rig.prompt], device=rig.device)
    config = GenerationConfig(max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    theirs = partial(model.generate, ids, attention_mask=torch.ones_like(ids), generation_config=config)
    title = f"Standard decoding of Llama-3.2-1B, {TOKENS} tokens"
    yield title, {"transformers' generate()": {"ms a token": rig.ms(theirs, 5) / TOKENS}}
    rig.prepare(model)
    static = rig.static(model)
    runners: dict[str, tuple[Callable[[], Runner], Graphs | None]] = {
        "eager": (lambda: EagerRunner(model), None),
        "captured": (lambda: StaticRunner(static, len(rig.prompt) + TOKENS), static.graphs),
    }
    for way, (runner, graphs) in runners.items():

        def ours() -> list[Round]:
            return list(rounds(runner(), NoDrafter(), rig.prompt, LOOKAHEAD, TOKENS, graphs=graphs))  # noqa: B023

        alone = 1e3 * ours()[-1].end_s
        columns = {"ms a token": rig.ms(ours, 5) / TOKENS, "ms a token without annotating": alone / TOKENS}
        yield title, {f"the playground, {way}": columns}


def flashspec(rig: Rig) -> Found:
    """Compares assisted decoding with flashspec, which compiles too: one target, prompt and assistant. The assistant is
    the target again, so that every draft is accepted."""
    title = f"Assisted decoding of Llama-3.2-1B, its own assistant, {TOKENS} tokens"
    if not find_spec("flashspec"):
        yield title, {"flashspec": {"result": "is not installed"}}
        return
    from flashspec import FlashSpecConfig, SamplingConfig, SpeculativeEngine
    from flashspec.engine import HuggingFaceDrafter, TargetModel

    model = rig.model("Llama-3.2-1B", fused=False)
    config = FlashSpecConfig(device=str(rig.device), sampling=SamplingConfig(temperature=0.0))
    loaded = [of("target", rig.device, model.dtype, model=model) for of in (HuggingFaceDrafter, TargetModel)]
    engine = SpeculativeEngine(config, loaded[:1], loaded[1])
    theirs = partial(engine.generate, torch.tensor([rig.prompt], device=rig.device), max_new_tokens=TOKENS)
    yield title, {f"flashspec, {engine.drafter_strategy}": {"ms a token": rig.ms(theirs, 5) / TOKENS}}
    rig.prepare(model)
    static, assistant = rig.static(model), rig.static(model)

    def ours() -> list[Round]:
        target = StaticRunner(static, len(rig.prompt) + TOKENS)
        drafter = AssistantDrafter(StaticRunner(assistant, len(rig.prompt) + TOKENS), target.vocab_size, ())
        return list(rounds(target, drafter, rig.prompt, LOOKAHEAD, TOKENS, graphs=static.graphs))

    yield title, {"the playground, captured": {"ms a token": rig.ms(ours, 5) / TOKENS}}


def pairs(rig: Rig) -> Found:
    """Runs presets with their real weights, which are fetched."""
    for name in rig.pairs:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            command = [sys.executable, "-m", "playground", "compare", "--pair", name, "--device", str(rig.device)]
            command += ["--yes", "--prompt", PROMPT, "--max-new-tokens", "128", "--repeat", "2", "--json", str(file)]
            ended = subprocess.run(command, capture_output=True, text=True)
            if ended.returncode:
                yield "Real pairs", {name: {"failed": " ".join(ended.stderr.split()[-40:])}}
                continue
            comparison = export.load(file.read_text(encoding="utf-8"))
        for found in metrics.ranked(comparison):
            speeds = {f"{lane}, tokens/s": metrics.measure(trace).tokens_per_s
                      for lane, trace in (("standard", found.base), ("assisted", found.ours))}  # fmt: skip
            row = f"{name}, {found.ours.lane.drafter}, {comparison.standard.lane.target}"
            yield "Real pairs", {row: {**speeds, "speed-up": found.speedup}}
