"""An adapter on head or embedding of a model whose head and embedding share a matrix."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model

from playground.models.device import HALF
from playground.models.load import Format, load, merge
from playground.models.networks.heads import SharedHead
from tests.tiny import small_llama

pytestmark = pytest.mark.filterwarnings("ignore:Model has:UserWarning", "ignore:Setting:UserWarning")
ENDS = ["lm_head", "embed_tokens"]
KINDS = {
    "head": dict(target_modules=["lm_head"]),
    "head by DoRA": dict(target_modules=["lm_head"], use_dora=True),
    "embedding": dict(target_modules=["embed_tokens"]),
    "both": dict(target_modules=[*ENDS, "q_proj"]),
    "both by one adapter": dict(target_modules=ENDS, ensure_weight_tying=True),
    "a head of its own": dict(target_modules=["q_proj"], modules_to_save=["lm_head"]),
    "an embedding of its own": dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"]),
    "both of its own": dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True),
    "an embedding of its own, head": dict(target_modules=["lm_head"], modules_to_save=["embed_tokens"]),
    "some tokens": dict(target_modules=["q_proj"], trainable_token_indices=[1, 5, 7]),
    "neither": dict(target_modules=["q_proj"]),
}
IDS = torch.randint(280, (4, 20), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def tied(tiny_tokenizer, tmp_path):
    """A folder with such a model, and its maker."""

    def make():
        return small_llama(tiny_tokenizer, tie_word_embeddings=True, initializer_range=0.3)

    make().save_pretrained(tmp_path / "tied")
    tiny_tokenizer.save_pretrained(tmp_path / "tied")
    return make, tmp_path


def adapted(make, folder, config) -> torch.Tensor:
    """Writes an adapter with random weights, and returns the logits of peft's own layers."""
    model = get_peft_model(make(), LoraConfig(task_type="CAUSAL_LM", r=4, init_lora_weights=False, **config)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        logits = model(IDS).logits
    model.save_pretrained(folder)
    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_merged_it_gives_the_logits_that_layers_and_adapter_give_together(tied, kind):
    make, folder = tied
    wanted, model = adapted(make, folder / "lora", KINDS[kind]), make()
    before = model(IDS).logits
    merge(model, str(folder / "lora"))
    with torch.no_grad():
        merged = model(IDS).logits
    assert not torch.allclose(before, wanted, rtol=0.01, atol=0.01)
    torch.testing.assert_close(merged, wanted, rtol=1e-4, atol=1e-3)
    shares = model.lm_head.weight is model.model.embed_tokens.weight
    assert shares or (kind != "neither" and not model.config.tie_word_embeddings)


@pytest.mark.parametrize(("bits", "dtype"), [(HALF, torch.float32), (HALF, torch.bfloat16), (None, torch.float32)])
@pytest.mark.parametrize("kind", ["head", "embedding"])
def test_each_format_and_its_drafters_read_the_merged_head_and_embedding(tied, kind, bits, dtype):
    make, folder = tied
    wanted, whole = adapted(make, folder / "lora", KINDS[kind]), make()
    merge(whole, str(folder / "lora"))
    format_ = Format(dtype, torch.device("cpu"), bits, own_blocks=True)  # which an adapter rules out
    model = load(str(folder / "tied"), format_, lambda step: None, str(folder / "lora")).model
    with torch.no_grad():
        assert (model(IDS).logits - wanted).norm() < 0.02 * wanted.norm()
    drafter = SharedHead(model, torch.arange(0, 280, 2))
    for ours, its in ((whole.lm_head, drafter.whole_head), (whole.model.embed_tokens, drafter)):
        matrix = its.embedding if its is drafter else its.weight
        assert (matrix.float() - ours.weight).norm() < 0.01 * ours.weight.norm()
