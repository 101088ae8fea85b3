"""A round's launches and waits for the device, counted on models of tiny size."""

from __future__ import annotations

from functools import partial
from itertools import product
from statistics import mean

import pytest
from transformers import GenerationConfig

from benchmarks.launches import Counter, of_rounds
from playground.decoding.contract import Contract
from playground.decoding.drafters.base import NoDrafter
from playground.decoding.drafters.lookup import NgramDrafter, SuffixDrafter
from playground.decoding.lookahead import Lookahead
from playground.decoding.loop import decode
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_model import StaticModel
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.decoding.verify import decide
from playground.lane import Request
from playground.models.networks.mtp import MtpLayer
from tests.decoding import test_device
from tests.decoding.fakes import NumberTokenizer
from tests.decoding.real import SIZES, V, llama
from tests.decoding.test_device import drafter, models
from tests.selection import selected

PROMPT = [5, 6, 7, 8, 5, 6, 7, 9, 3]
DEEP = 5
LOOKUPS = {"none": NoDrafter, "ngram": NgramDrafter, "suffix": SuffixDrafter}
BRANCHING = ("mtp", "heads", "medusa", "dflash", "eagle3", "gemma4")
CHAINS = (*LOOKUPS, "assistant", "early-exit", *BRANCHING)
STATIC = (*LOOKUPS, "assistant", "early-exit", "mtp", "dflash", "eagle3")
SAMPLINGS: tuple[dict[str, float], ...] = (dict(temperature=0.8, top_p=0.9, min_p=0.05), {}, dict(temperature=0.8))


def drafting(kind: str, folder, way: str = "chain", layers: int = 2):
    """A target, and what makes a drafter for its runner."""
    if kind in LOOKUPS:
        return llama(0, layers), lambda runner: LOOKUPS[kind]()
    target, network = models(kind, folder, None)
    if kind == "mtp":  # of a target that a static runner takes
        target = llama(0, layers)
        network = MtpLayer(target, network.draft_ids).eval()
    return target, drafter(kind, way, network)


@pytest.mark.parametrize(
    ("kind", "sampling"),
    selected(product(CHAINS, SAMPLINGS), [(kind, SAMPLINGS[i % 3]) for i, kind in enumerate(CHAINS)]),
    ids=str,
)
def test_a_chain_waits_for_the_device_three_times_a_round(kind, sampling, tmp_path):
    target, new_drafter = drafting(kind, tmp_path)
    rounds = counted(target, new_drafter, **sampling)
    assert 1 <= max(each.waits for each in rounds) <= (2 if kind in LOOKUPS else 3)


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=str)
@pytest.mark.parametrize("kind", ["ngram", "assistant", "mtp"])
def test_the_target_s_rules_add_no_wait_unless_they_read_the_text(kind, sampling, tmp_path):
    target, new_drafter = drafting(kind, tmp_path)
    asks = dict(suppress_tokens=[3], bad_words_ids=[[4], [5]], begin_suppress_tokens=[6, 7], min_new_tokens=8)
    contract = Contract(GenerationConfig(**asks), [V - 1], V)
    rounds = counted(target, new_drafter, contract=contract, **sampling)
    assert 1 <= max(each.waits for each in rounds) <= (2 if kind in LOOKUPS else 3)


@pytest.mark.parametrize(
    ("kind", "sampling"),
    # The others' waits are counted with their launches, below.
    selected(product(STATIC, SAMPLINGS[:2]), [("ngram", SAMPLINGS[0]), ("suffix", SAMPLINGS[1])]),
    ids=str,
)
def test_a_compiled_chain_does_too(kind, sampling, tmp_path):
    target, new_drafter = drafting(kind, tmp_path)
    rounds = counted(target, new_drafter, graphs=True, **sampling)
    assert 1 <= max(each.waits for each in rounds) <= (2 if kind in LOOKUPS else 3)


@pytest.mark.parametrize("kind", BRANCHING)
def test_a_tree_waits_for_each_of_its_levels_too_unless_it_has_them_at_once(kind, tmp_path):
    target, new_drafter = drafting(kind, tmp_path, "tree")
    waits = max(each.waits for each in counted(target, new_drafter))
    assert waits == 3 if kind in ("heads", "medusa", "dflash") else 3 < waits <= 2 + DEEP


