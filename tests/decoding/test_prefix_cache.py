"""A conversation's next turn, on the caches of the turns before: the same drafts and tokens as from a fresh prefill."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pkgutil import resolve_name

import pytest
import torch

from playground.backends.local import LocalBackend
from playground.conversation import Message
from playground.decoding.drafters.assistant import AssistantDrafter, EarlyExitDrafter
from playground.decoding.drafters.base import NoDrafter
from playground.decoding.drafters.branches import ChainDrafter
from playground.decoding.drafters.composite import AdaptiveDrafter, CompositeDrafter
from playground.decoding.drafters.lookup import NgramDrafter, SuffixDrafter
from playground.decoding.drafters.parallel import PardBranches
from playground.decoding.lookahead import Lookahead
from playground.decoding.loop import decode
from playground.decoding.prefix_cache import CachedPrefix, shared
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_cache import StaticCache
from playground.decoding.runners.static_model import StaticModel
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.decoding.verify import decide
from playground.drafting_methods import METHODS
from playground.experiments.events import Watch
from playground.experiments.race import decode as run_lane
from playground.lane import Request, assisted_lane, standard_lane
from playground.models.load import LoadedModel
from playground.models.networks.dflash import DFlash
from playground.models.networks.early_exit import first_layers
from playground.models.networks.heads import ParallelHeads
from playground.models.networks.mtp import MtpLayer
from playground.models.store import ModelStore
from playground.presets import custom_pair
from tests.decoding.fakes import NumberTokenizer
from tests.decoding.graphs import Recorder
from tests.decoding.real import V, gemma, generated, ids_of, llama, over, prompts
from tests.models.networks.blocks import write_block
from tests.models.networks.test_eagle3 import LAYOUTS, write_head
from tests.models.networks.test_peagle import write as write_peagle
from tests.published import dflash_base, medusa_folder, medusa_heads
from tests.selection import selected

MODEL, SMALLER, DEEP = llama(0, 3), llama(1, 1), llama(0, 8)


def network(way: str):
    torch.manual_seed(7)
    if way == "heads":
        return ParallelHeads(MODEL, torch.arange(0, V, 2), 4).eval()
    if way == "dflash":
        return DFlash(dflash_base(MODEL), MODEL, frozenset())
    layer = MtpLayer(MODEL, torch.arange(0, V, 2)).eval()
    layer.start_from(MODEL)
    return layer


def drafting(way: str, new=EagerRunner):
    """`new`: makes the runner of an assistant."""
    if way == "assistant":
        return lambda target: AssistantDrafter(new(SMALLER), V, {V - 1})
    if way == "early exit":
        layers = first_layers(LoadedModel(MODEL, NumberTokenizer(), "tiny", "made here"), 2).model
        return lambda target: EarlyExitDrafter(layers, target, {V - 1})
    if way in ("composite", "adaptive"):
        tree = over(network("mtp"), "tree")
        several = {"composite": CompositeDrafter, "adaptive": AdaptiveDrafter}[way]
        return lambda target: several(NgramDrafter(3, 2), tree(target))
    lookups = {"none": NoDrafter, "ngram": NgramDrafter, "suffix": SuffixDrafter}
    if way in lookups:
        return lambda target: lookups[way]()
    return over(network(way.split()[0]), way.partition(" ")[2] or "chain")


def rounds_on(target, drafter, prompt, temperature=0.0):
    sampler = Sampler(Request("x", temperature=temperature, seed=3), target.device, prompt)
    rule, detokenizer = partial(decide, verification="traversal"), Detokenizer(NumberTokenizer(), prompt)
    return list(decode(target, drafter, Lookahead(4), sampler, detokenizer, prompt, 16, {V - 1}, rule))


def drafts(rounds):
    return [[token.id for token in round_.drafted] for round_ in rounds]


@pytest.mark.parametrize(
    "way",
    selected(
        [
            *("none", "ngram", "suffix", "assistant", "early exit", "mtp", "mtp tree", "mtp sampled tree"),
            *("heads", "heads tree", "heads sampled tree", "dflash", "composite"),
        ],
        ["suffix", "assistant", "early exit", "mtp sampled tree", "heads", "dflash", "composite"],
    ),
)
def test_the_next_turn_is_drafted_and_decoded_as_from_the_start(way):
    goes_on(MODEL, drafting(way), drafts_at_all=way != "none")


@pytest.mark.parametrize(
    "kind",
    selected(
        ["eagle3", "peagle", "dspark", "dflash2", "domino", "jetspec", "medusa"],
        ["eagle3", "peagle", "dspark", "jetspec", "medusa"],  # the others' blocks are walked as dspark's
    ),
)
@pytest.mark.parametrize("way", ["chain", pytest.param("tree", marks=pytest.mark.slow)])
def test_published_drafters_go_on_too(tmp_path, kind, way):
    model = DEEP if "eagle" in kind else MODEL
    write = {
        "eagle3": lambda folder: write_head(folder, model, range(V), **LAYOUTS["safeai"]),
        "peagle": lambda folder: write_peagle(folder, model),
        "dspark": lambda folder: write_block(folder, model, kind="dspark", markov="gated", confidence="markov"),
        "dflash2": lambda folder: write_block(folder, model, kind="dflash2"),
        "domino": lambda folder: write_block(folder, model, layout="z-lab", kind="domino"),
        "jetspec": lambda folder: write_block(folder, model, layout="z-lab", kind="jetspec"),
        "medusa": lambda folder: medusa_folder(folder, medusa_heads(model)),
    }[kind]
    load = resolve_name(METHODS[kind].loader)
    target = LoadedModel(model, NumberTokenizer(), "tiny", "made here")
    goes_on(model, over(load(write(tmp_path / kind), target, lambda step: None).network, way))


def test_a_pard_model_goes_on_too():
    def pard(target):
        branches = PardBranches(EagerRunner(SMALLER), V - 2, V)
        return ChainDrafter(branches, V, {V - 1})

    goes_on(MODEL, pard)


STATIC = ("none", "assistant", "early exit", "mtp", "mtp tree", "mtp sampled tree", "dflash", "composite")


WEEKLY = ("none", "early exit", "mtp tree", "mtp sampled tree", "composite")


@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.slow) if way in WEEKLY else way for way in STATIC])
def test_compiled_lanes_go_on_though_all_lanes_share_one_cache(way):
    new, _ = static_runners(None)
    goes_on(MODEL, drafting(way, new), way != "none", new)


@pytest.mark.parametrize(
    "way",
    ["dflash", *(pytest.param(way, marks=pytest.mark.slow) for way in ("assistant", "early exit", "mtp tree"))],
)
def test_captured_passes_go_on_over_a_cache_that_grew_between_the_turns(way):
    new, statics = static_runners(Recorder())

    def grown():
        for static in statics.values():
            static.room += 250

    goes_on(MODEL, drafting(way, new), new=new, between=grown)
    assert statics[MODEL].cache.cursor.length > 512 and statics[MODEL].graphs.seconds
    assert not any(static.graphs.lacks(static._key(1, 256)) for static in statics.values() if not static._layers)


def static_runners(capture):
    """Returns what makes static runners, which share the static form of their model, and these forms."""
    statics = {}

    def new(model):
        if model not in statics:
            statics[model] = StaticModel(model, Graphs("as it is", capture))
        return StaticRunner(statics[model], 64)

    return new, statics


def test_a_cache_that_cannot_be_copied_is_read_again(monkeypatch):
    def out_of_memory(self, length):
        raise torch.OutOfMemoryError("no memory for a copy")

    new, _ = static_runners(None)
    kept = new(MODEL)
    drafter = drafting("mtp")(kept)
    (first,) = prompts(1)
    said = [*first, *ids_of(rounds_on(kept, drafter, first))]
    monkeypatch.setattr(StaticCache, "copied", out_of_memory)
    other = new(MODEL)
    assert ids_of(rounds_on(other, NoDrafter(), first)) == said[len(first) :]
    assert not CachedPrefix(said[: len(said) - 1], kept, drafter, None).rolled_back(len(first))


def goes_on(model, new_drafter, drafts_at_all: bool = True, new=EagerRunner, between=lambda: None) -> None:
    """Asserts that the next turn on the caches of the first is the next turn from the start, greedy and sampled: the
    first turn leaves nothing of its request. `new`: makes a target's runner. Another lane runs `between` the turns."""
    kept_tokens = drafted = 0
    for i, first in enumerate(prompts(3)[1:]):  # of five tokens, and of one
        temperature = i % 2 * 0.9
        target = new(model)
        drafter = new_drafter(target)
        said = [*first, *ids_of(rounds_on(target, drafter, first, 0.9 - temperature))]
        prompt = [*said[: len(said) - 3], 5, 6, 7, 8]  # a template tokenises the end of an answer differently
        prefix_cache = CachedPrefix(said[: target.length], target, drafter, None)
        other = new(model)
        assert len(rounds_on(other, new_drafter(other), prompts(1)[0][::-1])) > 1
        between()
        alike = shared(prefix_cache.ids, prompt)
        held = prefix_cache.rolled_back(alike)
        assert target.length == held <= alike
        fed = target.passes
        again = rounds_on(target, drafter, prompt, temperature)
        fresh = new(model)
        expected = rounds_on(fresh, new_drafter(fresh), prompt, temperature)
        assert ids_of(again) == ids_of(expected) and (temperature or ids_of(again) == generated(model, prompt, 16))
        assert drafts(again) == drafts(expected)
        assert target.passes - fed == len(again)
        kept_tokens, drafted = kept_tokens + held, drafted + sum(map(len, drafts(again)))
    assert kept_tokens > 15 and (drafted > 5 or not drafts_at_all)


