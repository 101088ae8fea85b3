"""int8 and int4 weights by torch's own kernels, which it has for CPUs too."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from playground.backends.local import LocalRun
from playground.conversation import Message
from playground.decoding.runners.factory import Runners, Sampling
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_cache import why_eager
from playground.decoding.runners.static_model import StaticModel
from playground.errors import PlaygroundError
from playground.lane import Request, assisted_lane, standard_lane
from playground.models import fused, load, quantised, weight_only
from playground.models.load import LoadedDrafter, LoadedModel
from playground.models.quantised import precision
from playground.models.sizing import weights_bytes
from playground.models.store import LoadedPair
from playground.models.weight_only import WeightOnlyLinear
from playground.presets import custom_pair
from playground.trace import Round
from tests.decoding import real
from tests.decoding.graphs import Recorder
from tests.decoding.test_static import without_times
from tests.decoding.test_trained_drafters import network_for
from tests.few_bits import Rounded, as_on_cuda
from tests.quantised import llama
from tests.quantised import quantised as read_back
from tests.selection import selected


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_only, "DEVICES", ("cpu",))
    monkeypatch.setattr(fused, "DEVICES", ("cpu",))
    timed(monkeypatch, 0.5)


def timed(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Makes products of few bits take so long, and those of bfloat16 one second."""
    monkeypatch.setattr(
        weight_only, "_seconds", lambda work, device: seconds if isinstance(work.args[0][0], WeightOnlyLinear) else 1.0
    )


@pytest.mark.parametrize("bits", [8, 4])
def test_it_is_captured_and_writes_what_it_writes_uncaptured(bits, tmp_path, monkeypatch):
    monkeypatch.setattr(weight_only, "GROUP", 32)  # the model has rows of 64
    model = read_back(llama(), tmp_path, bits, torch.bfloat16)
    linear = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear | WeightOnlyLinear)}
    assert {name for name, part in linear.items() if isinstance(part, nn.Linear)} == {"lm_head"}
    assert len(linear) == 1 + 2 * 4, "joined layers"
    assert precision(model) == f"int{bits} weights, bfloat16" and not why_eager(model)
    assert model.__dict__["quantised"] == f"int{bits} by torch's own kernel"
    whole, ids = llama().bfloat16(), torch.arange(1, 13)[None]
    with torch.inference_mode():
        apart = (model(ids).logits - whole(ids).logits).norm() / whole(ids).logits.norm()
    assert 0 < apart < {8: 0.05, 4: 0.5}[bits]
    drafter = real.over(network_for("mtp", model, torch.arange(0, real.V, 2)), "tree")
    texts = []
    for graphs in (Graphs("recorded", recorder := Recorder()), Graphs("uncaptured", None)):
        static = StaticModel(model, graphs)
        monkeypatch.setattr(real, "EagerRunner", lambda _, static=static: StaticRunner(static, 64))
        texts.append(real.ids_of(real.rounds_of(model, drafter, [3, 1, 4, 1, 5], max_new_tokens=16, ends=())))
        assert not graphs.failure
    assert texts[0] == texts[1] and recorder.replays > recorder.captures > 0


@pytest.mark.parametrize(("bits", "limit"), [(8, 0.01), (4, 0.1)])
def test_a_product_is_that_of_the_weights_up_to_rounding(bits, limit):
    torch.manual_seed(0)
    for columns, rows in (2048, 64), (1200, 30):
        layer = nn.Linear(columns, rows, dtype=torch.bfloat16)
        few = WeightOnlyLinear(layer, bits)
        for tokens in (1, 3, weight_only.MANY + 1):
            x = torch.randn(2, tokens, columns + 1, dtype=torch.bfloat16)[..., 1:]
            with torch.inference_mode():
                assert (few(x) - layer(x)).norm() / layer(x).norm() < limit
        assert weights_bytes(few) < {8: 0.51, 4: 0.33}[bits] * weights_bytes(layer)


def test_what_the_trial_refuses_is_quantised_by_bitsandbytes_and_said(tmp_path, monkeypatch):
    def how(dtype: torch.dtype = torch.bfloat16) -> str:
        model = read_back(llama(), tmp_path, 4, dtype)
        assert why_eager(model) == "its weights are quantised"
        return model.__dict__["quantised"]

    assert how(torch.float32) == "int4 by bitsandbytes, since torch's kernels compute in bfloat16 alone"
    timed(monkeypatch, 1.5)
    assert how().endswith("took longer than those of bfloat16")
    timed(monkeypatch, 0.5)
    with monkeypatch.context() as patch:
        patch.setattr(WeightOnlyLinear, "forward", lambda self, x: x.new_ones(len(x), self.out_features))
        assert "differ from those of bfloat16" in how()
    with monkeypatch.context() as patch:
        patch.setattr(weight_only, "INNER", None)
        assert "torch's int4 kernel failed" in how()
    monkeypatch.setattr(load, "free_bytes", lambda device: 1.4e5)
    assert how().endswith("since the unquantised weights do not fit into the memory")
    monkeypatch.setattr(quantised, "is_bitsandbytes_available", lambda: False)
    with pytest.raises(PlaygroundError, match=r"bitsandbytes here, since the unquantised .* memory\. .*gpu"):
        how()


