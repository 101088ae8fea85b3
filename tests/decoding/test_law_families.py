"""As test_law.py, for ways of drafting that take a target of their own kind, or an assistant with another tokenizer."""

from __future__ import annotations

import pytest

from playground.decoding.drafters.universal import UniversalDrafter
from playground.models.networks.gemma4 import Gemma4Assistant
from playground.models.store import ModelStore
from playground.presets import custom_pair
from tests.decoding.gemma4 import gemma4_assistant, gemma4_target
from tests.decoding.law import SETTINGS, RememberedDrafts, branches, cases, chain, follows_the_law, law_of, tree
from tests.decoding.test_universal import loaded as model_of
from tests.decoding.test_universal import pieces  # noqa: F401 (a fixture)
from tests.native import native_places, save_native  # noqa: F401 (a fixture)
from tests.tiny import small_llama

V = 4


@pytest.mark.parametrize(("sampling", "draws"), cases())
@pytest.mark.parametrize("way", [chain, pytest.param(tree, marks=pytest.mark.slow)])
def test_runs_with_a_gemma_4_assistant_follow_the_targets_law(way, sampling, draws):
    prompt = [0, 1, 0, 2, 0, 1, 2, 2]  # longer than the window
    model = gemma4_target("unified", V)
    network = Gemma4Assistant(gemma4_assistant(model, ordered=False), model)
    assert follows_the_law(law_of(model), V, way(branches(network, model, prompt), V), prompt, draws, **sampling)


@pytest.mark.parametrize(("sampling", "draws"), cases())
@pytest.mark.parametrize(("family", "layers"), [("deepseek", 3), pytest.param("glm", 1, marks=pytest.mark.slow)])
def test_runs_with_a_targets_own_mtp_layers_follow_its_law(
    family,
    layers,
    sampling,
    draws,
    native_places,  # noqa: F811
    tiny_tokenizer,
    tmp_path,
):
    folder = save_native(family, layers, tmp_path / "tiny", tiny_tokenizer, V)
    pair = custom_pair(str(folder), None, "mtp")
    loaded = ModelStore().get(pair, drafter="mtp", dtype="float32", device="cpu", progress=lambda step: None)
    model = loaded.target.model
    assert follows_the_law(
        law_of(model), V, chain(branches(loaded.drafting.network, model), V), draws=draws, **sampling
    )


# Over a larger vocabulary all continuations are few enough to be counted only where most are cut off.
FEW = [dict(temperature=0.7, top_k=2, top_p=0.9), *(it for it in SETTINGS[1:] if "top_k" in it)]


@pytest.mark.parametrize(("sampling", "draws"), cases(FEW))
@pytest.mark.parametrize("of", ["bytes", "pieces"])
def test_runs_with_another_tokenizer_follow_the_targets_law(of, tiny_tokenizer, pieces, sampling, draws):  # noqa: F811
    """One tokenizer has no beginning of text; the other one has, and bytes for what it has not learnt."""
    its, other = (tiny_tokenizer, pieces) if of == "bytes" else (pieces, tiny_tokenizer)
    target, assistant = small_llama(its), model_of(other)
    drafter = RememberedDrafts(lambda: UniversalDrafter(assistant, its))
    prompt = its("The waves count 🙂")["input_ids"]
    assert (prompt[0] == its.bos_token_id) == (of == "pieces")
    assert follows_the_law(law_of(target), len(its), lambda target: drafter, prompt, draws, **sampling)
