"""Distributions over the likeliest tokens are those of transformers' warpers over all of them; samples follow them, and
depend on the seed and the position alone."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import kstest
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from playground.decoding import sampling
from playground.decoding.sampling import Sampler, exponential, whole
from playground.lane import Request
from tests.decoding.law import agrees

CPU = torch.device("cpu")
V = 3_000
LIMITS = [
    dict(top_p=0.9),
    dict(top_p=0.3),
    dict(top_p=0.999),
    dict(top_k=5),
    dict(top_k=50, top_p=0.8),
    dict(top_k=2_999),
    dict(top_k=5_000),
    dict(top_k=40, top_p=0.5, temperature=0.6),
    dict(min_p=0.05),
    dict(min_p=1.0),
    dict(top_k=50, top_p=0.95, min_p=0.2),
]


def sampler(seed: int = 0, **settings: float) -> Sampler:
    return Sampler(Request("x", **{"temperature": 1.0, "seed": seed} | settings), CPU)


def scores(kind: str, rows: int = 6) -> torch.Tensor:
    drawn = torch.randn(rows, V, generator=torch.Generator().manual_seed(1))
    return {
        "like a model's": 4 * drawn,
        "peaked": 30 * drawn,
        "flat": 0.01 * drawn,
        "equal": torch.zeros(rows, V),
        "tied, as in bfloat16": (4 * drawn).bfloat16().float(),
        "few possible": torch.where(drawn > 2, drawn, float("-inf")),
    }[kind]


KINDS = ["like a model's", "peaked", "flat", "equal", "tied, as in bfloat16", "few possible"]


@pytest.mark.parametrize("candidates", [4, 64, 1024])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_complete_rows_are_those_of_transformers(kind, limits, candidates, monkeypatch):
    monkeypatch.setattr(sampling, "CANDIDATES", candidates)
    rows, of = scores(kind), sampler(**limits)
    quick, wanted = of.distributions(rows), of.probabilities(rows)
    complete = torch.ones(len(rows), dtype=torch.bool) if quick.complete is None else quick.complete
    apart = quick.spread(V)[complete] - wanted[complete]
    if "tied" in kind or kind == "equal":  # which of equal scores transformers keeps is open
        apart = quick.spread(V)[complete].sort().values - wanted[complete].sort().values
    assert (apart.abs().sum(-1) < 5e-5).all()  # sums in another order round otherwise where top-p falls
    fitting = (wanted > 0).sum(-1) < quick.p.shape[1] // 2  # room for what equals the last that is kept
    assert complete[fitting & (kind != "equal")].all()


def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest():
    row = torch.tensor([[0.4, 0.3, 0.2, 0.06, 0.04]]).log()
    for min_p, kept in ((0.09, 5), (0.14, 4), (0.16, 3), (0.7, 2), (0.8, 1), (1, 1)):
        of = sampler(min_p=min_p)
        p = row[0, :kept].softmax(dim=-1)
        for found in (of.distributions(row).spread(5)[0], of.probabilities(row)[0]):
            torch.testing.assert_close(found[:kept], p)
            assert found[kept:].sum() == 0


def test_limits_fall_in_the_order_of_generate():
    settings = dict(temperature=0.8, top_k=40, top_p=0.9, min_p=0.15, repetition_penalty=1.2)
    config = GenerationConfig(do_sample=True, **settings)
    config._eos_token_tensor = None
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=V, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    )
    theirs = model._get_logits_processor(config, input_ids_seq_length=3)
    rows, text = scores("like a model's"), [1, 5, 9]
    wanted = theirs(torch.tensor([text]).expand(len(rows), -1), rows.clone()).softmax(dim=-1)
    of = sampler(**settings)
    torch.testing.assert_close(of.probabilities(of.scores(rows, lambda row: text)), wanted)


def test_rows_that_need_more_candidates_are_not_complete():
    quick = sampler(top_p=0.9).distributions(scores("flat"))
    assert not quick.complete.any()
    torch.testing.assert_close(quick.p.sum(-1), torch.ones(6))


@pytest.mark.parametrize("limits", LIMITS)
def test_a_row_of_which_a_grammar_allows_few_tokens_is_complete_and_gives_no_other(limits):
    drawn = scores("flat")
    masked = drawn.masked_fill(torch.arange(V) % 700 != 3, float("-inf"))
    of, whole_p = sampler(**limits).distributions(masked), sampler(**limits).probabilities(masked)
    assert of.complete is None or of.complete.all()
    assert torch.allclose(of.spread(V), whole_p, atol=1e-6) and not of.spread(V)[masked.isinf()].any()


def test_of_equal_scores_the_highest_ids_are_kept():
    tied = torch.tensor([[1.0, 2.0, 1.0, 1.0, 1.0, -9.0]])
    assert (sampler(top_p=0.5).distributions(tied).spread(6) > 0).tolist() == [[False, True, False, False, True, False]]


def test_rows_that_are_not_complete_are_made_again():
    rows = torch.cat([scores("like a model's", 2), scores("flat", 2)])
    of = sampler(top_p=0.9)
    quick = of.distributions(rows)
    assert quick.complete.tolist() == [True, True, False, False]
    torch.testing.assert_close(of.completed(quick, rows), of.probabilities(rows), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("limits", [{}, dict(top_p=0.9), dict(top_k=3), dict(min_p=0.3)], ids=str)
@pytest.mark.parametrize("candidates", [1, 1024])
def test_choices_follow_the_distribution(limits, candidates, monkeypatch):
    monkeypatch.setattr(sampling, "CANDIDATES", candidates)
    row = torch.tensor([[0.3, 1.5, -0.4, 0.9, 0.0, -3.0]])
    counts = [0] * 6
    of = sampler(seed=3, **limits)
    choice = of.choices(row.expand(4_000, -1), range(4_000))
    for position in range(4_000):
        counts[choice(position)] += 1
    assert agrees(counts, of.probabilities(row)[0])


@pytest.mark.parametrize("limits", [{}, dict(top_p=0.9), dict(top_p=0.999), dict(top_k=3), dict(min_p=0.01)], ids=str)
def test_a_position_has_one_outcome_whatever_is_asked_beside_it(limits):
    rows = scores("like a model's", 8)
    choice = sampler(seed=5, **limits).choices(rows, range(10, 18))
    for row in range(8):
        asked_before = sampler(seed=5, **limits)
        asked_before.draw(torch.ones(V))
        assert asked_before.choices(rows[row : row + 1], [10 + row])(0) == choice(row)
    other = sampler(seed=6, **limits).choices(rows, range(10, 18))
    assert [other(row) for row in range(8)] != [choice(row) for row in range(8)]


def test_samples_without_a_position_are_new_ones():
    of, p = sampler(), torch.ones(V)
    assert len({of.draw(p) for _ in range(20)}) > 15
    of = sampler()
    assert of.choose(whole(p.expand(20, -1))).unique().numel() > 15


def test_not_a_number_is_refused():
    for limits in ({}, dict(top_p=0.9), dict(min_p=0.1)):
        rows = scores("like a model's")
        rows[3, 7] = float("nan")
        with pytest.raises(FloatingPointError):
            sampler(**limits).choices(rows, range(6))


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_the_noise_is_exponential_and_its_parts_are_independent(seed):
    noise = exponential(seed, torch.arange(-50, 50), torch.arange(200)[None])
    assert kstest(noise.flatten().numpy(), "expon").pvalue > 0.001
    assert noise.min() > 0
    for one, other in [
        (noise[:, 1:], noise[:, :-1]),
        (noise[1:], noise[:-1]),
        (noise, exponential(seed ^ 1, torch.arange(-50, 50), torch.arange(200)[None])),
    ]:
        correlation = torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]
        assert abs(correlation) < 4 / one.numel() ** 0.5


def test_presence_and_frequency_penalty_count_the_answer_and_the_branch_before_each_row():
    """By OpenAI's definition, after the repetition penalty, which counts the prompt too."""
    request = Request("x", repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=-0.25)
    logits, prompt = torch.tensor([[4.0, -4.0, 1.0, 1.0]]).repeat(3, 1), [0, 0, 3]
    texts = [prompt, [*prompt, 1], [*prompt, 1, 2, 1]]  # of a row, and of two that follow draft tokens
    scores = Sampler(request, CPU, prompt).scores(logits, texts.__getitem__)
    assert scores.tolist() == [[2, -4, 1, 0.5], [2, -8 - 0.25, 1, 0.5], [2, -8, 0.5 - 0.25, 0.5]]