@pytest.mark.parametrize("bits", [8, 4])
def test_the_form_for_cuda_multiplies_by_the_same_weights(bits, monkeypatch):
    torch.manual_seed(0)
    as_on_cuda(monkeypatch)
    for columns, rows in (256, 64), (300, 30):
        layer = nn.Linear(columns, rows, dtype=torch.bfloat16)
        for tokens in (1, 9):
            x = torch.randn(2, tokens, columns + 1, dtype=torch.bfloat16)[..., 1:]
            assert torch.equal(WeightOnlyLinear(layer, bits)(x), Rounded(layer, bits)(x))


GRAMMAR = "(the waves )+[a-z]+"
# Drafter, rule, temperature and grammar of a lane.
LANES = {
    "standard": ("none", "token", 0.9, ""),
    "chain, block verification": ("mtp", "block", 1.2, GRAMMAR),
    "tree": ("tree", "token", 0.0, GRAMMAR),
    "sampled tree": ("tree", "traversal", 0.9, ""),
    "assistant": ("assistant", "token", 0.0, ""),
}


@pytest.mark.parametrize(
    ("bits", "lane"),
    selected(product((8, 4), LANES), [(8 if lane in ("standard", "tree") else 4, lane) for lane in LANES]),
)
def test_captured_conversations_are_those_over_plain_layers_of_the_same_weights(
    bits, lane, tiny_tokenizer, monkeypatch
):
    """Round by round; the second answer continues from the cache of the first."""
    as_on_cuda(monkeypatch)
    ours = conversation(*LANES[lane], bits, tiny_tokenizer)
    monkeypatch.setattr(weight_only, "WeightOnlyLinear", Rounded)
    assert ours == conversation(*LANES[lane], bits, tiny_tokenizer)


def conversation(drafter, verification, temperature, regex, bits, tokenizer) -> list[list[Round]]:
    """Two answers of models that are rounded to so many bits, without times."""
    pair, recorder = custom_pair("tiny", "small", "mtp" if drafter == "tree" else drafter), Recorder()
    target = rounded(bits, tokenizer, recorder)
    drafting = rounded(bits, tokenizer, recorder, seed=1)
    if drafter != "assistant":
        network = network_for("mtp", target.model, torch.arange(0, len(tokenizer), 2))
        drafting = LoadedDrafter(network, "small", "made here")
    lane = assisted_lane(pair, drafter, 3, verification=verification) if drafter != "none" else standard_lane(pair)
    request = Request("The waves", temperature=temperature, regex=regex, max_new_tokens=8, seed=3)
    answers = []
    for _ in range(2):
        run = LocalRun(LoadedPair(pair, target, drafting), lane, request, Runners(compiled=True))
        answers.append([without_times(round_) for round_ in run.rounds])
        said = "".join(token.text for round_ in answers[-1] for token in round_.tokens)
        request = replace(request, prompt="And?", history=(*request.turns, Message("assistant", said)))
    assert run.reused.tokens and recorder.replays
    assert drafter == "none" or any(round_.drafted for answer in answers for round_ in answer)
    return answers


def rounded(bits, tokenizer, recorder, seed=0) -> LoadedModel:
    """A model in bfloat16 as it is loaded on CUDA, in its static form."""
    torch.manual_seed(seed)
    sizes = dict(hidden_size=128, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2)
    ends = dict(eos_token_id=tokenizer.eos_token_id, bos_token_id=None, pad_token_id=tokenizer.pad_token_id)
    config = LlamaConfig(**sizes, **ends, vocab_size=len(tokenizer), num_hidden_layers=2, initializer_range=0.1)
    model = LlamaForCausalLM(config).bfloat16().eval()
    fused.fuse_and_join(model, model.device)
    weight_only.quantise(model, bits, model.device)
    static = {use: StaticModel(model, Graphs("recorded", recorder)) for use in ("target", "assistant")}
    static |= {"sampling": Sampling(Graphs("recorded", recorder))}
    return LoadedModel(model, tokenizer, "tiny", "made here", static=static)
