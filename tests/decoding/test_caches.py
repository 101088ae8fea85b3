"""Which of transformers' KV caches can take back rejected tokens, and that a checkpoint's wish for another is not
followed. What fails here one day can be offered then."""

from __future__ import annotations

import pytest
import torch
from transformers import QuantizedCache, StaticCache

from tests.decoding.real import generated, ids_of, llama, prompts
from tests.decoding.test_transformers_models import run


@pytest.mark.parametrize("wish", ["static", "quantized", "offloaded"])
def test_the_cache_that_a_checkpoint_names_is_not_followed(wish):
    model = llama(0, 2)
    expected = [generated(model, prompt) for prompt in prompts(5)]
    model.generation_config.cache_implementation = wish
    for prompt, answer in zip(prompts(5), expected, strict=True):
        assert ids_of(run((model, model), "assistant", prompt)) == answer


def quantised(model) -> QuantizedCache:
    try:
        return QuantizedCache("fp8", model.config)
    except ValueError:  # 5.20, the last that runs on Python 3.10
        pytest.skip("this transformers quantises caches only with a library that is not installed")


@pytest.mark.parametrize("kind", ["static", "quantised"])
def test_static_and_quantised_caches_cannot_be_rolled_back(kind):
    model = llama(0, 2)
    cache = StaticCache(config=model.config, max_cache_len=32) if kind == "static" else quantised(model)
    with torch.inference_mode():
        model(torch.tensor([[1, 2, 3, 4]]), past_key_values=cache)
    with pytest.raises((AttributeError, IndexError)):
        cache.crop(-2)
