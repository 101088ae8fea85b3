"""Parts about being right: what the device is, captured passes against uncaptured ones, and captures that fail."""

from __future__ import annotations

import datetime
import platform
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from benchmarks.gpu.rig import Found, Rig, rounds, written
from playground import __version__
from playground.decoding.drafters.base import Drafter, NoDrafter
from playground.decoding.drafters.branches import Branches, ChainDrafter
from playground.decoding.drafters.mtp import Eagle3Branches
from playground.decoding.drafters.mtp import branches as mtp_branches
from playground.decoding.drafters.tree import SampledTreeDrafter, TreeDrafter
from playground.decoding.lossy import rule_of
from playground.decoding.pass_cost import bandwidth
from playground.decoding.runners.base import Runner
from playground.decoding.runners.graphs import Graphs, cuda_capture, graphs_for
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_model import StaticModel
from playground.decoding.verify import Rule, decide
from playground.lane import Lane
from playground.models.device import device_name
from playground.models.networks.eagle3 import Eagle3Config, Eagle3Head
from playground.models.networks.mtp import MtpLayer
from playground.trace import Environment

NewDrafter = Callable[[Runner], Drafter]

LOOKAHEAD, NODES = 5, 12
SAMPLED_TREE: Rule = rule_of(Lane("", "", "tree", verification="recursive"))
SIZES: dict[str, Any] = dict(
    vocab_size=40, hidden_size=32, intermediate_size=48, num_attention_heads=4, initializer_range=0.4
)
LATENT: dict[str, Any] = dict(num_key_value_heads=4, kv_lora_rank=8, q_lora_rank=12, qk_rope_head_dim=4, v_head_dim=6,
              qk_nope_head_dim=8, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
              topk_group=1, first_k_dense_replace=1)  # fmt: skip
WAYS = ("chain", "tree", "sampled tree")
TEXT = [*range(1, 38), *range(30, 2, -1), 7, 8, 9]


def where(rig: Rig) -> Iterator[tuple[str, Any]]:
    """Describes the machine, as a trace does. It comes first, and is the file's `environment`."""
    driver = ""
    if rig.device.type == "cuda" and shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(asked, capture_output=True, text=True).stdout.partition("\n")[0]
    versions = {
        "playground": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        **({"driver": driver} if driver else {}),
    }
    environment = Environment(
        versions=versions,
        platform=platform.platform(),
        device=rig.device.type,
        device_name=device_name(rig.device),
        dtype="bfloat16",
        threads=torch.get_num_threads(),
        weights=("random, of real shapes",),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        bandwidth=bandwidth(rig.device).best,
    )
    yield "environment", asdict(environment)


def trust(rig: Rig) -> Found:
    """Compares what captured passes write with what the same passes write uncaptured, of tiny models."""
    for name, model in (("Llama", _llama(rig)), ("Gemma 3", _gemma(rig)), ("DeepSeek-V3", _deepseek(rig))):
        for way, make in _drafters(model, name == "Llama").items():
            for kind, sampling in (("greedy", {}), ("sampled", dict(temperature=0.8, top_p=0.9))):
                rule = SAMPLED_TREE if way.endswith("sampled tree") else decide
                texts, failure, kernels = [], "", ""
                for graphs in (Graphs("uncaptured", None), graphs_for(rig.device)):
                    static = StaticModel(model, graphs)
                    target = StaticRunner(static, 160)
                    tokens = 4 if rig.rehearses else 40
                    decoded = rounds(target, make(target), TEXT, LOOKAHEAD, tokens, rule, graphs, **sampling)
                    texts.append(written(decoded))
                    failure = graphs.failure
                    kernels = " ".join(filter(None, (static.paths.names or "torch's", static.paths.refused)))
                same = failure or ("yes" if texts[0] == texts[1] else "NO")
                yield "Captured passes write the same tokens", {f"{name}, {way}": {kind: same, "kernels": kernels}}


def _llama(rig: Rig) -> PreTrainedModel:
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, num_hidden_layers=3))
    model = model.to(rig.device).eval()
    rig.prepare(model)
    return model


def _gemma(rig: Rig) -> PreTrainedModel:
    """A sliding window shorter than the text, and full attention."""
    torch.manual_seed(0)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    config = Gemma3TextConfig(
        **SIZES, num_key_value_heads=2, num_hidden_layers=3, head_dim=8, sliding_window=24, layer_types=kinds
    )
    model: Any = Gemma3ForCausalLM(config)
    model = model.to(rig.device).eval()
    rig.prepare(model)
    return model


def _deepseek(rig: Rig) -> PreTrainedModel:
    """Multi-head latent attention, and a mixture of experts in each layer but the first, which waits for the device
    except in bfloat16."""
    torch.manual_seed(0)
    model: Any = DeepseekV3ForCausalLM(DeepseekV3Config(**SIZES, **LATENT, num_hidden_layers=3))
    return model.to(rig.device, torch.bfloat16).eval()


