"""On a device that is not the CPU the recipe writes and learns from what it does on the CPU, and mixes nothing."""

from __future__ import annotations

import copy

import pytest
import torch

from playground.models.networks.heads import ParallelHeads
from playground.models.networks.mtp import MtpLayer
from playground_distil.answers import Answer, write
from playground_distil.data import batch_of
from playground_distil.students import AssistantStudent, HeadsStudent, MtpStudent
from tests.far import FAR, FarDevice, move

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [20]]
STUDENTS = {
    "mtp": lambda target: MtpStudent(MtpLayer(target, torch.arange(0, 200, 2)), 3),
    "heads": lambda target: HeadsStudent(ParallelHeads(target, torch.arange(0, 200, 2), 3)),
    "assistant": lambda target: AssistantStudent(copy.deepcopy(target)),
}


def written(model) -> list[Answer]:
    options = dict(layers=(-1,), max_new_tokens=20, stop_ids={0}, generator=torch.Generator().manual_seed(0))
    return list(write(model, PROMPTS, [0.0, 0.7, 1.0], **options))


@pytest.fixture
def far_target(target):
    model = copy.deepcopy(target.model)
    move(model)
    return model


def test_answers_are_the_same(target, far_target):
    with FarDevice():
        there = written(far_target)
    here = written(target.model)
    assert [answer.ids.tolist() for answer in there] == [answer.ids.tolist() for answer in here]
    assert all(answer.features.device.type == "cpu" for answer in there)


@pytest.mark.parametrize("kind", STUDENTS)
def test_lessons_are_the_same(kind, target):
    student = STUDENTS[kind](target.model)
    far_student = copy.deepcopy(student)
    move(far_student.module)
    vocabulary = far_student._vocabulary
    batch = batch_of(written(target.model))
    with torch.no_grad():
        here = student.lesson(batch)
        with FarDevice():
            vocabulary.slot = vocabulary.slot.to(FAR)
            there = far_student.lesson(batch.to(FAR))
    assert there.loss.tolist() == pytest.approx(here.loss.tolist())
    assert there.agreed.tolist() == here.agreed.tolist()
