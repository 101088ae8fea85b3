from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from playground.errors import PlaygroundError
from playground.models import fit, fused, store
from playground.models.load import Format, load
from playground.models.store import ModelStore
from playground.presets import Pair, custom_pair


@pytest.fixture
def folders(tmp_path, tiny_llama: LlamaForCausalLM, tiny_tokenizer) -> list[str]:
    """Three models of one tokenizer."""
    for name in "abc":
        tiny_llama.save_pretrained(tmp_path / name)
        tiny_tokenizer.save_pretrained(tmp_path / name)
    return [str(tmp_path / name) for name in "abc"]


@pytest.fixture
def loads(monkeypatch) -> list[str]:
    """The folders that were loaded, by name and in order."""
    names = []

    def counted(name, *args):
        names.append(Path(name).name)
        return load(name, *args)

    monkeypatch.setattr(store, "load", counted)
    return names


def get(models: ModelStore, target: str, assistant: str | None, drafter: str, dtype: str = "float32"):
    pair = custom_pair(target, assistant)
    return models.get(pair, drafter=drafter, dtype=dtype, device="cpu", progress=lambda step: None)


def test_a_second_run_loads_nothing(folders, loads):
    models = ModelStore()
    first, second = (get(models, folders[0], folders[1], "assistant") for _ in range(2))
    assert loads == ["a", "b"]
    assert second.target is first.target and second.drafting is first.drafting


def test_the_assistant_is_loaded_only_for_its_drafter(folders, loads):
    models = ModelStore()
    assert get(models, folders[0], folders[1], "ngram").drafting is None
    assert loads == ["a"]
    get(models, folders[0], folders[1], "assistant")
    assert loads == ["a", "b"]
    get(models, folders[0], folders[1], "ngram")
    get(models, folders[0], folders[1], "assistant")
    assert loads == ["a", "b"], "a change of drafter within the pair frees nothing"


def test_what_is_loaded_for_cuda_is_fused(folders, monkeypatch):
    own = get(ModelStore(), folders[0], folders[1], "assistant")
    monkeypatch.setattr(fused, "DEVICES", ("cpu",))
    models = get(ModelStore(), folders[0], folders[1], "assistant")
    ids = torch.tensor([[5, 6, 7]])
    for loaded, plain in ((models.target, own.target), (models.drafting, own.drafting)):
        assert {type(layer) for layer in loaded.model.model.layers} == {fused.FusedLayer}
        with torch.inference_mode():
            torch.testing.assert_close(loaded.model(ids).logits, plain.model(ids).logits, rtol=1e-4, atol=1e-5)


def test_another_pair_takes_the_place_of_the_first(folders):
    models = ModelStore()
    get(models, folders[0], folders[1], "assistant")
    format_ = Format(torch.float32, torch.device("cpu"))
    target, assistant = (models._models[name, format_, ""] for name in folders[:2])
    target.static["target"] = assistant  # as the buffers of a layer that drafts hold the layer
    kept, freed = weakref.ref(target), weakref.ref(assistant)
    del target, assistant
    get(models, folders[0], folders[2], "assistant")
    gc.collect()
    assert kept() is not None and freed() is None


def test_another_dtype_is_another_model(folders, loads):
    models = ModelStore()
    get(models, folders[0], None, "ngram")
    get(models, folders[0], None, "ngram", "bfloat16")
    assert loads == ["a", "a"]


def test_a_model_that_drafts_for_itself_is_loaded_once(folders, loads):
    pair = get(ModelStore(), folders[0], folders[0], "assistant")
    assert pair.drafting is pair.target
    assert loads == ["a"]


def test_two_threads_load_once(folders, loads):
    models = ModelStore()
    threads = [threading.Thread(target=get, args=(models, folders[0], None, "ngram")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == ["a"]


def test_a_pair_without_an_assistant_cannot_draft_with_one(folders):
    with pytest.raises(PlaygroundError, match="drafter assistant"):
        get(ModelStore(), folders[0], None, "assistant")


def test_another_tokenizer_is_refused_and_the_target_still_serves(folders, loads, tiny_tokenizer):
    other = PreTrainedTokenizerFast.from_pretrained(folders[1])
    other.add_tokens(["<|extra|>"])
    other.save_pretrained(folders[1])
    models = ModelStore()
    for _ in range(2):
        with pytest.raises(PlaygroundError, match="tokenizers differ"):
            get(models, folders[0], folders[1], "assistant")
    get(models, folders[0], folders[1], "ngram")
    assert loads == ["a", "b"]


def test_an_assistant_with_another_tokenizer_drafts_through_text(folders, loads):
    other = PreTrainedTokenizerFast.from_pretrained(folders[1])
    other.add_tokens(["<|extra|>"])
    other.save_pretrained(folders[1])
    pair = custom_pair(folders[0], folders[1], "universal")
    models = ModelStore().get(pair, drafter="universal", dtype="float32", device="cpu", progress=lambda step: None)
    assert models.drafting.tokenizer.get_vocab() != models.target.tokenizer.get_vocab()
    assert loads == ["a", "b"]


def test_what_is_too_large_is_refused_before_anything_is_fetched(monkeypatch, loads):
    monkeypatch.setattr(fit, "free_bytes", lambda device: 1e9)
    monkeypatch.setattr(fit, "_here", lambda name: False)
    pair = Pair("p", "Large", "owner/large", "ngram", size_gb=80)
    models = ModelStore()
    with pytest.raises(PlaygroundError, match="too large"):
        models.get(pair, drafter="ngram", dtype="float32", device="cpu", progress=lambda step: None)
    assert loads == [] and models.fit(pair).state == "too large"


def test_a_pair_in_memory_is_ready(folders):
    models = ModelStore()
    get(models, folders[0], folders[1], "assistant")
    assert models.fit(custom_pair(folders[0], folders[1])).state == "ready"


def test_a_model_that_cannot_be_loaded_leaves_the_store_usable(folders, tmp_path):
    models = ModelStore()
    with pytest.raises(PlaygroundError):
        get(models, str(tmp_path), None, "ngram")
    assert get(models, folders[0], None, "ngram").target.name == "a"
