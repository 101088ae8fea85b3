"""DFlash, DSpark, DFlash 2, Domino and JetSpec in the layouts in which they are published: loaded from folders, against
a forward pass written from the formulas."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from playground.decoding.runners.eager import EagerRunner
from playground.errors import PlaygroundError
from playground.models.load import LoadedDrafter
from playground.models.networks.dflash import load_dflash, load_jetspec
from playground.models.networks.dflash2 import load_dflash2
from playground.models.networks.domino import load_domino
from playground.models.networks.dspark import load_dspark
from playground.presets import kind_of
from tests.decoding.real import branches_over, llama
from tests.models.networks.blocks import BLOCK, Reference, change_config, write_block
from tests.models.networks.test_eagle3 import loaded

TEXT, DRAFTED = [3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 8, 7]
REDUCED = list(range(1, 40, 3))
LAYOUTS = {
    "deepspec": dict(layout="deepspec", reads=(0, 2)),
    "speculators": dict(),
    "speculators from the anchor": dict(sample_from_anchor=True),
    "speculators, the last layer, fewer tokens": dict(reads=(1, 3), ids=REDUCED),
}
LOADERS = {
    "dflash": load_dflash,
    "dspark": load_dspark,
    "dflash2": load_dflash2,
    "domino": load_domino,
    "jetspec": load_jetspec,
}
HEADS = {
    "vanilla": dict(markov="vanilla", confidence="markov"),
    "gated": dict(markov="gated", confidence="plain"),
    "rnn": dict(markov="rnn", confidence="markov"),
    "no confidence": dict(markov="vanilla"),
    "no markov": dict(confidence="plain"),
}


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return llama(0, 3)


def load(folder: str, model: PreTrainedModel) -> LoadedDrafter:
    """By the loader of the method that the folder is recognised for."""
    return LOADERS[kind_of(folder)](folder, loaded(model), lambda step: None)


def drafts_are_those_of_the_formulas(folder: str, model: PreTrainedModel, depth: int) -> None:
    network, reference = load(folder, model).network, Reference(folder, model)
    runner = EagerRunner(model)
    branches = branches_over(network, runner)
    assert branches.deepest == depth
    runner.forward(TEXT[:-1], keep=1)
    runner.commit(len(TEXT) - 1)
    branches.commit()
    with torch.inference_mode():
        logits = branches.root(TEXT)
        for i in range(depth):
            wanted, confidence = reference.logits(TEXT, DRAFTED[:i])
            torch.testing.assert_close(logits[0], wanted, rtol=1e-3, atol=1e-3)
            assert (branches.confidence is None) == (confidence is None)
            assert confidence is None or float(branches.confidence[0]) == pytest.approx(confidence, rel=1e-3)
            if i < depth - 1:
                logits = branches.grow(DRAFTED[i : i + 1], [0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_dflash_folder_gives_the_drafts_of_the_formulas(layout, target, tmp_path):
    folder = write_block(tmp_path / "drafter", target, **LAYOUTS[layout])
    assert kind_of(folder) == "dflash"
    anchored = layout in ("deepspec", "speculators from the anchor")
    drafts_are_those_of_the_formulas(folder, target, BLOCK if anchored else BLOCK - 1)
    wanted = REDUCED if "ids" in LAYOUTS[layout] else list(range(40))
    assert load(folder, target).network.draft_ids.tolist() == wanted


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(
    "layout", [dict(layout="deepspec", reads=(0, 2)), dict(kind="dspark"), dict(kind="dspark", ids=REDUCED)], ids=str
)
def test_a_dspark_folder_gives_the_drafts_of_the_formulas(layout, heads, target, tmp_path):
    folder = write_block(tmp_path / "drafter", target, **layout, **HEADS[heads])
    assert kind_of(folder) == "dspark"
    drafts_are_those_of_the_formulas(folder, target, BLOCK)


def test_a_dspark_folder_whose_first_slot_drafts_nothing(target, tmp_path):
    folder = write_block(tmp_path / "drafter", target, kind="dspark", **HEADS["vanilla"], sample_from_anchor=False)
    drafts_are_those_of_the_formulas(folder, target, BLOCK - 1)


@pytest.mark.parametrize(
    "layout",
    [dict(layout="z-lab", reads=(0, 2)), dict(reads=(1, 3)), dict(sample_from_anchor=True)],
    ids=str,
)
def test_a_dflash_2_folder_gives_the_drafts_of_the_formulas(layout, target, tmp_path):
    folder = write_block(tmp_path / "drafter", target, kind="dflash2", **layout)
    assert kind_of(folder) == "dflash2"
    drafts_are_those_of_the_formulas(folder, target, BLOCK if "sample_from_anchor" in layout else BLOCK - 1)


@pytest.mark.parametrize("inside", [{}, {"shift_label": True}, {"pure_draft_prefix_len": 0}], ids=str)
@pytest.mark.parametrize("architecture", ["DFlashDraftModel", "DominoDraftModel"])
def test_a_domino_folder_gives_the_drafts_of_the_formulas(architecture, inside, target, tmp_path):
    parts = dict(layout="z-lab", kind="domino", reads=(0, 2), inside=inside)
    folder = write_block(tmp_path / "drafter", target, **parts, architectures=[architecture])
    assert kind_of(folder) == "domino"
    drafts_are_those_of_the_formulas(folder, target, BLOCK if "shift_label" in inside else BLOCK - 1)


def test_a_jetspec_folder_gives_the_drafts_of_the_formulas(target, tmp_path):
    folder = write_block(tmp_path / "drafter", target, layout="z-lab", kind="jetspec", reads=(0, 2))
    assert kind_of(folder) == "jetspec"
    drafts_are_those_of_the_formulas(folder, target, BLOCK - 1)


def test_deepspecs_layout_by_its_other_name(target, tmp_path):
    """vLLM takes it for the same network, with two keys in a place of their own."""
    inside = {"mask_token_id": 38, "target_layer_ids": [0, 2]}
    more = dict(architectures=["DSparkDraftModel"], dflash_config=inside, mask_token_id=None, target_layer_ids=None)
    folder = write_block(tmp_path / "drafter", target, layout="deepspec", reads=(0, 2), **HEADS["vanilla"], **more)
    assert kind_of(folder) == "dspark"
    drafts_are_those_of_the_formulas(folder, target, BLOCK)


@pytest.mark.parametrize(
    "drafter",
    [dict(kind="dspark", markov="rnn", confidence="markov"), dict(layout="z-lab", kind="domino")],
    ids=["dspark", "domino"],
)
def test_rows_of_a_tree_have_their_own_memory(drafter, target, tmp_path):
    folder = write_block(tmp_path / "drafter", target, **drafter)
    network, reference = load(folder, target).network, Reference(folder, target)
    runner = EagerRunner(target)
    branches = branches_over(network, runner)
    runner.forward(TEXT[:-1], keep=1)
    runner.commit(len(TEXT) - 1)
    branches.commit()
    with torch.inference_mode():
        branches.root(TEXT)
        branches.grow([5, 7, 2], [0, 0, 0])
        logits = branches.grow([3, 4], [2, 0])
        for row, path in zip(logits, ([2, 3], [5, 4]), strict=True):
            torch.testing.assert_close(row, reference.logits(TEXT, path)[0], rtol=1e-3, atol=1e-3)
        for row, path in enumerate(([2, 3], [5, 4])):
            confidence = reference.logits(TEXT, path)[1]
            assert confidence is None or float(branches.confidence[row]) == pytest.approx(confidence, rel=1e-3)


def without(folder: str, key: str) -> None:
    path = Path(folder) / "model.safetensors"
    state = load_file(path)
    del state[key]
    save_file(state, path)


SPARK = dict(kind="dspark", markov="vanilla", confidence="markov")
REFUSED = {
    "a Markov head by another name": (dict(SPARK, markov_head_type="fourier"), "names a Markov head 'fourier'"),
    "an unknown part": (dict(SPARK, extra={"markov_head.up": (3, 3)}), ", such as markov_head.up.weight"),
    "an unknown part of DFlash": (dict(extra={"conv": (3, 3)}), ", such as conv.weight"),
    "an unknown part of a layer": (dict(extra={"layers.0.conv": (3, 3)}), ", such as layers.0.conv.weight"),
    "an rnn without its first slot": (
        dict(SPARK, markov="rnn", sample_from_anchor=False),
        "an rnn Markov head whose first slot drafts nothing",
    ),
    "Gemma 4's layers": (
        dict(SPARK, layout="deepspec", architectures=["Gemma4DSparkModel"]),
        "names Gemma4DSparkModel. Choose one",
    ),
    "other layers of speculators": (
        dict(transformer_layer_config={"model_type": "llama"}),
        "has llama layers. Of this kind only drafters with qwen3 layers",
    ),
    "DFlash 2 in part": (
        dict(kind="dflash2", extra={"candidate_selector.bias": (3, 3)}),
        ", such as candidate_selector.bias.",
    ),
    "DFlash 2 with fewer tokens": (dict(kind="dflash2", ids=[1, 2]), "has no candidate_selector over the target's 40"),
    "DFlash 2 with odd groups": (
        dict(kind="dflash2", extra={"layers.0.mlp_conv.kernel_projection": (6 * 5, 32)}),
        "makes kernels for 5 groups, which do not divide its 32 channels",
    ),
    "DFlash 2 of another name": (
        dict(kind="dflash2", speculators_model_type="dflash3"),
        "names a dflash3 of",
    ),
    "Domino of speculators": (
        dict(kind="domino", speculators_model_type="domino", architectures=["DominoSpeculator"]),
        "names a domino of speculators. Choose one with DFlashDraftModel or DominoDraftModel and a projector_type.",
    ),
    "Domino with a bias": (
        dict(layout="z-lab", kind="domino", extra={"prefix_gru.bias_ih_l0": (15,)}),
        ", such as prefix_gru.bias_ih_l0.",
    ),
    "Domino of another width": (
        dict(layout="z-lab", kind="domino", extra={"embed_proj.0": (7, 32)}),
        "embed_proj.0.weight has the shape (7, 32), and by the network and its other parts it is (7, 37)",
    ),
    "another projector": (
        dict(layout="z-lab", kind="domino", inside={"projector_type": "waltz"}),
        "projector_type waltz. Choose a drafter without",
    ),
    "JetSpec of speculators": (
        dict(kind="jetspec", speculators_model_type="jetspec", architectures=["JetSpecSpeculator"]),
        "names a jetspec of speculators. Choose one with DFlashDraftModel and a causal_head.",
    ),
    "JetSpec with an adapter": (
        dict(layout="z-lab", kind="jetspec", extra={"hidden_dim_adapter.proj": (32, 32)}),
        ", such as hidden_dim_adapter.proj.weight.",
    ),
    "no mask token": (dict(mask_token_id=None), "lacks target_layer_ids or mask_token_id"),
    "the embedding": (dict(reads=(0, 2)), "reads the target's embedding"),
    "the embedding, DeepSpec": (dict(layout="deepspec", reads=(-1, 2)), "reads the target's embedding"),
    "more layers than there are": (dict(reads=(1, 4)), "layer 3, counted from 0, and the target has 3"),
    "another target": (dict(target_hidden_size=64), "made for big, with hidden states of 64, and this one has 32"),
    "bad ids": (dict(ids=[1, 2, 40]), "draft vocabulary has token 40"),
    "fewer tokens without a mapping": (dict(extra={"lm_head": (13, 32)}), "has no tensor d2t to say which"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_refused_in_words(case, target, tmp_path):
    changes, sentence = REFUSED[case]
    folder = write_block(tmp_path / "drafter", target, **changes)
    load_it = LOADERS[changes.get("kind", "dspark" if "markov" in changes else "dflash")]
    with pytest.raises(PlaygroundError) as refusal:
        load_it(folder, loaded(target), lambda step: None)
    assert sentence in str(refusal.value)


def test_a_drafter_is_named_by_its_tensors_where_another_was_asked_for(target, tmp_path):
    spark = write_block(tmp_path / "spark", target, **SPARK)
    flash = write_block(tmp_path / "flash", target, layout="deepspec", markov_rank=256)
    jet = write_block(tmp_path / "jet", target, layout="z-lab", kind="jetspec")
    for folder, load_it, named in (
        (spark, load_dflash, "dspark"),
        (flash, load_dspark, "dflash"),
        (jet, load_dflash, "jetspec"),
    ):
        with pytest.raises(PlaygroundError, match=rf"draft as {named}\b.*drafter {named}\b"):
            load_it(folder, loaded(target), lambda step: None)


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("layers.1.mlp_conv.base_kernel", "no mlp_conv"),
        ("candidate_selector.hidden_projection.weight", "no candidate_selector"),
        ("prefix_gru.weight_hh_l0", "no prefix_gru"),
    ],
)
def test_a_folder_that_lacks_a_part_is_refused(key, sentence, target, tmp_path):
    kind = "domino" if "gru" in key else "dflash2"
    folder = write_block(tmp_path / "drafter", target, layout="z-lab", kind=kind)
    without(folder, key)
    with pytest.raises(PlaygroundError, match=sentence):
        LOADERS[kind](folder, loaded(target), lambda step: None)


def test_a_domino_folder_is_named_where_dflash_was_asked_for(target, tmp_path):
    folder = write_block(tmp_path / "drafter", target, layout="z-lab", kind="domino")
    with pytest.raises(PlaygroundError, match=r"has the projector_type domino\. Choose the drafter domino"):
        load_dflash(folder, loaded(target), lambda step: None)


@pytest.mark.parametrize("key", ["lm_head.weight", "layers.1.mlp.up_proj.weight", "markov_head.markov_w2.weight"])
def test_a_folder_that_lacks_a_tensor_is_refused(key, target, tmp_path):
    folder = write_block(tmp_path / "drafter", target, **SPARK, ids=REDUCED)
    without(folder, key)
    with pytest.raises(PlaygroundError, match=key.replace("_", "[_]").replace(".", "[.]")):
        load_dspark(folder, loaded(target), lambda step: None)


def test_the_usual_layers_are_the_inputs_that_speculators_reads(tmp_path):
    model = llama(0, 8)
    folder = write_block(tmp_path / "drafter", model, reads=(2, 4, 5))
    change_config(folder, aux_hidden_state_layer_ids=None)
    assert load(folder, model).network.layers == [1, 3, 4]
