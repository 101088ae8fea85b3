"""LongRoPE: a model whose rotary factors are others once the text is longer than what it was first trained on."""

from __future__ import annotations

import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM

from playground.decoding.drafters.base import NOTHING, Draft, NoDrafter
from playground.decoding.drafters.lookup import NgramDrafter
from playground.decoding.runners.eager import seam
from tests.decoding.fakes import ScriptedDrafter
from tests.decoding.real import ENDS, SIZES, V, generated, ids_of, rounds_of

SEAM = 24


def phi3(**others: object) -> Phi3ForCausalLM:
    torch.manual_seed(0)
    factors = dict(short_factor=[1.0] * 4, long_factor=[1.0, 2.0, 8.0, 30.0])
    rope = dict(rope_type="longrope", rope_theta=1e4, **factors)
    sizes = SIZES | ENDS | dict(num_hidden_layers=2, initializer_range=0.4, max_position_embeddings=96) | others
    return Phi3ForCausalLM(Phi3Config(**sizes, original_max_position_embeddings=SEAM, rope_parameters=rope)).eval()


@pytest.fixture(scope="module")
def model():
    return phi3()


class Bushy(ScriptedDrafter):
    """Drafts a tree of many more tokens than are right: it is not as deep as it is large."""

    def propose(self, ids, k, stop_below, sampler):
        branch = self.script(ids, k)
        if not branch:
            return NOTHING
        wrong = [id_ for id_ in range(1, V - 1) if id_ != branch[0]][: 3 * SEAM]
        tree = [-1] * (len(wrong) + 1) + list(range(len(wrong), len(wrong) + len(branch) - 1))
        return Draft([*wrong, *branch], [0.1] * len(tree), tree=tree)


@pytest.mark.parametrize("start", [SEAM - 12, SEAM - 4, SEAM - 1, SEAM, SEAM + 1, SEAM + 9])
def test_a_text_that_crosses_the_seam_is_that_of_generate(model, start):
    prompt = torch.randint(1, V - 1, (start,), generator=torch.Generator().manual_seed(start)).tolist()
    wanted = generated(model, prompt)

    def right(ids, k):
        return wanted[len(ids) - start :][:k]

    def half_right(ids, k):
        return [id_ if (len(ids) + i) % 3 else 1 for i, id_ in enumerate(right(ids, k))]

    drafters = NoDrafter(), NgramDrafter(), ScriptedDrafter(right), ScriptedDrafter(half_right), Bushy(half_right)
    for drafter in drafters:
        rounds = rounds_of(model, lambda target, drafter=drafter: drafter, prompt)
        assert ids_of(rounds) == wanted
    assert seam(model.config) == SEAM
