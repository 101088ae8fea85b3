"""EAGLE-3, DFlash and DSpark on a tiny target: acceptance rises, and what is written is what the loaders draft with."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from playground.commands import main
from playground.distil.blocks import STRIDE, BlockDrafter, BlockStudent
from playground.distil.data import batch_of, load_answers
from playground.distil.eagle3 import Eagle3Student, new_head
from playground.distil.recipe import PUBLISHED, STEPS, layers_read, train_drafter, write_answers
from playground.distil.train import Plan
from playground.errors import PlaygroundError
from playground.models.load import LoadedModel
from playground.models.networks.dflash import load_dflash
from playground.models.networks.dspark import load_dspark
from playground.models.networks.eagle3 import load_eagle3
from playground.models.networks.speculators import drafted, published_state
from tests.tiny import small_llama

PLAN = Plan(tokens=12_000, batch=512, learning_rate=5e-3, evaluations=2)


@pytest.fixture(scope="module")
def deep(tiny_tokenizer) -> LoadedModel:
    """Eight layers, which a drafter can read three of; like the fixture `target` in all else."""
    model = small_llama(tiny_tokenizer, room=1024, initializer_range=0.1, layers=8)
    with torch.no_grad():
        model.get_input_embeddings().weight.normal_()
        model.get_output_embeddings().weight.normal_(std=0.6)
    return LoadedModel(model, tiny_tokenizer, "deep", "made in a test")


@pytest.fixture(scope="module")
def answers(deep, tmp_path_factory):
    from playground.distil import prompts

    folder = tmp_path_factory.mktemp("deep-work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompts, "TEXT_CHARACTERS", (600,))
        write_answers(deep, folder, tokens=6_000, batch=32, seed=0)
    return folder


@pytest.fixture(scope="module")
def published(deep, answers, tmp_path_factory):
    out = tmp_path_factory.mktemp("published")
    return {
        kind: (out / kind, train_drafter(kind, deep, answers, out / kind, PLAN, vocabulary=200)) for kind in PUBLISHED
    }


@pytest.mark.parametrize("kind", ["eagle3", "dspark"])
def test_acceptance_rises(published, kind):
    _, log = published[kind]
    assert log[-1]["accepted"][0] > max(0.2, log[0]["accepted"][0])


def test_a_published_layout_says_what_engines_read(deep, published):
    for kind, (folder, _) in published.items():
        config, state = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
        assert config["speculators_model_type"] == kind
        assert config["draft_vocab_size"] == len(state["lm_head.weight"]) == int(state["t2d"].sum()) == 200
        assert state["d2t"].dtype == torch.int64 and state["lm_head.weight"].dtype == torch.bfloat16
        ids = state["d2t"] + torch.arange(200)
        assert torch.equal(ids, state["t2d"].nonzero()[:, 0])
        head = deep.model.get_output_embeddings().weight[ids].bfloat16()
        assert torch.equal(state["lm_head.weight"], head)


LOADERS = {"eagle3": load_eagle3, "dflash": load_dflash, "dspark": load_dspark}


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_what_training_accepts_is_accepted_in_decoding(deep, answers, published, kind):
    """Training drafts from every place at once, from the text; its first drafts are those of a network that is loaded
    and reads the sequence up to there."""
    folder, _ = published[kind]
    network = LOADERS[kind](str(folder), deep, lambda step: None).network
    _, held_out = load_answers(answers, slice(0, -1))
    answer = max(held_out, key=lambda answer: len(answer.ids) - answer.prompt_length)
    student = begun(kind, deep, folder)
    with torch.no_grad():
        agreed = student.lesson(batch_of([answer])).agreed[:, 0]
        starts = places(kind, answer)
        same = []
        for place, agree in zip(starts[::3], agreed[::3], strict=False):
            logits = first_logits(kind, network, answer, place)
            same.append(bool(network.draft_ids[logits.argmax()] == answer.choices[place, 0]) == bool(agree))
        assert sum(same) >= 0.9 * len(same), "all but near-ties, which the products of training round otherwise"


def begun(kind: str, target: LoadedModel, folder) -> Eagle3Student | BlockStudent:
    """A student with the weights that were written."""
    state, inputs = published_state(str(folder)), layers_read(target.model.config)
    ids = drafted(state)
    student: Eagle3Student | BlockStudent
    if kind == "eagle3":
        student = Eagle3Student(new_head(target, ids, inputs), STEPS[kind])
    else:
        mask_id = json.loads((folder / "config.json").read_text())["mask_token_id"]
        student = BlockStudent(BlockDrafter(kind, target, ids, inputs, mask_id))
    student.begin(state)
    return student


def places(kind: str, answer) -> list[int]:
    """The last known token of each draft that training measures."""
    first, n, steps = answer.prompt_length - 1, len(answer.ids), STEPS[kind]
    if kind == "eagle3":
        return list(range(first + 1, n - steps + 1))
    return [place for place in range(0, n - steps, STRIDE) if place >= first]


def first_logits(kind: str, network, answer, place: int) -> torch.Tensor:
    features = answer.features[:place].flatten(1).float()
    if kind == "eagle3":
        hidden = network(answer.ids[None, 1 : place + 1].long(), features[None], network.new_cache())
        return network.logits(hidden)[0, -1]
    out = network(int(answer.ids[place]), features, network.new_cache())
    if kind == "dflash":
        return out[0]
    return network.slot(network.logits(out)[0], out[0], answer.ids[place][None].long(), network.no_memory(out)).logits[
        0
    ]


def test_a_target_of_few_layers_is_refused(target, work, tmp_path):
    for kind in PUBLISHED:
        with pytest.raises(PlaygroundError, match="reads three layers of a target of at least 7; tiny has 2"):
            train_drafter(kind, target, work, tmp_path, PLAN)


def test_a_drafter_is_exported_loads_again_and_has_its_commands(deep, published, tmp_path, capsys):
    deep.model.save_pretrained(tmp_path / "deep")
    deep.tokenizer.save_pretrained(tmp_path / "deep")
    options = ["--target", str(tmp_path / "deep")]
    for kind, name in (("eagle3", "draft-eagle3"), ("dflash", "draft-dflash"), ("dspark", "dspark")):
        main(["export-drafter", str(published[kind][0]), *options, "--out", str(tmp_path / kind)])
        printed = capsys.readouterr().out
        assert "loads and has the same weights" in printed and name in printed
    main(["export-drafter", str(published["dflash"][0]), *options, "--out", str(tmp_path / "z"), "--layout", "z-lab"])
    config = json.loads((tmp_path / "z" / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["dflash_config"]["target_layer_ids"] == [1, 3, 6]
    network = load_dflash(str(tmp_path / "z"), deep, lambda step: None).network
    assert len(network.draft_ids) == deep.model.config.vocab_size, "the whole vocabulary, with the target's head"
    with pytest.raises(SystemExit):
        main(["export-drafter", "starter-mtp", "--out", str(tmp_path / "none")])
    assert "cannot be exported" in capsys.readouterr().err
