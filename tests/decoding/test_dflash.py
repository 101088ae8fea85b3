"""DFlash's drafter on transformers' real classes in float32, against plain greedy decoding and transformers'."""

from __future__ import annotations

from functools import cache, wraps
from itertools import product

import pytest
import torch

from playground.models.networks.dflash import DFlash
from tests.decoding.real import FAMILIES, generated, ids_of, leaves_no_state, over, prompts, rounds_of
from tests.published import BLOCK, dflash_base
from tests.selection import selected

TARGETS = {family: cache(lambda build=build: build(0, 3)) for family, build in FAMILIES.items()}
WINDOWS = dict(layer_types=["sliding_attention", "full_attention"], sliding_window=7)


@cache
def plain(family: str) -> list[list[int]]:
    return [generated(TARGETS[family](), prompt) for prompt in prompts(4)]


@pytest.mark.parametrize(
    ("family", "way"),
    selected(product(TARGETS, ("chain", "tree")), [("llama", "tree"), ("gemma", "chain"), ("deepseek", "tree")]),
)
def test_greedy_equals_generate(family, way):
    model = TARGETS[family]()
    network = DFlash(dflash_base(model), model, frozenset())
    decisions = []
    for prompt, expected in zip(prompts(4), plain(family), strict=True):
        rounds = rounds_of(model, over(network, way), prompt)
        assert ids_of(rounds) == expected
        decisions += [token.decision for round_ in rounds for token in round_.drafted]
    assert {"accepted", "rejected"} <= set(decisions)


@pytest.mark.parametrize("read", [(0, 1), (2, 0)], ids=["inner layers", "the last"])
def test_the_tokens_and_the_passes_are_those_of_transformers_own_way(monkeypatch, read):
    model = TARGETS["llama"]()
    base = dflash_base(model, read=read)
    network = DFlash(base, model, frozenset())
    passes = []
    forward = type(model).forward

    @wraps(forward)  # generate() looks at its arguments
    def counted(self, *args, **kwargs):
        passes.append(self)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", counted)
    ours = theirs = 0
    for prompt in prompts(5):
        rounds = rounds_of(model, over(network), prompt)
        ours += len(rounds)
        passes.clear()
        assert ids_of(rounds) == generated(model, prompt, assistant_model=base, speculation_type="dflash")
        theirs += len(passes)
    assert ours <= theirs


def test_a_block_is_drafted_in_one_pass_and_no_more_than_it_holds():
    model = TARGETS["llama"]()
    network = DFlash(dflash_base(model), model, frozenset())
    first, second, *_ = rounds_of(model, over(network), [3, 1, 4], lookahead=9)
    assert not first.drafted  # before the target's first pass there is nothing to draft from
    assert len(second.drafted) == BLOCK - 1


@pytest.mark.parametrize("causal", [frozenset(), frozenset(["sliding_attention"])], ids=["both ways", "causal"])
def test_what_was_drafted_before_leaves_no_state(causal):
    """Behind any number of rounds, some accepted and some not, the draft is that of a drafter which sees the text for
    the first time; also beyond a window, and after a round that it was not asked in."""
    model = TARGETS["llama"]()
    text = [3, 1, 4, *generated(model, [3, 1, 4])]
    network = DFlash(dflash_base(model, **WINDOWS), model, causal)
    leaves_no_state(model, over(network), text, [(3, 5), (3, 6), (3, 10), (0, 13), (3, 14), (3, 18)])


def test_a_window_hides_what_is_far_back_and_a_causal_layer_what_comes():
    model = TARGETS["llama"]()
    base = dflash_base(model, layers=1, layer_types=["sliding_attention"], sliding_window=4)
    hidden = torch.randn(9, 2 * 32)
    for causal in (frozenset(), frozenset(["sliding_attention"])):
        network = DFlash(base, model, causal)
        seen = network.sees("sliding_attention", torch.arange(9, 14), torch.arange(14))[0, 0]
        # Of a block at positions 9 to 13, with the window of 4.
        assert seen[0].nonzero().flatten().tolist() == [6, 7, 8, 9, *([] if causal else [10, 11, 12, 13])]
        assert seen[3].nonzero().flatten().tolist() == [9, 10, 11, 12, *([] if causal else [13])]
        with torch.inference_mode():
            changed = hidden.clone()
            changed[:7] = 0  # the first token to draft is at position 10 and sees the text from position 7 on
            one, other = (network(3, states, network.new_cache()) for states in (hidden, changed))
        torch.testing.assert_close(one[0], other[0])
