"""A drafter that starts from an MTP layer drafts as that does, before it has learned anything."""

from __future__ import annotations

import torch

from playground.decoding.runners.capture import watched_modules, watching
from playground.models.load import LoadedModel
from playground.models.networks.mtp import MtpLayer
from playground_distil.answers import CHOICES, Answer
from playground_distil.published import new_head
from playground_distil.recipe import layers_read
from playground_distil.starts import start_head_from_mtp
from tests.tiny import small_llama


def test_an_eagle3_head_drafts_what_the_mtp_layer_does(tiny_tokenizer):
    model = small_llama(tiny_tokenizer, room=512, initializer_range=0.1, layers=8)
    with torch.no_grad():
        table = model.get_input_embeddings().weight.normal_(std=0.3)
        table[:, 0] += 2.0  # what all tokens share, as in trained models
        model.get_output_embeddings().weight.normal_(std=0.6)
        model.model.norm.weight.uniform_(0.7, 1.5)
    target = LoadedModel(model, tiny_tokenizer, "deep", "made in a test")
    every = torch.arange(model.config.vocab_size)
    layer = MtpLayer(model, every)
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            if weight.ndim == 1:
                weight.uniform_(0.7, 1.3)
            else:
                weight.normal_(std=0.15 if "self_attn" in name else 0.1)
    texts = [_text(target, seed) for seed in range(5)]
    head = new_head(target, every, layers_read(model.config))
    start_head_from_mtp(head, {name: tensor.float() for name, tensor in layer.state_dict().items()}, texts[1:])
    with torch.no_grad():
        ids, known = texts[0].ids[None, 1:].long(), texts[0].features[None, :-1]
        by_head = head.logits(head(ids, known[:, :, :-1].flatten(-2), head.new_cache()))
        by_layer = layer.logits(layer(ids, known[:, :, -1], layer.new_cache()))
    same = by_head.argmax(-1) == by_layer.argmax(-1)
    assert same.float().mean() > 0.6  # by chance 0.003


def _text(target: LoadedModel, seed: int) -> Answer:
    """Random tokens as the target sees them: the states that an EAGLE-3 head reads, and the last one."""
    ids = torch.randint(3, target.model.config.vocab_size, (200,), generator=torch.Generator().manual_seed(seed))
    layers = [*(i - 1 for i in layers_read(target.model.config)), -1]
    seen: dict[int, torch.Tensor] = {}
    with torch.no_grad(), watching(watched_modules(target.model, layers), seen.__setitem__):
        chances, choices = target.model(ids[None]).logits[0].softmax(-1).topk(CHOICES)
    return Answer(ids, 1, torch.stack([seen[i][0] for i in range(len(layers))], dim=1), choices, chances)
