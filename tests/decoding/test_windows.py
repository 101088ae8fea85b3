"""Sliding windows over a static cache, which holds all entries: what has left the window is not seen."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from playground.decoding.drafters.assistant import AssistantDrafter, EarlyExitDrafter
from playground.decoding.drafters.base import NoDrafter
from playground.decoding.drafters.lookup import NgramDrafter
from playground.decoding.runners import fast_paths
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.fast_paths import Paths
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_cache import windows_of
from playground.decoding.runners.static_model import StaticModel
from playground.models import fused
from playground.models.attention import attend_by_groups
from playground.models.networks.early_exit import first_layers
from playground.models.networks.mtp import MtpLayer
from tests.decoding import real
from tests.decoding.gemma4 import gemma4_target
from tests.decoding.graphs import Recorder
from tests.decoding.real import ENDS, SIZES, V, gemma, ids_of, over, rounds_of
from tests.decoding.test_prefix_cache import goes_on
from tests.models.networks.test_eagle3 import loaded
from tests.selection import selected

WINDOW = 6
KINDS = dict(sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention", "sliding_attention"])
SAMPLING = ({}, dict(temperature=0.8, top_p=0.9))
LONG = [*range(1, 38), *range(30, 2, -1), 7, 8, 9]  # longer than the widest pass
WAYS = ("none", "ngram", "assistant", "early exit", "mtp", "mtp tree")


def of(config: type, model: type, **sizes: object) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = SIZES | ENDS | dict(num_hidden_layers=3, head_dim=8, initializer_range=0.4) | sizes
    return model(config(**sizes)).eval()


MODELS = {
    "gemma2": lambda: of(Gemma2Config, Gemma2ForCausalLM, **KINDS),
    "gemma3": lambda: gemma(0, 3),
    "gemma4": lambda: gemma4_target("text", V),
    "mistral": lambda: of(MistralConfig, MistralForCausalLM, sliding_window=WINDOW),
    "qwen3": lambda: of(Qwen3Config, Qwen3ForCausalLM, use_sliding_window=True, **KINDS),
    "gpt_oss": lambda: of(GptOssConfig, GptOssForCausalLM, num_local_experts=4, num_experts_per_tok=2, **KINDS),
}


EVERY_TIME = ("gemma3",)  # the others run weekly


@pytest.fixture(
    scope="module",
    params=[name if name in EVERY_TIME else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return MODELS[request.param]()


def drafting(way: str, model: PreTrainedModel) -> real.NewDrafter:
    match way:
        case "none":
            return lambda target: NoDrafter()
        case "ngram":
            return lambda target: NgramDrafter(3, 2)
        case "assistant":  # which has windows, too
            return lambda target: AssistantDrafter(real.EagerRunner(gemma(1, 2)), V, {V - 1})
        case "early exit":
            return lambda target: EarlyExitDrafter(first_layers(loaded(model), 2).model, target, {V - 1})
    torch.manual_seed(7)
    layer = MtpLayer(model, torch.arange(V)).eval()
    layer.start_from(model)
    return over(layer, way.partition(" ")[2] or "chain")


def both(
    monkeypatch: pytest.MonkeyPatch, model: PreTrainedModel, way: str, graphs: Graphs, **options: float
) -> list[list[tuple[list[int], list[int]]]]:
    """Returns drafts and tokens of each round of eager runners, then of static ones, which keep their buffers."""
    options = dict(lookahead=9, ends=(), max_new_tokens=20) | options
    statics: dict[PreTrainedModel, StaticModel] = {}

    def static(of: PreTrainedModel) -> StaticRunner:
        return StaticRunner(statics.setdefault(of, StaticModel(of, graphs)), 96)

    found = []
    for make in (EagerRunner, static):
        monkeypatch.setattr(real, "EagerRunner", make)
        rounds = [
            each for prompt in ([3, 1, 4], LONG) for each in rounds_of(model, drafting(way, model), prompt, **options)
        ]
        found.append([([token.id for token in each.drafted], ids_of([each])) for each in rounds])
    return found


@pytest.mark.parametrize(
    ("way", "sampling"),
    selected(product(WAYS, SAMPLING), [(way, SAMPLING[i % 2]) for i, way in enumerate(WAYS)]),
    ids=str,
)
def test_static_lanes_write_the_tokens_of_eager_lanes(
    monkeypatch: pytest.MonkeyPatch, model: PreTrainedModel, way: str, sampling: dict[str, float]
) -> None:
    """A text that crosses the window and a prompt that is longer; drafts that are longer than the window."""
    if "mtp" in way and model.config.model_type in ("gemma4_text", "gpt_oss"):
        pytest.skip("it has no MTP layer of its own kind")
    eager, static = both(monkeypatch, model, way, Graphs("as it is", None), **sampling)
    assert static == eager


@pytest.mark.parametrize(
    "name", ["gemma3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma4", "mistral"))]
)
def test_a_replay_sees_the_window_of_its_own_position(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    recorder = Recorder()
    eager, static = both(monkeypatch, MODELS[name](), "ngram", Graphs("recorded", recorder))
    assert static == eager
    assert recorder.replays > recorder.captures / 2


@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
@pytest.mark.parametrize("way", ["ngram"])
def test_split_attention_sees_the_window_too(monkeypatch: pytest.MonkeyPatch, name: str, way: str) -> None:
    pytest.importorskip("triton")
    from playground.models.cuda import attention
    from tests.models.test_cuda_kernels import attended

    windows = []

    def seen(*args: object) -> torch.Tensor:
        windows.append(args[-1])
        return attended(*args)

    monkeypatch.setattr(attention, "split_attention", seen)
    monkeypatch.setattr("playground.decoding.runners.static_model.choose_paths", lambda static: Paths(attention=True))
    model = MODELS[name]()
    attend_by_groups(model, model.device)
    fused.fuse(model)
    eager, static = both(monkeypatch, model, way, Graphs("as it is", None))
    assert static == eager
    assert set(windows) == set(windows_of(model.config))


@pytest.mark.parametrize("name", ["gemma3", "mistral"])
@pytest.mark.parametrize("paths", [Paths(), Paths(attention=True)], ids=["torch", "kernel"])
@pytest.mark.parametrize("tree", [[-1, -1, 0, 1, 3, 3, 5, 4, 7], [*range(-1, 8)]], ids=["tree", "chain"])
def test_of_a_draft_each_branch_sees_its_own_window(
    monkeypatch: pytest.MonkeyPatch, name: str, paths: Paths, tree: list[int]
) -> None:
    """A branch deeper than the window does not see its own first tokens, and an accepted one is moved."""
    pytest.importorskip("triton")
    from playground.models.cuda import attention
    from tests.models.test_cuda_kernels import attended

    monkeypatch.setattr(attention, "split_attention", attended)
    monkeypatch.setattr("playground.decoding.runners.static_model.choose_paths", lambda static: paths)
    model, text, draft = MODELS[name](), LONG[:13], LONG[20:][: len(tree)]
    attend_by_groups(model, model.device)
    branch = [len(tree) - 1]
    while tree[branch[0]] >= 0:
        branch.insert(0, tree[branch[0]])
    accepted = [*text, *(draft[i] for i in branch)]
    runner, alone = StaticRunner(StaticModel(model, Graphs("as it is", None)), 64), EagerRunner(model)
    runner.forward(text[:-1], keep=1)
    runner.commit(len(text) - 1)
    rows = runner.forward([text[-1], *draft], keep=len(draft), tree=tree)
    runner.commit(len(text), branch)
    expected = alone.forward([*accepted, 5, 6], keep=len(branch) + 2)
    found = torch.cat([rows[branch], runner.forward([5, 6], keep=2)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "way"),
    selected(product(("gemma3", "mistral"), ("none", "ngram")), [("gemma3", "ngram"), ("mistral", "none")]),
)
def test_the_next_turn_goes_on_since_no_entry_is_lost(name: str, way: str) -> None:
    model = MODELS[name]()
    static = StaticModel(model, Graphs("as it is", None))
    assert not StaticRunner(static, 64).discards_old and EagerRunner(model).discards_old
    goes_on(model, drafting(way, model), way != "none", lambda _: StaticRunner(static, 64))


@pytest.mark.parametrize(("tokens", "reads"), [(30, 256), (400, 89 + 4)])
def test_of_a_long_text_layers_with_a_window_read_little(
    monkeypatch: pytest.MonkeyPatch, tokens: int, reads: int
) -> None:
    model = of(MistralConfig, MistralForCausalLM, sliding_window=90)
    runner = StaticRunner(StaticModel(model, Graphs("as it is", None)), 500)
    assert real.keys_read(monkeypatch, runner, tokens) == {reads}


@pytest.mark.parametrize("window", [WINDOW, 600])
def test_a_kernel_that_ignores_the_window_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, window: int
) -> None:
    pytest.importorskip("triton")
    from playground.models.cuda import attention
    from tests.models.test_cuda_kernels import attended

    model = of(MistralConfig, MistralForCausalLM, sliding_window=window)
    attend_by_groups(model, model.device)
    monkeypatch.setattr(fast_paths, "DEVICES", ("cpu",))
    monkeypatch.setattr(fast_paths, "_seconds", lambda static, *_: 1.0 - static.paths.attention / 2)
    chosen = []
    for kernel in (attended, lambda *args: attended(*args[:-1])):
        monkeypatch.setattr(attention, "split_attention", kernel)
        monkeypatch.setenv("PLAYGROUND_CACHE", str(tmp_path / str(len(chosen))))  # else the choice is kept
        static = StaticModel(model, Graphs("as it is", None))
        with torch.inference_mode():
            static.prepare(0, 1200, 8)
        chosen.append(static.paths)
    assert chosen[0] == Paths(attention=True)
    assert not chosen[1].attention and "other logits" in chosen[1].refused
