"""Which kernels are chosen, with torch in their place: right ones, wrong ones, slow ones, ones that fail."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from transformers import PreTrainedModel

pytest.importorskip("triton")

from playground.decoding.drafters.base import NoDrafter
from playground.decoding.runners import buffers, fast_paths
from playground.decoding.runners.fast_paths import Paths
from playground.decoding.runners.graphs import Graphs, Work, graphs_for
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_model import StaticModel
from playground.models import fused
from playground.models.attention import attend_by_groups
from playground.models.cuda import attention, layer
from tests.decoding import real
from tests.decoding.graphs import Recorder
from tests.decoding.test_static import eagle3_head, network
from tests.kernels import Kernels, counted_in
from tests.models.test_cuda_kernels import attended
from tests.models.test_fused import BUDGETS, fused_for_cuda
from tests.selection import selected

BOTH = Paths(attention=True, layers=True)
LAYER_KERNELS = ("add_norm", "silu_gate", "rotate_and_store")


def add_norm(x: Tensor, delta: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    return x + delta, F.rms_norm(x + delta, weight.shape, weight, epsilon)


def rotate_and_store(
    states: Tensor, cos: Tensor, sin: Tensor, weight: Tensor | None, epsilon: float, slots: Tensor, *cache: Tensor
) -> Tensor:
    key, value = cache
    turned, groups = states[:, : -key.shape[1]], key.shape[1]
    if weight is not None:
        turned = F.rms_norm(turned, turned.shape[-1:], None, epsilon) * weight
    turned = fused.rotate(turned[None], *fused.signed(cos[None], sin[None]))[0].transpose(0, 1)
    key[0].index_copy_(1, slots, turned[-groups:])
    value[0].index_copy_(1, slots, states[:, -groups:].transpose(0, 1))
    return turned[None, :-groups]


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(fast_paths, "DEVICES", ("cpu",))
    monkeypatch.setenv("PLAYGROUND_CACHE", str(tmp_path))
    monkeypatch.setattr(attention, "split_attention", attended)
    monkeypatch.setattr(layer, "add_norm", add_norm)
    monkeypatch.setattr(layer, "silu_gate", lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1])
    monkeypatch.setattr(layer, "rotate_and_store", rotate_and_store)
    yield


@pytest.fixture
def model() -> PreTrainedModel:
    model = real.llama(0, 3)
    attend_by_groups(model, model.device)
    fused.fuse(model)
    return model


def clock(monkeypatch: pytest.MonkeyPatch, ours: float, theirs: float = 1.0) -> None:
    """Makes passes with our kernels take `ours` seconds, and those with torch's `theirs`."""

    def seconds(static: StaticModel, width: int, many: int) -> float:
        return ours - 0.01 * (static.paths == BOTH) if static.paths.names else theirs

    monkeypatch.setattr(fast_paths, "_seconds", seconds)


def chosen(model: PreTrainedModel) -> StaticModel:
    static = StaticModel(model, graphs_for(model.device))
    with torch.inference_mode():
        static.prepare(0, 600, 8)
    return static


def test_kernels_that_agree_and_are_faster_are_used(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, ours=0.5)
    static = chosen(model)
    assert static.paths == BOTH
    assert "split-key" in static.how and static.how.endswith("fused layers")