@pytest.mark.parametrize(
    ("kind", "way"),
    selected(product(("mtp", "eagle3", "dflash"), ("chain", "tree")), [("mtp", "chain"), ("eagle3", "tree")]),
)
def test_a_layer_beside_a_static_target_drafts_through_graphs(kind, way, tmp_path):
    target, new_drafter = drafting(kind, tmp_path, way, 7)
    eager, compiled = (counted(target, new_drafter, graphs=graphs) for graphs in (False, True))
    assert launches(compiled) < launches(eager) / 4  # of a target with 7 layers; deeper ones save more


def counted(target, new_drafter, graphs=False, tokens=10, contract=None, rule=decide, **sampling):
    counter = Counter()
    make, sampled = EagerRunner, None
    if graphs:
        sampled = Graphs("counted", counter.capture)
        make = lambda model: StaticRunner(StaticModel(model, Graphs("counted", counter.capture)), 64)  # noqa: E731
    runner, sampler = make(target), Sampler(Request("x", **sampling), target.device, PROMPT, contract, sampled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.decoding.test_device.EagerRunner", make)  # of an assistant
        made = new_drafter(runner)
    detokenizer = Detokenizer(NumberTokenizer(), PROMPT)
    return of_rounds(counter, decode(runner, made, Lookahead(DEEP), sampler, detokenizer, PROMPT, tokens, (), rule))


def launches(rounds) -> float:
    return mean(each.launches for each in rounds)


def test_a_graph_launches_a_pass_at_once():
    target = llama(0, 7)
    nothing = lambda runner: NoDrafter()  # noqa: E731
    eager, compiled = (counted(target, nothing, graphs=graphs) for graphs in (False, True))
    assert launches(eager) > 7 * 30
    assert launches(compiled) < launches(eager) / 10


LARGE = 151_936  # Qwen3's vocabulary; the draft vocabulary has 32,000 of it
AT_ONCE = ("mtp tree",)  # those that are counted with it every time; of it some token joins in nearly every round
# Their work is that of others.
SELDOM = (
    *("mtp sampled tree", "heads", "medusa", "medusa tree", "dflash tree", "dspark tree", "dflash2", "dflash2 tree"),
    *("gemma4 tree", "gemma4 sampled tree", "early-exit"),
)
# Launches of a round of drafts five deep, at most, greedy and sampled: of any size of model. Of P-EAGLE they are 102.
PINNED = {
    "none": (7, 8),
    "eagle3": (20, 25),
    "eagle3 tree": (28, 29),
    "eagle3 sampled tree": (28, 35),
    "mtp": (21, 26),
    "mtp tree": (29, 30),
    "mtp sampled tree": (29, 36),
    "heads": (20, 26),
    "heads tree": (27, 28),
    "medusa": (17, 23),
    "medusa tree": (24, 25),
    "dflash": (20, 26),
    "dflash tree": (26, 27),
    "dflash sampled tree": (26, 38),
    "dspark": (23, 28),
    "dspark tree": (29, 30),
    "dflash2": (21, 26),
    "dflash2 tree": (29, 30),
    "gemma4": (17, 22),
    "gemma4 tree": (29, 30),
    "gemma4 sampled tree": (29, 32),
    "assistant": (17, 22),
    "early-exit": (17, 22),
}


@pytest.mark.parametrize(
    "limits",
    [pytest.param({}, marks=pytest.mark.slow), dict(top_p=0.9, top_k=20)],
    ids=["no limits", "top-p and top-k"],
)
@pytest.mark.parametrize(
    ("way", "vocab_size"),
    selected(
        product(PINNED, (V, LARGE)),
        [*((way, V) for way in PINNED if way not in AT_ONCE + SELDOM), *((way, LARGE) for way in AT_ONCE)],
    ),
)
def test_a_captured_round_launches_few_kernels(way, limits, vocab_size, tmp_path, monkeypatch):
    """Once its work has been captured, which rounds of other sizes and outcomes must be anew."""
    monkeypatch.setitem(SIZES, "vocab_size", vocab_size)
    monkeypatch.setattr(test_device, "V", vocab_size)
    monkeypatch.setattr(test_device, "EVEN", [*range(0, min(vocab_size, 64_000), 2)])
    kind, _, shape = way.partition(" ")
    target, new_drafter = drafting(kind, tmp_path, shape or "chain")
    rule = partial(decide, verification="traversal")
    for most, sampling in zip(PINNED[way], ({}, dict(temperature=0.8, **limits)), strict=True):
        rounds = counted(target, new_drafter, graphs=True, tokens=30, rule=rule, **sampling)
        assert sorted(each.launches for each in rounds)[len(rounds) // 5] <= most
        assert max(each.waits for each in rounds) <= (2 if way == "none" else 3)
