"""The check of losslessness passes for exact lanes and fails for each lossy rule, on tiny models of transformers' own
classes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from playground import metrics, results
from playground.backends.local import LocalBackend
from playground.decoding import scoring, verify
from playground.decoding.sampling import Sampler
from playground.errors import PlaygroundError
from playground.experiments.events import Watch
from playground.experiments.kinds.lossless import Lossless
from playground.experiments.questions import Question
from playground.lane import LOCAL, LOSSY_RULES, Lane, Request, assisted_lane, fits, label, lossy, standard_lane
from playground.metrics import NearTie, Placed, law_test
from playground.models.load import LoadedModel
from playground.models.networks.trained import TrainedConfig, build, save_trained
from playground.models.store import ModelStore
from playground.presets import custom_pair
from playground.results import STANDARD
from playground.trace import DraftToken
from playground.views import lossless as view
from tests.decoding.fakes import FakeModel
from tests.decoding.test_law import exact, outcome, redrawn
from tests.tiny import small_llama

ASKED = [Question("qa", Request(f"The waves count {what}", max_new_tokens=32)) for what in ("winters", "a few tokens")]


@pytest.fixture
def pair(tiny_folder, tmp_path, tiny_tokenizer):
    """A sharp target, and another model that drafts for it and is often wrong."""
    target, drafter = (small_llama(tiny_tokenizer, initializer_range=spread) for spread in (0.3, 0.25))
    for name, model in (("target", target), ("drafter", drafter)):
        model.save_pretrained(tmp_path / name)
        tiny_tokenizer.save_pretrained(tmp_path / name)
    return custom_pair(str(tmp_path / "target"), str(tmp_path / "drafter"), "assistant")


def run(pair, lanes, draws=320, asked=ASKED):
    backends = {LOCAL: LocalBackend(ModelStore(), pair, "float32", "cpu")}
    work = Lossless(pair=pair, lanes=tuple(lanes), questions=tuple(asked), draws=draws)
    return work.run(standard_lane(pair), backends, Watch())


@pytest.mark.slow
def test_exact_lanes_pass_and_each_lossy_rule_fails_by_name(pair):
    exact = [assisted_lane(pair, name, 3) for name in ("assistant", "ngram")]
    wrong = [lossy(exact[0], rule) for rule in ("wrong-q", "top-2", "typical")]
    result = run(pair, [*exact, *wrong])
    passed = {check.lane: check.passed for check in result.checks}
    assert passed == {STANDARD: True} | {label(lane): lane in exact for lane in [*exact, *wrong]}
    assert result.failed
    of = {check.lane: check for check in result.checks}
    assert of[label(wrong[0])].identical == 2, "greedy decoding uses no q"
    assert all(check.identical == check.outputs == 2 for check in result.checks[:3])
    assert result.checks[0].sampled > result.checks[1].law.draws > 50
    said = "\n".join(view.findings(result))
    assert said.count("NOT lossless") == 3 and "a real fault" in said
    assert view.table(result).markdown().count("FAIL, lossy rule") == 3
    assert view.headline(result).startswith("No difference found: 2 drafters, 2 prompts, ")
    assert view.headline(result).endswith("sampled tokens. Of 3 lanes wrong on purpose, 3 were caught.")
    assert results.from_json(json.loads(json.dumps(results.to_json(result)))) == result


@pytest.fixture
def layer(pair, tmp_path, tiny_tokenizer):
    """The target with a layer that drafts, chains and trees."""
    target = LoadedModel(small_llama(tiny_tokenizer, initializer_range=0.3), tiny_tokenizer, "target", "made here")
    sizes = target.model.config.hidden_size, target.model.config.vocab_size
    config = TrainedConfig("mtp", pair.target, *sizes, draft_vocabulary=sizes[1], steps=2)
    torch.manual_seed(0)
    network = build(config, target, torch.arange(sizes[1]))
    network.start_from(target.model)
    save_trained(network, config, tmp_path / "layer", "A card.")
    return custom_pair(pair.target, str(tmp_path / "layer"), "mtp")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "rules", "wrong"),
    [("assistant", ["block"], "block-residual"), ("tree", ["traversal", "recursive"], "traversal-alpha")],
)
def test_exact_rules_pass_and_what_was_shipped_of_them_elsewhere_fails(pair, layer, drafter, rules, wrong):
    pair = layer if drafter == "tree" else pair
    exact = [assisted_lane(pair, drafter, 5, verification=rule, policy="constant") for rule in rules]
    result = run(pair, [*exact, lossy(exact[0], wrong)], draws=2_000)
    assert [check.passed for check in result.checks] == [True, *[True] * len(exact), False]


def test_a_rule_is_made_wrong_only_where_it_applies(pair, layer):
    chain, tree, lookup = (
        assisted_lane(each, name, 3) for each, name in ((pair, "assistant"), (layer, "tree"), (pair, "ngram"))
    )
    of = {rule: [fits(lane, rule) for lane in (chain, tree, lookup)] for rule in LOSSY_RULES}
    assert of["block-residual"] == [True, False, False]
    assert of["traversal-alpha"] == [False, True, False]
    assert all(of[rule] == [True] * 3 for rule in ("wrong-q", "top-2", "typical"))
    assert lossy(tree, "traversal-alpha").verification == "traversal"


def test_a_lossy_lane_says_so_in_its_name(pair):
    lane = lossy(assisted_lane(pair, "ngram"), "typical")
    assert "lossy: typical" in lane.name and "lossy: typical" in label(lane)
    with pytest.raises(PlaygroundError, match="named lossy"):
        Lane("Assisted", "t", rule="typical")


def test_a_difference_within_rounding_is_a_tie_and_any_other_a_fault():
    assert NearTie(chosen=20.0, other=20.0, rank=2, rounding=0.01).tie
    assert NearTie(chosen=20.0, other=19.95, rank=2, rounding=0.01).tie
    assert not NearTie(chosen=20.0, other=19.9, rank=2, rounding=0.01).tie


@pytest.mark.usefixtures("torch_computes")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_margin_is_measured_in_what_rounding_does(pair, dtype):
    backend, lane = LocalBackend(ModelStore(), pair, dtype, "cpu"), standard_lane(pair)
    backend.load(lane, lambda step: None)
    started = backend.run(lane, ASKED[0].request)
    answer = [token.id for round_ in started.rounds for token in round_.tokens][:5]
    other = (answer[-1] + 1) % 200
    tie = backend.near_tie(lane, ASKED[0].request, started.prompt_ids, answer, other)
    assert not tie.tie and tie.rank >= 2 and tie.chosen > tie.other
    assert (1e-8 < tie.rounding < 1e-4) if dtype == "float32" else (1e-3 < tie.rounding < 1)


def test_what_was_drafted_is_judged_up_to_the_first_rejection(pair):
    backend, lane = LocalBackend(ModelStore(), pair, "float32", "cpu"), assisted_lane(pair, "assistant", 3)
    backend.load(lane, lambda step: None)
    rounds = list(backend.run(lane, replace(ASKED[0].request, temperature=1.0)).rounds)
    places = metrics.judged(rounds)
    assert len(places) == sum(len(round_.tokens) for round_ in rounds)
    assert sum(map(len, places)) == sum(token.decision != "unverified" for r in rounds for token in r.drafted)


def hotter_bonus(draft, p, noise, complete):
    """The exact rule, but for the token after a draft that was accepted as a whole."""
    accepted = int(exact(draft, p, noise, complete)[0])
    return outcome(draft, p.sqrt(), noise, accepted) if accepted == len(draft.ids) else exact(draft, p, noise, complete)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [exact, hotter_bonus, redrawn])
def test_bonus_tokens_are_tested_alone_and_a_rejected_token_cannot_come_again(pair, rule, monkeypatch):
    monkeypatch.setitem(verify.RULES, "token", rule)
    lookup, chain = run(pair, [assisted_lane(pair, name, 2) for name in ("ngram", "assistant")], draws=2_000).checks[1:]
    assert lookup.passed and lookup.corrected.draws > 100 and chain.corrected is None
    assert chain.passed == (rule is exact)
    assert chain.bonus.draws > 100 and chain.bonus.passed == (rule is not hotter_bonus)
    assert (chain.law.excluded > 0) == (rule is redrawn) == (not chain.law.passed)


def test_what_p_leaves_to_tokens_that_were_not_drafted():
    law = torch.tensor([0.4, 0.3, 0.2, 0.1])
    target = FakeModel(lambda ids: law.log(), 4)
    sampler = Sampler(Request("x", temperature=1.0), torch.device("cpu"))
    drafted, corrected, plain = scoring.placed(target, sampler, [0, 1], [0, 1, 2], [[0, 3], [0], []])
    assert drafted.left is plain.left is None
    assert (corrected.rank, corrected.left.rank) == (1, 0)
    assert corrected.left.chances == pytest.approx((0.5, 1 / 3, 1 / 6, 0, 0), abs=1e-6)


@pytest.mark.parametrize("sampled", [True, False])
def test_draft_tokens_that_are_accepted_too_often_are_found(sampled):
    rng = np.random.default_rng(0)
    for extra, passes in ((1.0, True), (1.5, False)):
        places, tokens = [], []
        for p, q in rng.uniform(0.1, 0.6, (600, 2)):
            accepted = rng.random() < extra * (min(1, p / q) if sampled else p)
            decision = "accepted" if accepted else "rejected"
            places.append([DraftToken(1, "", False, float(q), None, None, decision)])
            tokens.append(Placed(0, (1.0,), (p,)))
        places, tokens = [*places, []], [*tokens, Placed(0, (1.0,))]  # nothing was drafted here
        test = metrics.acceptance_test(places, tokens, sampled)
        assert (test.passed, test.places) == (passes, 600)
        assert (test.accepted - test.due > test.smallest_bias) == (not passes)
    assert metrics.acceptance_test([[]], tokens[:1], sampled) is None


def drawn(n, bias, seed=0):
    """Tokens of random distributions; `bias` of the probability of the likeliest token goes to the others."""
    rng = np.random.default_rng(seed)
    tokens = []
    for _ in range(n):
        p = np.sort(rng.dirichlet(np.full(40, 0.2)))[::-1]
        law = p.copy()
        taken = min(bias, p[0])
        law[0] -= taken
        law[1:] += taken / 39
        tokens.append(Placed.of(p[:16].tolist(), int(min(rng.choice(40, p=law), 16))))
    return tokens


def test_tokens_of_the_law_pass_as_often_as_they_should():
    p_values = [law_test(drawn(200, 0.0, seed)).p_value for seed in range(60)]
    assert 0.3 < np.median(p_values) < 0.7
    assert sum(p < 0.05 for p in p_values) < 9


def test_a_bias_of_the_named_size_is_found_four_times_in_five():
    found = [law_test(drawn(400, law_test(drawn(400, 0.0)).smallest_bias, seed)) for seed in range(30)]
    assert sum(not test.passed for test in found) >= 20
    assert np.mean([test.bias for test in found]) == pytest.approx(found[0].smallest_bias, rel=0.3)


def test_too_few_tokens_are_no_test():
    assert law_test([]) is None
    assert law_test(drawn(5, 0.0)) is None


def test_without_a_prompt_that_could_be_run_nothing_is_called_lossless(pair):
    long = Question("qa", Request("a" * 300, chat_template=False))
    with pytest.raises(PlaygroundError, match="No prompt"):
        run(pair, [assisted_lane(pair, "ngram", 3)], asked=[long])