def test_an_adaptive_drafter_learns_anew_in_each_turn():
    (first,) = prompts(1)
    target = EagerRunner(MODEL)
    drafter = drafting("adaptive")(target)
    said = [*first, *ids_of(rounds_on(target, drafter, first))]
    prompt = [*said, 5, 6]
    assert CachedPrefix(said[: target.length], target, drafter, None).rolled_back(len(said) - 1)
    assert not any(arm.tries for arm in drafter._arms)
    assert ids_of(rounds_on(target, drafter, prompt)) == generated(MODEL, prompt, 16)


GREETED = Request("The waves count", max_new_tokens=12)


@pytest.fixture
def pair(tiny_folder):
    return custom_pair(str(tiny_folder), str(tiny_folder), "assistant")


def later(answer: str, **settings) -> Request:
    return replace(GREETED, prompt="And then?", history=(*GREETED.turns, Message("assistant", answer)), **settings)


EARLIER = [
    ("none", ""),
    ("ngram", ""),
    ("assistant", ""),
    ("assistant", "(the waves )+[a-z]+"),
    ("grammar", "a?(the waves)+"),
]


@pytest.mark.parametrize(
    ("drafter", "regex", "temperature"),
    selected(
        [(*each, temperature) for each in EARLIER for temperature in (0.0, 1.2)],
        [(*each, (0.0, 1.2)[i % 2]) for i, each in enumerate(EARLIER, 1)],  # an assistant greedily and under a grammar
    ),
)
def test_a_lane_takes_what_its_own_earlier_turn_left_and_says_how_much(pair, drafter, regex, temperature):
    backend = LocalBackend(ModelStore(), pair, "float32", "cpu")
    lane = standard_lane(pair) if drafter == "none" else assisted_lane(pair, drafter, 3)
    first = run_lane(backend, lane, replace(GREETED, regex=regex, temperature=temperature, seed=3), Watch())
    assert first.reused.tokens == 0
    then = later(first.text, regex=regex, temperature=temperature, seed=3)
    backend.warm_up(lane, then, lambda: False)
    runs = [run_lane(backend, lane, then, Watch()) for _ in range(2)]
    fresh = run_lane(backend, lane, replace(then, prefix_cache=False), Watch())
    assert fresh.reused.tokens == 0 and fresh.token_ids == runs[0].token_ids == runs[1].token_ids
    assert len(first.prompt_ids) <= runs[0].reused.tokens < len(runs[0].prompt_ids) and runs[0].reused.bytes > 0
    assert runs[1].reused == runs[0].reused, "the same turn again costs the same"


