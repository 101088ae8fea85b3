"""What the target writes in a batch is what it writes alone, and what is kept of it is what a fresh pass gives."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
import yaml

from playground.errors import PlaygroundError
from playground.models.attention import GROUPED
from playground_distil import collect
from playground_distil.answers import CHOICES, loops, write
from playground_distil.collect import TEMPLATES, WORD, Templates

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15], [20]] + [[i, i + 1] for i in range(30, 40)]


def answers(target, temperature=0.0, **options):
    arguments = dict(layers=(0, -1), max_new_tokens=12, stop_ids={0}, generator=torch.Generator().manual_seed(0))
    return list(write(target.model, PROMPTS, [temperature] * len(PROMPTS), **arguments | options))


@pytest.mark.parametrize("attention", ["sdpa", GROUPED])
def test_a_batch_writes_what_generate_writes_for_each_prompt(target, attention):
    target.model.set_attn_implementation(attention)
    found = {tuple(a.ids[: a.prompt_length].tolist()): a.ids[a.prompt_length :].tolist() for a in answers(target)}
    target.model.set_attn_implementation("sdpa")
    assert len(found) == len(PROMPTS)
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        out = target.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        alone = [token for token in out[0, len(prompt) :].tolist() if token != 0]
        written = found[tuple(prompt)]
        assert written == alone[: len(written)]
        assert len(written) == len(alone) or loops(written)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_hidden_states_and_choices_are_those_of_a_fresh_pass(target, temperature):
    for answer in answers(target, temperature):
        with torch.no_grad():
            out = target.model(answer.ids[None].long(), output_hidden_states=True)
        fresh = torch.stack([out.hidden_states[1][0], out.hidden_states[-1][0]], dim=1)
        torch.testing.assert_close(answer.features, fresh, atol=1e-4, rtol=1e-3)
        last = answer.prompt_length - 1
        p = out.logits[0, last:].softmax(-1).topk(CHOICES)
        assert (answer.choices[last:, 0] == p.indices[:, 0]).all()
        torch.testing.assert_close(answer.chances[last:].float(), p.values, atol=1e-3, rtol=1e-2)
        assert not answer.chances[:last].any()


def test_a_temperature_makes_answers_differ_and_a_seed_repeats_them(target):
    def texts(temperature, seed):
        found = answers(target, temperature, generator=torch.Generator().manual_seed(seed))
        return sorted(answer.ids.tolist() for answer in found)

    assert texts(1.0, 1) == texts(1.0, 1)
    assert texts(1.0, 1) != texts(1.0, 2)


def test_a_text_that_goes_round_is_seen():
    once = list(range(10))
    assert not loops(once * 2)
    assert loops([*range(50, 60), *once * 3])
    assert loops([*range(50, 60), *[1] * 12])
    assert not loops([1, 1, 1])  # three of a kind are no loop yet


def test_shards_go_on_where_they_were_stopped(target, tmp_path):
    def shards(folder):
        return {path.name: path.read_bytes() for path in collect.shards(folder)}

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    arguments = dict(batch=2, max_new_tokens=8, seed=3)
    collect.collect(target, whole, tokens=250, **arguments)
    collect.collect(target, stopped, tokens=1, **arguments)
    assert 2 <= len(shards(stopped)) < len(shards(whole))
    total = collect.collect(target, stopped, tokens=250, **arguments)
    assert shards(stopped) == shards(whole)
    assert total == sum(map(collect.written_in, collect.shards(whole))) >= 250


def test_another_targets_answers_are_not_gone_on_with(target, tmp_path):
    collect.collect(target, tmp_path, tokens=1, batch=4, max_new_tokens=4)
    other = replace(target, weights="made elsewhere")
    with pytest.raises(PlaygroundError, match="another target"):
        collect.collect(other, tmp_path, tokens=1, batch=4, max_new_tokens=4)


def test_a_damaged_shard_is_named(target, tmp_path):
    (tmp_path / "answers-00000.safetensors").write_bytes(b"half a file")
    with pytest.raises(PlaygroundError, match="is damaged"):
        collect.collect(target, tmp_path, tokens=1, batch=4, max_new_tokens=4)


def test_every_template_can_be_filled_and_ends_with_the_user():
    data = yaml.safe_load(TEMPLATES.read_text(encoding="utf-8"))
    named = {name for turns in data["kinds"].values() for turn in turns for name, _ in WORD.findall(str(turn))}
    assert named <= data["words"].keys() | {"n", "big", "text", "sentence"}
    rng, templates = random.Random(0), Templates()
    for _ in range(500):
        messages = templates.draw(rng, ["One. Two."])
        assert messages[-1]["role"] == "user"
        assert not any(WORD.search(message["content"]) for message in messages)


def test_passages_are_worked_on(target, tmp_path):
    collect.collect(target, tmp_path, tokens=1, batch=20, max_new_tokens=2, passages=["The zeppelin waits. " * 5])
    texts = [
        target.tokenizer.decode(answer.ids) for path in collect.shards(tmp_path) for answer in collect.read(path, (-1,))
    ]
    given = sum("zeppelin" in text for text in texts)
    assert 5 < given < len(texts) / 2
