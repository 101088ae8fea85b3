"""What the parts measure with: models of real shapes, decoding without a tokenizer, clocks and the profiler."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from playground.decoding.drafters.base import Drafter
from playground.decoding.lookahead import Lookahead
from playground.decoding.loop import decode
from playground.decoding.runners.base import Runner
from playground.decoding.runners.graphs import Graphs, graphs_for
from playground.decoding.runners.static_model import StaticModel
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.decoding.verify import Rule, decide
from playground.lane import Request
from playground.models.attention import attend_by_groups
from playground.models.device import choose_kernels
from playground.models.fused import fuse_and_join
from playground.trace import Round

Rows = dict[str, dict[str, Any]]  # row -> column -> figure
Found = Iterator[tuple[str, Rows]]  # titles of tables, each with some of its rows

SHAPES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "Llama-3.2-1B": (
        LlamaForCausalLM,
        LlamaConfig,
        dict(vocab_size=128256, hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
             head_dim=64, intermediate_size=8192, tie_word_embeddings=True),
    ),
    "Llama-3.1-8B": (
        LlamaForCausalLM,
        LlamaConfig,
        dict(vocab_size=128256, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
             head_dim=128, intermediate_size=14336),
    ),
    "Qwen3-4B": (
        Qwen3ForCausalLM,
        Qwen3Config,
        dict(vocab_size=151936, hidden_size=2560, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8,
             head_dim=128, intermediate_size=9728, tie_word_embeddings=True),
    ),
    "Qwen3-8B": (
        Qwen3ForCausalLM,
        Qwen3Config,
        dict(vocab_size=151936, hidden_size=4096, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8,
             head_dim=128, intermediate_size=12288),
    ),
    "8 layers of Qwen3-30B-A3B": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig,
        dict(vocab_size=32000, hidden_size=2048, num_hidden_layers=8, num_attention_heads=32, num_key_value_heads=4,
             head_dim=128, intermediate_size=6144, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8),
    ),
}  # fmt: skip
TINY = dict(vocab_size=96, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            head_dim=8, intermediate_size=48)  # fmt: skip
TINY_EXPERTS = dict(moe_intermediate_size=16, num_experts=8, num_experts_per_tok=2)
CONTEXT = 40960


class Numbers:
    """A tokenizer whose token n is the text "n "."""

    all_special_ids: tuple[int, ...] = ()
    added_tokens_decoder: ClassVar[dict[int, str]] = {}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(f"{id_} " for id_ in ids)


class Profiled(NamedTuple):
    """What the profiler saw: calls of the host by name, and the device's kernels by name with their microseconds."""

    calls: dict[str, int]
    kernels: dict[str, tuple[int, float]]

    @property
    def launches(self) -> int:
        """Kernels that the host launched one by one, outside CUDA graphs."""
        return sum(n for name, n in self.calls.items() if name.startswith(("cudaLaunchKernel", "cuLaunchKernel")))

    @property
    def graphs(self) -> int:
        return self.calls.get("cudaGraphLaunch", 0)


@dataclass(frozen=True)
class Rig:
    """The device, and how large the models are.

    Attributes:
        rehearses: tiny models, few repetitions: every line runs, and the figures mean nothing.
        pairs: presets to run with their real weights.
    """

    device: torch.device
    rehearses: bool = False
    pairs: tuple[str, ...] = ()

    def model(self, name: str, dtype: torch.dtype = torch.bfloat16, *, fused: bool = True) -> PreTrainedModel:
        """Makes a model of the shape, with random weights. `fused`: prepared as the playground loads it."""
        choose_kernels(self.device)
        kind, config, sizes = SHAPES[name]
        if self.rehearses:
            sizes = {**TINY, **(TINY_EXPERTS if "num_experts" in sizes else {})}
        with torch.device("meta"):
            model = kind(config(**sizes, max_position_embeddings=CONTEXT))
        model = model.to(dtype).to_empty(device=self.device).eval()
        fill(model)
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config).to(self.device)  # was on the meta device
        model.tie_weights()
        model.generation_config = GenerationConfig()
        if fused:
            self.prepare(model)
        return model

    def prepare(self, network: nn.Module) -> None:
        """Prepares a network as the playground does after loading it."""
        if isinstance(network, PreTrainedModel):
            attend_by_groups(network, self.device)
        fuse_and_join(network, self.device)

    def static(self, model: PreTrainedModel) -> StaticModel:
        """Returns the form of the model whose passes are captured, which runners share."""
        return StaticModel(model, graphs_for(self.device))

    @property
    def prompt(self) -> list[int]:
        return numbers(12 if self.rehearses else 512)

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def ms(self, work: Callable[[], object], times: int = 20) -> float:
        """Returns the milliseconds of some work, each time waiting for the device: the median."""
        warm_up, times = (0, 1) if self.rehearses else (3, times)
        taken = []
        for _ in range(warm_up + times):
            self.sync()
            start = time.perf_counter()
            work()
            self.sync()
            taken.append(1e3 * (time.perf_counter() - start))
        return statistics.median(taken[warm_up:])

    def queued_ms(self, work: Callable[[], object], times: int = 20) -> float:
        """Returns the milliseconds of some work, queued one behind the other: the device's own time, unless the host
        takes longer."""
        times = 1 if self.rehearses else times

        def several() -> None:
            for _ in range(times):
                work()

        return self.ms(several, 5) / times

    def profiled(self, work: Callable[[], object]) -> Profiled:
        """Runs some work, once before and once under the profiler."""
        work()
        self.sync()
        cuda = [ProfilerActivity.CUDA] if self.device.type == "cuda" else []
        with profile(activities=[ProfilerActivity.CPU, *cuda]) as seen:
            work()
            self.sync()
        calls: dict[str, int] = {}
        kernels: dict[str, tuple[int, float]] = {}
        for each in seen.key_averages():
            if each.device_type != DeviceType.CUDA:
                calls[each.key] = each.count
            elif not each.key.startswith(("Memcpy", "Memset")):
                kernels[each.key] = each.count, each.self_device_time_total
        return Profiled(calls, kernels)


@torch.no_grad()
def fill(network: nn.Module) -> None:
    """Gives a network random weights, small enough that activations stay finite."""
    torch.manual_seed(0)
    for parameter in network.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=0.02)
        else:
            parameter.fill_(1)


def numbers(n: int) -> list[int]:
    """Returns n token ids that every vocabulary here has."""
    return [1 + i % 90 for i in range(n)]


def rounds(
    target: Runner,
    drafter: Drafter,
    prompt: Sequence[int],
    lookahead: int,
    max_new_tokens: int,
    rule: Rule = decide,
    graphs: Graphs | None = None,
    **sampling: Any,
) -> Iterator[Round]:
    """Decodes with a target whose tokens are numbers and that never ends its text.

    Args:
        graphs: captures choices and verdicts; None captures neither.
        sampling: fields of a Request.
    """
    sampler = Sampler(Request("numbers", **sampling), target.device, prompt, graphs=graphs)
    tokenizer: Any = Numbers()
    return decode(
        target, drafter, Lookahead(lookahead), sampler, Detokenizer(tokenizer, prompt), prompt, max_new_tokens, (), rule
    )


def written(decoded: Iterator[Round]) -> list[int | None]:
    return [token.id for round_ in decoded for token in round_.tokens]
