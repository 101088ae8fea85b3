"""What a drafter proposes in decoding is what it drafts in training."""

from __future__ import annotations

import pytest
import torch

from playground.backends.local import LocalBackend
from playground.decoding.runners.capture import watched_modules, watching
from playground.experiments.compare import run
from playground.experiments.events import Watch
from playground.lane import LOCAL, Request, assisted_lane, standard_lane
from playground.models.store import ModelStore
from playground.presets import custom_pair
from playground_distil.answers import CHOICES, Answer
from playground_distil.data import batch_of
from playground_distil.published import STRIDE, BlockDrafter, BlockStudent, Eagle3Student, new_head
from playground_distil.recipe import PUBLISHED, STEPS, layers_read
from playground_distil.speculators import drafted, published_state, save_speculators


@pytest.mark.parametrize("kind", PUBLISHED)
def test_each_draft_of_a_decode_loop_is_the_one_that_training_makes_there(deep, kind, tmp_path):
    """Training drafts from every place of a text at once, and reads the text where decoding reads its own draft: so the
    draft is put there."""
    deep.model.save_pretrained(tmp_path / "deep")
    deep.tokenizer.save_pretrained(tmp_path / "deep")
    student = _student(kind, deep, torch.arange(0, deep.model.config.vocab_size, 2))
    save_speculators(tmp_path / kind, student.config_json(deep), student.state(), "")
    state = published_state(str(tmp_path / kind))
    student = _student(kind, deep, drafted(state))  # anew, with the weights as they were stored
    student.begin(state)

    pair = custom_pair(str(tmp_path / "deep"), str(tmp_path / kind))
    backends = {LOCAL: LocalBackend(ModelStore(), pair, "float32", "cpu")}
    lanes = [standard_lane(pair), assisted_lane(pair, kind, STEPS[kind])]
    lane = run(
        lanes, Request("The lighthouse keeper", chat_template=False, max_new_tokens=24), backends, Watch()
    ).lanes[1]
    ids = list(lane.prompt_ids)
    compared = 0
    for round_ in lane.rounds:
        draft = [token.id for token in round_.drafted]
        place = len(ids) - 1
        if len(draft) == STEPS[kind] and (kind == "eagle3" or place % STRIDE == 0):
            with torch.no_grad():
                agreed = student.lesson(batch_of([_text(kind, deep, ids, draft)])).agreed
            assert agreed[-1 if kind != "eagle3" else -2].all()
            compared += 1
        ids += [token.id for token in round_.tokens]
    assert compared > 5


def _student(kind: str, target, draft_ids: torch.Tensor) -> Eagle3Student | BlockStudent:
    torch.manual_seed(0)
    inputs = layers_read(target.model.config)
    if kind == "eagle3":
        return Eagle3Student(new_head(target, draft_ids, inputs), STEPS[kind])
    return BlockStudent(BlockDrafter(kind, target, draft_ids, inputs, mask_id=1))


def _text(kind: str, target, ids: list[int], draft: list[int]) -> Answer:
    """The text and a draft after it, which the target is said to choose."""
    layers = [i - 1 for i in layers_read(target.model.config)]
    seen: dict[int, torch.Tensor] = {}
    whole = torch.tensor([*ids, *draft])
    with torch.no_grad(), watching(watched_modules(target.model, layers), seen.__setitem__):
        chances, choices = target.model(whole[None]).logits[0].softmax(-1).topk(CHOICES)
    choices[len(ids) - 1 : -1, 0] = torch.tensor(draft)
    return Answer(whole, 1, torch.stack([seen[i][0] for i in range(len(layers))], dim=1), choices, chances)