def test_the_choice_is_kept_for_this_model_and_version(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock(monkeypatch, ours=0.5)
    trials, fastest = [], fast_paths._fastest
    monkeypatch.setattr(fast_paths, "_fastest", lambda *args: trials.append(1) or fastest(*args))
    assert chosen(model).paths == chosen(model).paths == BOTH and len(trials) == 1
    (file,) = (tmp_path / "kernels").iterdir()
    file.write_text('{"attention": ')
    assert chosen(model).paths == BOTH and len(trials) == 2, "a damaged file is made again"
    monkeypatch.setattr("playground.__version__", "0.0.1")
    model.config.rope_parameters["rope_theta"] *= 2
    assert chosen(model).paths == BOTH and len(trials) == 3 and len([*file.parent.iterdir()]) == 2


def test_a_failure_is_tried_again_at_the_next_start(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock(monkeypatch, ours=0.5)
    with monkeypatch.context() as failing:
        failing.setattr(layer, "add_norm", fails)
        assert chosen(model).paths != BOTH
    assert chosen(model).paths == BOTH


def test_kernels_that_are_slower_are_not(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, ours=1.5)
    static = chosen(model)
    assert not static.paths.names and "longer" in static.how


def one_entry_less(*args: Any) -> Tensor:
    """Attention that does not see the first entry."""
    return attended(args[0], args[1][:, :, 1:], args[2][:, :, 1:], args[3], args[4] - 1, args[5] - 1, *args[6:])


def chains_alone(query: Tensor, key: Tensor, value: Tensor, among: Tensor, *args: Any) -> Tensor:
    """Attention that takes a tree for a chain."""
    n = len(among)
    chain = torch.zeros(n, n).masked_fill(torch.ones(n, n).triu(1).bool(), torch.finfo(among.dtype).min)
    return attended(query, key, value, chain, *args)


def no_half(states: Tensor, cos: Tensor, sin: Tensor, *args: Any) -> Tensor:
    """Rotates by the wrong sign."""
    return rotate_and_store(states, cos, -sin, *args)


def fails(*args: Any) -> Tensor:
    raise RuntimeError("no kernel image is available")


@pytest.mark.parametrize(
    ("module", "name", "wrong", "left"),
    [
        (attention, "split_attention", one_entry_less, Paths(layers=True)),
        (attention, "split_attention", chains_alone, Paths(layers=True)),
        (attention, "split_attention", fails, Paths(layers=True)),
        (layer, "rotate_and_store", no_half, Paths(attention=True)),
        (layer, "add_norm", fails, Paths(attention=True)),
    ],
)
def test_a_wrong_kernel_is_left_out_and_named(
    model: PreTrainedModel,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    wrong: Callable[..., Tensor],
    left: Paths,
) -> None:
    clock(monkeypatch, ours=0.5)
    monkeypatch.setattr(module, name, wrong)
    static = chosen(model)
    assert (static.paths.attention, static.paths.layers) == (left.attention, left.layers)
    assert static.paths.refused and static.paths.refused in static.how


@pytest.mark.parametrize(
    ("call", "good", "words"),
    [(0, 0, None), (1, 0, "uncaptured ones"), (2, 12, "cache that grew"), (3, 0, "sampled other tokens")],
)
def test_captures_that_give_other_results_are_refused(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, call: int, good: int, words: str | None
) -> None:
    """The captures of one trial, but for the first `good`, replay nothing."""
    clock(monkeypatch, ours=0.5)
    monkeypatch.setattr(fast_paths, "_possible", lambda static: [])
    calls = itertools.count(1)

    def graphs(device: torch.device) -> Graphs:
        recorder, wrong = Recorder(), next(calls) == call

        def capture(work: Work) -> Work:
            replay = recorder(work)
            return (lambda: None) if wrong and recorder.captures > good else replay

        return Graphs("recorded", capture)

    monkeypatch.setattr(fast_paths, "graphs_for", graphs)
    static = chosen(model)
    assert next(calls) == (call + 1 if words else 4), "the first that fails is the last"
    assert static.paths.captured == (words is None)
    assert words is None or (words in static.how and static.graphs.failure == static.paths.refused)
    assert static.cache.cursor.length == 768, "it has its size again"


WAYS = ("none", "eagle3 chain", "eagle3 tree", "mtp chain", "mtp tree")
SAMPLINGS: tuple[dict[str, float], ...] = (dict(temperature=0.8, top_p=0.9), {})


@pytest.mark.parametrize(
    ("way", "sampling"),
    selected(product(WAYS, SAMPLINGS), [(way, SAMPLINGS[i % 2]) for i, way in enumerate(WAYS)]),
    ids=str,
)
def test_all_ways_of_drafting_give_the_same_text(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, way: str, sampling: dict[str, float]
) -> None:
    name, _, shape = way.partition(" ")
    drafter = eagle3_head(model) if name == "eagle3" else network("mtp", model)
    fused.fuse(drafter)
    make = real.over(drafter, shape) if shape else lambda target: NoDrafter()
    texts = []
    for paths in (Paths(), BOTH):
        monkeypatch.setattr("playground.decoding.runners.static_model.choose_paths", lambda _, paths=paths: paths)
        static = StaticModel(model, graphs_for(model.device))
        monkeypatch.setattr(real, "EagerRunner", lambda _, static=static: StaticRunner(static, 96))
        rounds = [
            real.rounds_of(model, make, prompt, lookahead=5, max_new_tokens=14, ends=(), **sampling)
            for prompt in real.prompts(2)
        ]
        texts.append([real.ids_of(each) for each in rounds])
    assert texts[0] == texts[1]


def test_a_text_of_another_length_needs_no_other_graph(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The length is on the device: one captured pass of each width serves all."""
    clock(monkeypatch, ours=0.5)
    static = chosen(model)
    ends = range(8, static.cache.cursor.length, 50)
    assert len({static._key(8, static._read(end)) for end in ends}) == 1


def launching(kernels: int, work: Callable[..., Any]) -> Callable[..., Any]:
    """The work, counted as so many kernels."""

    def run(*args: Any) -> Any:
        with _disable_current_modes():
            out = work(*args)
        for _ in range(kernels):
            torch.neg(args[0])
        return out

    return run


@pytest.mark.parametrize(("name", "most"), [("Llama 3.2 1B", 180), ("Qwen3 8B", 420)])
def test_a_pass_with_our_kernels_stays_within_its_budget(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 launched 190 and 446, of which 16 and 72 are cuBLAS' own, which no count here shows."""
    for module, function, kernels in ((attention, "split_attention", 2), *((layer, its, 1) for its in LAYER_KERNELS)):
        monkeypatch.setattr(module, function, launching(kernels, getattr(module, function)))
    monkeypatch.setattr("playground.decoding.runners.static_model.choose_paths", lambda static: BOTH)
    monkeypatch.setattr(buffers, "WIDTHS", (1, 8))
    _, build, config = BUDGETS[name]
    model, passes = build(config).bfloat16().eval(), list[Kernels]()
    attend_by_groups(model, torch.device("cuda"))
    fused_for_cuda(model)
    StaticRunner(StaticModel(model, Graphs("counted", counted_in(passes))), 64, 8).prepare()
    of_one_token, _, of_eight, _ = [kernels.total for kernels in passes]
    assert most / 2 < of_one_token <= of_eight <= most