def _drafters(model: PreTrainedModel, with_networks: bool) -> dict[str, NewDrafter]:
    ways: dict[str, NewDrafter] = {"none": lambda target: NoDrafter()}
    if with_networks:
        head, layer = eagle3_head(model, model.config.vocab_size), MtpLayer(model, torch.arange(0, 40, 2)).eval()
        layer.start_from(model)
        for way in WAYS:
            ways[f"EAGLE-3 {way}"] = drafting(head, way)
            ways[f"MTP {way}"] = drafting(layer, way)
    return ways


def eagle3_head(target: PreTrainedModel, vocabulary: int) -> Eagle3Head:
    """Makes an EAGLE-3 head of random weights, with the target's widths."""
    its = target.config
    names = "hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim max_position_embeddings"
    layer = LlamaConfig(**{name: getattr(its, name) for name in names.split()}, num_hidden_layers=1)
    read = (0, its.num_hidden_layers // 2, its.num_hidden_layers - 1)
    torch.manual_seed(1)
    config = Eagle3Config(layer, read, norm_before_residual=False, norm_output=False)
    return Eagle3Head(target, config, {"lm_head.weight": torch.empty(vocabulary, 0)}).eval().to(target.device)


def drafting(network: nn.Module, way: str) -> NewDrafter:
    """Returns what makes a drafter of the network. `way`: one of WAYS."""

    def new_drafter(target: Runner) -> Drafter:
        grow: Any = Eagle3Branches if isinstance(network, Eagle3Head) else mtp_branches
        branches: Branches = grow(network, target)
        if way == "tree":
            return TreeDrafter(branches, NODES, ())
        if way == "sampled tree":
            return SampledTreeDrafter(branches, NODES, (), LOOKAHEAD, vocab_size=target.vocab_size)
        return ChainDrafter(branches, target.vocab_size, ())

    return new_drafter


def containment(rig: Rig) -> Found:
    """A capture that fails must leave a process that captures, allocates, pins and frees; and captures must bear other
    threads that allocate, and a pool in which memory is cached but not free."""
    if rig.device.type != "cuda":
        return
    title, device = "Captures that fail or are disturbed", rig.device
    x = torch.zeros(1024, device=device)

    def captured(work: Callable[[], Any], times: int = 1) -> Graphs:
        graphs = Graphs("captured", cuda_capture(device))
        for i in range(times):
            graphs.prepare(i, work)
        return graphs

    before = torch.cuda.current_stream(device)
    reserved = torch.cuda.memory_reserved(device)
    failed = captured(lambda: torch.empty(1 << 28, device=device).sum().item())
    torch.cuda.empty_cache()
    freed = torch.cuda.memory_reserved(device) <= reserved
    restored = torch.cuda.current_stream(device) == before
    yield title, {"a capture that waits fails": {"result": failed.failure}}
    yield title, {"its stream is restored": _yes(restored), "its memory is freed": _yes(freed)}
    added = captured(lambda: x.add_(1))
    x.zero_()
    added.run(0, lambda: None)
    yield title, {"the next capture works": _yes(not added.failure and float(x[0]) == 1)}
    torch.cuda.empty_cache()
    torch.ones(10).pin_memory()
    yield title, {"memory is freed and pinned after it": _yes(True)}
    with _allocating(device) as problems:
        beside = captured(lambda: x.add_(1), 50)
    yield title, {"beside a thread that allocates": {"result": beside.failure or problems or "yes"}}
    yield title, {"with memory that is cached, not free": {"result": _in_cached_memory(captured, device) or "yes"}}


class _allocating:
    """Allocates and frees in another thread meanwhile. Yields the problems that the thread had."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._ends, self._problems = device, threading.Event(), list[str]()
        self._thread = threading.Thread(target=self._allocate)

    def __enter__(self) -> list[str]:
        self._thread.start()
        return self._problems

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join()

    def _allocate(self) -> None:
        while not self._ends.is_set() and not self._problems:
            try:
                torch.empty(1 << 22, device=self._device).fill_(1)
                torch.cuda.mem_get_info(self._device)
                torch.cuda.empty_cache()
            except RuntimeError as error:
                self._problems.append(str(error)[:200])


def _in_cached_memory(captured: Callable[..., Graphs], device: torch.device) -> str:
    """Captures 128 MB where 256 MB are cached and nothing is free. Returns why that failed."""
    held: list[Tensor] = []
    torch.cuda.set_per_process_memory_fraction(0.05, device)
    try:
        try:
            while True:
                held.append(torch.empty(1 << 26, dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError:
            del held[-4:]
        return captured(lambda: torch.empty(1 << 27, dtype=torch.uint8, device=device).fill_(1)).failure
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def _yes(right: bool) -> dict[str, str]:
    return {"result": "yes" if right else "NO"}
