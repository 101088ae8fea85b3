"""P-EAGLE heads from folders: loaded, against a pass written from the paper, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear
from transformers import PreTrainedModel

from playground.decoding.runners.eager import EagerRunner
from playground.errors import PlaygroundError
from playground.models.load import LoadedDrafter
from playground.models.networks.eagle3 import PEagleHead, load_peagle
from playground.presets import kind_of
from tests.decoding.real import V, branches_over, generated, leaves_no_state, llama, over
from tests.models.networks.test_eagle3 import Reference, change_config, change_weights, loaded, write_head

MASK, SAID = V - 2, {"verifier": {"name_or_path": "o/big"}, "proposal_methods": [{"speculative_tokens": 5}]}
OURS = dict(layout="speculators", speculators_model_type="peagle", architectures=["PEagleSpeculator"])
LAYOUTS = {
    "speculators": dict(OURS, speculators_config=SAID),
    "3.1": dict(OURS, fc_norm=True, parts=("fc_norm",)),
    "flat": dict(layout="flat", parts=("embed_tokens", "input_norm"), norm_output=True),
}


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return llama(0, 8)


def write(folder, model: PreTrainedModel, ids=range(1, V, 3), layout: str = "speculators", **config: object) -> str:
    chosen = LAYOUTS[layout] | config
    parts = ("mask_hidden", *chosen.pop("parts", ()))
    return write_head(folder, model, list(ids), **{"mask_token_id": MASK, **chosen}, parts=parts)


def load(folder: str, model: PreTrainedModel) -> LoadedDrafter:
    return load_peagle(folder, loaded(model), lambda step: None)


class Slots(Reference):
    """One pass over the text and the slots, causal, from scratch."""

    @torch.inference_mode()
    def drafted(self, text: list[int], slots: int) -> torch.Tensor:
        """(slots + 1, draft vocabulary)."""
        learnt = self.w["mask_hidden"].reshape(len(self.layers), -1)
        parts = [self.norm(part[None], f"fc_norm.{i}") for i, part in enumerate(learnt)]
        hidden = linear(self.norm(torch.cat(parts, dim=-1), "input_norm"), self.w["fc"])
        pairs = torch.cat([self.hidden(text[:-1]), hidden.expand(slots, -1)])
        out = self.layer([*text[1:], *[MASK] * slots], pairs)[-slots - 1 :]
        return linear(self.norm(out, "norm"), self.w["lm_head"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_drafts_are_those_of_one_pass_over_text_and_slots(layout, target, tmp_path):
    folder = write(tmp_path / "head", target, layout=layout)
    assert kind_of(folder) == "peagle"
    head = load(folder, target).network
    assert isinstance(head, PEagleHead) and head.drafts == (5 if layout == "speculators" else 8)
    runner = EagerRunner(target)
    branches = branches_over(head, runner)
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    done = 0
    for known in (4, 5, 8, 11):  # after other texts, whose slots are dropped
        runner.forward(text[done : known - 1], keep=1)
        runner.commit(known - 1)
        branches.commit()
        done = known - 1
        with torch.inference_mode():
            branches.root(text[:known])
        wanted = Slots(folder, target, head.layers).drafted(text[:known], head.drafts - 1)
        torch.testing.assert_close(branches.positions, wanted, rtol=1e-3, atol=1e-3)
        branches.end()


def test_what_was_drafted_before_leaves_no_state(tmp_path):
    model = llama(0, 8)
    head = load(write(tmp_path / "head", model, range(V)), model).network
    text = [3, 1, 4, *generated(model, [3, 1, 4])]
    leaves_no_state(model, over(head), text, [(3, 5), (3, 6), (3, 10), (0, 13), (3, 14), (3, 18)])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (dict(mask_token_id=None), "no mask_token_id"),
        (dict(mask_token_id=V), "token 40, "),
        (dict(speculators_model_type="eagle3"), "no P-EAGLE head: .* eagle3"),
        (dict(speculators_model_type="eagle"), r"no P-EAGLE head: .* eagle\b"),
        (dict(norm_before_fc=True), "no input_norm.weight"),
    ],
    ids=str,
)
def test_what_its_config_says_wrong_is_refused(change, sentence, target, tmp_path):
    folder = write(tmp_path / "head", target)
    change_config(folder, lambda raw: raw.update(change))
    with pytest.raises(PlaygroundError, match=sentence):
        load(folder, target)


def test_a_head_without_what_the_slots_read_is_refused(target, tmp_path):
    folder = write(tmp_path / "head", target)
    change_weights(folder, lambda state: state.pop("mask_hidden"))
    with pytest.raises(PlaygroundError, match="mask_hidden"):
        load(folder, target)


def test_an_unknown_part_is_refused(target, tmp_path):
    folder = write(tmp_path / "head", target)
    change_weights(folder, lambda state: state.update(second_mask=torch.zeros(1)))
    with pytest.raises(PlaygroundError, match="second_mask"):
        load(folder, target)
