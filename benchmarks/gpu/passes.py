"""Parts about single passes: their time against the memory's bandwidth, attention, experts, and what loading takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu.rig import Found, Profiled, Rig, numbers
from playground.decoding.pass_cost import bandwidth
from playground.decoding.runners.base import Runner
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_model import StaticModel
from playground.models import weight_only
from playground.models.sizing import weights_bytes

CONTEXTS = {"Llama-3.2-1B": (512, 4096), "Qwen3-8B": (256, 512, 4096, 16384), "Qwen3-4B": (512, 4096)}
WIDTHS = (1, 8, 64)
ATTENDS = ("fmha", "flash", "attention", "attn", "softmax", "_attend_split", "_join_splits")  # in the names of kernels
SUMS = "splitKreduce"  # cuBLAS' own kernel after a product whose columns it divides between blocks
MULTIPLIES = ("gemm", "nvjet", "splitk", "cutlass", "gemv")


def passes(rig: Rig) -> Found:
    """Times captured passes of the target, and says what share of the memory's bandwidth they reach: weights and the
    text's keys and values, each read once, over the time."""
    for name, contexts in CONTEXTS.items():
        model = rig.model(name)
        contexts = (70,) if rig.rehearses else contexts
        static = rig.static(model)
        its = model.config
        weights = weights_bytes(model) - (0 if its.tie_word_embeddings else model.lm_head.weight.nbytes)
        entry = 2 * its.num_hidden_layers * its.num_key_value_heads * its.head_dim * model.dtype.itemsize
        start = time.perf_counter()
        static.prepare(0, max(contexts), 1)
        rig.sync()
        chosen = time.perf_counter() - start
        for context in contexts:
            for width, run_pass in _passes_at(static, context, max(contexts)):
                ms, seen = rig.queued_ms(run_pass), rig.profiled(run_pass)
                share = (weights + entry * context) / (1e-3 * ms * bandwidth(rig.device).best)
                columns = {"ms": ms, "ms with the host": rig.ms(run_pass), "% of bandwidth": 100 * share}
                row = f"{name}, {width} of {context:,}"
                yield "Captured passes", {row: columns | _by_kind(seen)}
        how = {
            "choice of kernels and first captures, s": chosen,
            "captures, s": static.graphs.seconds,
            "how": static.how,
        }
        yield "Capturing", {name: how | _reserved()}
        del model, static, run_pass
    yield from _eager_pass(rig)


def _passes_at(static: StaticModel, context: int, room: int) -> Iterator[tuple[int, Callable[[], object]]]:
    """Yields widths, each with a pass of that many tokens, which follow about `context` others."""
    runner = StaticRunner(static, room)
    start = context - max(WIDTHS)
    runner.forward(numbers(start), keep=1)
    runner.commit(start)
    for width in WIDTHS:
        yield width, partial(_pass, runner, start, width)


def _pass(runner: Runner, start: int, width: int) -> None:
    """Runs a pass over `width` tokens after `start` others, and takes them back."""
    runner.forward(numbers(width), keep=width)
    runner.commit(start)


def _by_kind(seen: Profiled) -> dict[str, float]:
    """Counts the kernels of a pass, and sums the microseconds of attention, of matrix products and of the rest."""
    spent = {"attention, µs": 0.0, "products, µs": 0.0, "rest, µs": 0.0}
    for name, (_, us) in seen.kernels.items():
        lower = name.lower()
        attends, multiplies = (any(part in lower for part in parts) for parts in (ATTENDS, MULTIPLIES))
        spent["attention, µs" if attends else "products, µs" if multiplies else "rest, µs"] += us
    sums = sum(n for name, (n, _) in seen.kernels.items() if SUMS in name)
    return {"kernels": sum(n for n, _ in seen.kernels.values()), "of them sums of split products": sums, **spent}


def _reserved() -> dict[str, float]:
    return {"reserved, GB": torch.cuda.memory_reserved() / 1e9} if torch.cuda.is_available() else {}


def _eager_pass(rig: Rig) -> Found:
    runner = EagerRunner(rig.model("Llama-3.2-1B"))
    length = len(rig.prompt)
    runner.forward(rig.prompt, keep=1)
    runner.commit(length)
    run_pass = partial(_pass, runner, length, 1)
    row = f"Llama-3.2-1B, 1 of {length:,}"
    yield "Eager passes", {row: {"ms with the host": rig.ms(run_pass), "launches": rig.profiled(run_pass).launches}}


