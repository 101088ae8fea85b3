"""int8 and int4 weights by torch's own kernels, which it has for CPUs too."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_cache import why_eager
from playground.decoding.runners.static_model import StaticModel
from playground.errors import PlaygroundError
from playground.models import fused, load, quantised, weight_only
from playground.models.quantised import precision
from playground.models.sizing import weights_bytes
from playground.models.weight_only import WeightOnlyLinear
from tests.decoding import real
from tests.decoding.graphs import Recorder
from tests.decoding.test_trained_drafters import network_for
from tests.quantised import llama
from tests.quantised import quantised as read_back


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
    layer = nn.Linear(2048, 64, dtype=torch.bfloat16)
    few = WeightOnlyLinear(layer, bits)
    for tokens in (1, 3, weight_only.MANY + 1):
        x = torch.randn(2, tokens, 2048, dtype=torch.bfloat16)
        with torch.inference_mode():
            assert (few(x) - layer(x)).norm() / layer(x).norm() < limit
    assert weights_bytes(few) < {8: 0.51, 4: 0.27}[bits] * weights_bytes(layer)


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