@pytest.mark.parametrize(
    "settings",
    [pytest.param({}, marks=pytest.mark.slow), dict(temperature=1.2, regex="(the waves )+[a-z]+")],
    ids=["greedy", "sampled"],
)
def test_compiled_lanes_of_a_comparison_each_take_their_own_turn(pair, settings):
    backend = LocalBackend(ModelStore(), replace(pair, compiled="on"), "float32", "cpu")
    lanes = standard_lane(pair), assisted_lane(pair, "assistant", 3)

    def turn(request: Request):
        for lane in lanes:
            backend.warm_up(lane, request, lambda: False)
        return [run_lane(backend, lane, request, Watch()) for lane in lanes]

    first = turn(replace(GREETED, **settings, seed=3))
    then = later(first[0].text, **settings, seed=3, max_new_tokens=300)
    again, fresh = turn(then), turn(replace(then, prefix_cache=False))
    assert [trace.token_ids for trace in again] == [trace.token_ids for trace in fresh]
    for trace in again:
        assert trace.environment.runner.startswith("static cache")
        assert len(first[0].prompt_ids) <= trace.reused.tokens < len(trace.prompt_ids) and trace.reused.bytes > 0


def test_another_conversation_takes_only_what_both_begin_with(pair):
    backend = LocalBackend(ModelStore(), pair, "float32", "cpu")
    lane = standard_lane(pair)
    run_lane(backend, lane, GREETED, Watch())
    other = replace(later("no"), history=(Message("user", "The lighthouse"), Message("assistant", "no")))
    assert 0 < run_lane(backend, lane, other, Watch()).reused.tokens <= 8
    hot = replace(later("no"), temperature=1.0, seed=5)
    assert run_lane(backend, lane, hot, Watch()).reused.tokens > 0, "caches do not depend on how tokens are chosen"


def test_a_sliding_window_has_no_way_back_and_is_prefilled_again():
    from playground.decoding import prefix_cache
    from playground.models.load import LoadedModel

    model = LoadedModel(gemma(0, 2), None, "g", "w")
    target = EagerRunner(model.model)
    target.forward([1, 2, 3], keep=1)
    prefix_cache.store(model, "key", CachedPrefix([1, 2, 3], target, NoDrafter(), None))
    assert not model.prefix_caches