def loading(rig: Rig) -> Found:
    """Measures the memory that joining layers takes beside the weights."""
    cuda = rig.device.type == "cuda"
    model = rig.model("Qwen3-8B", fused=False)
    rig.sync()
    start, weights = time.perf_counter(), weights_bytes(model)
    rig.prepare(model)
    rig.sync()
    columns = {"weights, GB": weights / 1e9, "joining, s": time.perf_counter() - start}
    if cuda:
        peak = torch.cuda.max_memory_allocated(rig.device)
        columns |= {"peak, GB": peak / 1e9, "peak ÷ weights": peak / weights} | _reserved()
    yield "Loading", {"Qwen3-8B": columns}


def few_bits(rig: Rig) -> Found:
    """Says what the trial of weights of 8 and 4 bits finds, and times captured passes with them."""
    name = "Qwen3-8B"
    for bits in (8, 4):
        model = rig.model(name)
        shapes = {tuple(part.weight.shape) for part in model.model.layers.modules() if type(part) is nn.Linear}
        why_not = weight_only.why_not(sorted(shapes), bits, model.dtype, rig.device)
        weight_only.quantise(model, bits, rig.device)
        columns: dict[str, object] = {"trial": why_not or "agrees, and is faster", "GB": weights_bytes(model) / 1e9}
        context = 70 if rig.rehearses else 512
        for width, run_pass in _passes_at(rig.static(model), context, context):
            columns[f"{width} of {context}, ms"] = rig.queued_ms(run_pass)
        yield "Weights of few bits", {f"{name}, int{bits}": columns}


def attention(rig: Rig) -> Found:
    """Times attention of one layer: 8 heads of keys, 4 of queries to each, 128 wide, by kernels that could do it."""
    for keys in (96,) if rig.rehearses else (512, 4096, 32768):
        for tokens in (1, 8):
            row = {}
            for name, work in _attentions(rig.device, keys, tokens).items():
                row[f"{name}, µs"] = 1e3 * _captured_ms(rig, work)
            yield "Attention of a layer", {f"{tokens} of {keys:,}": row}


def _attentions(device: torch.device, keys: int, tokens: int) -> dict[str, Callable[[], object]]:
    """Returns ways to attend with `tokens` queries of each head. The flash kernel that reads the length from the device
    is CUDA's alone."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    q, k, v = random(1, 8, 4 * tokens, 128), random(1, 8, keys, 128), random(1, 8, keys, 128)
    mask = random(1, 1, 4 * tokens, keys)
    ways: dict[str, Callable[[], object]] = {
        "masked": lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        "unmasked": lambda: F.scaled_dot_product_attention(q, k, v),
        "two products": lambda: torch.softmax(q @ k.transpose(2, 3) + mask, -1) @ v,
    }
    if device.type == "cuda":
        ends_q, ends_k, used = (
            torch.tensor(values, dtype=torch.int32, device=device) for values in ([0, 1], [0, keys], [keys - 3])
        )
        rows, ks, vs = q[0].reshape(1, 32 * tokens, 128), k[0].transpose(0, 1), v[0].transpose(0, 1)
        flash = torch.ops.aten._flash_attention_forward
        ways["flash, length on the device"] = lambda: flash(
            rows, ks, vs, ends_q, ends_k, 1, keys, 0.0, False, False, seqused_k=used
        )
    return ways


def _captured_ms(rig: Rig, work: Callable[[], object], times: int = 20) -> float:
    """Returns the milliseconds of work that a graph repeats, so that launches do not count."""
    if rig.device.type != "cuda":
        return rig.ms(work)
    with torch.cuda.stream(torch.cuda.Stream(rig.device)):
        work()
    rig.sync()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            work()
    return rig.ms(graph.replay) / times


def experts(rig: Rig) -> Found:
    """Times captured passes of a mixture of experts, whose tokens read different experts."""
    name = "8 layers of Qwen3-30B-A3B"
    static = rig.static(rig.model(name))
    runner, start = StaticRunner(static, 260), len(rig.prompt[:100])
    runner.forward(rig.prompt[:start], keep=1)
    runner.commit(start)
    for width in (1, 4, 8, 16, 64):
        ms = rig.queued_ms(partial(_pass, runner, start, width))
        yield "Passes of a mixture", {name: {f"{width} tokens, ms": ms}}
    yield "Capturing", {name: {"how": static.how}}
