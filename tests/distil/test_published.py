"""EAGLE-3, DFlash and DSpark on a tiny target: acceptance rises, and what is written is what the loaders draft with."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from playground.commands import main
from playground.errors import PlaygroundError
from playground.models.networks.dflash import load_dflash
from playground_distil.recipe import PUBLISHED, train_drafter, write_answers
from playground_distil.train import Plan

PLAN = Plan(tokens=64, batch=64, learning_rate=5e-3, evaluations=1)


def answered(deep, folder, tokens, batch=11):
    from playground_distil import collect

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "TEXT_CHARACTERS", (600,))
        write_answers(deep, folder, tokens=tokens, batch=batch, seed=0)
    return folder


@pytest.fixture(scope="module")
def answers(deep, tmp_path_factory):
    return answered(deep, tmp_path_factory.mktemp("deep-work"), 500, batch=2)


@pytest.fixture(scope="module")
def published(deep, answers, tmp_path_factory):
    out = tmp_path_factory.mktemp("published")
    return {
        kind: (out / kind, train_drafter(kind, deep, answers, out / kind, PLAN, vocabulary=200)) for kind in PUBLISHED
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle3", "dspark"])
def test_acceptance_rises(deep, tmp_path, kind):
    plan = replace(PLAN, tokens=4_000, batch=512, evaluations=2)
    log = train_drafter(kind, deep, answered(deep, tmp_path / "work", 6_000), tmp_path / "out", plan, vocabulary=200)
    assert log[-1]["accepted"][0] > max(0.12, log[0]["accepted"][0])


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


def test_a_target_of_few_layers_is_refused(target, tmp_path):
    for kind in PUBLISHED:
        with pytest.raises(PlaygroundError, match="at least 7"):
            train_drafter(kind, target, tmp_path, tmp_path, PLAN)


def test_weights_of_another_shape_are_no_start(deep, answers, published, tmp_path):
    folder = shutil.copytree(published["eagle3"][0], tmp_path / "old")
    state = load_file(folder / "model.safetensors")
    save_file({**state, "fc.weight": state["fc.weight"][:, 1:].clone()}, folder / "model.safetensors")
    for start_from in ([folder], [published["eagle3"][0], folder]):
        names = [str(it) for it in start_from]
        with pytest.raises(PlaygroundError, match=r"shapes.*(Leave --start-from out|Name one)"):
            train_drafter("eagle3", deep, answers, tmp_path / "out", PLAN, start_from=names)


def test_a_drafter_is_exported_loads_again_and_has_its_commands(deep, published, tmp_path, capsys):
    deep.model.save_pretrained(tmp_path / "deep")
    deep.tokenizer.save_pretrained(tmp_path / "deep")
    options = ["--target", str(tmp_path / "deep")]
    for kind, name in (("eagle3", "draft-eagle3"), ("dflash", "--layout z-lab"), ("dspark", "dspark")):
        main(["export-drafter", str(published[kind][0]), *options, "--out", str(tmp_path / kind)])
        printed = capsys.readouterr().out
        assert "same weights" in printed and name in printed
    main(["export-drafter", str(published["dflash"][0]), *options, "--out", str(tmp_path / "z"), "--layout", "z-lab"])
    config = json.loads((tmp_path / "z" / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["dflash_config"]["target_layer_ids"] == [1, 3, 6]
    network = load_dflash(str(tmp_path / "z"), deep, lambda step: None).network
    assert len(network.draft_ids) == deep.model.config.vocab_size, "the whole vocabulary, with the target's head"
    with pytest.raises(SystemExit):
        main(["export-drafter", "starter-mtp", "--out", str(tmp_path / "none")])
    assert "starter-mtp cannot" in capsys.readouterr().err
