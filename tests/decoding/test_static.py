"""The static runner writes what the eager one writes, and what it captures can be replayed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from itertools import product, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from transformers import LlamaConfig, MambaConfig, MambaForCausalLM

from playground.decoding.clock import Clock
from playground.decoding.drafters import hidden
from playground.decoding.drafters.assistant import AssistantBranches, AssistantDrafter, EarlyExitDrafter
from playground.decoding.drafters.base import NOTHING, Draft, NoDrafter
from playground.decoding.drafters.composite import CompositeDrafter
from playground.decoding.drafters.lookup import NgramDrafter
from playground.decoding.drafters.mtp import MtpBranches
from playground.decoding.runners import buffers as widths
from playground.decoding.runners import static_network
from playground.decoding.runners.buffers import WIDTHS, Inputs
from playground.decoding.runners.eager import EagerLayer, EagerRunner
from playground.decoding.runners.factory import Runners, wants_compiled
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_cache import FixedLayer, why_eager
from playground.decoding.runners.static_model import Buffers, StaticModel
from playground.decoding.runners.static_network import StaticLayerRunner, StaticNetwork
from playground.decoding.verify import decide
from playground.models.networks.dflash import DFlash
from playground.models.networks.eagle3 import Eagle3Config, Eagle3Head
from playground.models.networks.early_exit import first_layers
from playground.models.networks.heads import ParallelHeads
from playground.models.networks.mtp import MtpLayer
from playground.trace import Round
from tests.decoding import real
from tests.decoding.fakes import GREEDY
from tests.decoding.graphs import Recorder
from tests.decoding.real import (
    SIZES,
    V,
    deepseek,
    gemma,
    generated,
    ids_of,
    leaves_no_state,
    llama,
    over,
    prompts,
    rounds_of,
)
from tests.models.networks.blocks import write_block
from tests.models.networks.test_blocks import load as load_block
from tests.models.networks.test_eagle3 import loaded
from tests.published import dflash_base
from tests.selection import selected

TARGETS = {"llama": llama, "deepseek": deepseek}
WAYS = (
    "none",
    "ngram",
    "assistant",
    "early exit",
    "mtp",
    "mtp tree",
    "eagle3",
    "eagle3 tree",
    "heads tree",
    "dspark",
    "dflash2 tree",
    "domino",
    "jetspec tree",
    "composite",
)
ASSISTANT = llama(1, 1)
SAMPLED = dict(temperature=0.8, top_p=0.9, min_p=0.02, repetition_penalty=1.2)
LONG = [*range(1, 38), *range(30, 2, -1), 7, 8, 9]  # longer than the widest pass


@pytest.fixture(scope="module", params=["llama", pytest.param("deepseek", marks=pytest.mark.slow)])
def model(request):
    return TARGETS[request.param](0, 3)


def static_runner(model, graphs: Graphs | None = None, room: int = 64) -> StaticRunner:
    return StaticRunner(StaticModel(model, graphs or Graphs("as it is", None)), room)


def drafting(way: str, model, make):
    """What drafts for the model. `make`: gives any model its runner."""
    kind, *shape = way.split()
    match kind:
        case "none":
            return lambda target: NoDrafter()
        case "ngram":
            return lambda target: NgramDrafter()
        case "assistant":
            return lambda target: AssistantDrafter(make(ASSISTANT), V, {V - 1})
        case "early":
            layers = first_layers(loaded(model), 2).model
            return lambda target: EarlyExitDrafter(layers, target, {V - 1})
        case "composite":
            tree = over(network("mtp", model), "tree")
            return lambda target: CompositeDrafter(NgramDrafter(3, 2), tree(target))
        case "dflash":
            return over(dflash(model, *shape), "tree" if shape else "chain")
    return over(network(kind, model), "tree" if shape else "chain")


@cache
def network(kind: str, model) -> nn.Module:
    torch.manual_seed(7)
    match kind:
        case "mtp":
            layer = MtpLayer(model, torch.arange(0, V, 2)).eval()
            layer.start_from(model)
            return layer
        case "eagle3":
            return eagle3_head(model)
        case "dspark" | "dflash2" | "domino" | "jetspec":
            heads = dict(markov="rnn", confidence="markov") if kind == "dspark" else {}
            heads |= dict(layout="z-lab") if kind in ("domino", "jetspec") else {}
            with TemporaryDirectory() as folder:
                return load_block(write_block(Path(folder), model, kind=kind, **heads), model).network
    return ParallelHeads(model, torch.arange(V), 4).eval()


@cache
def dflash(model, shape: str = "") -> DFlash:
    """Plain, or with causal layers whose window is far shorter than the texts here."""
    windows = dict(layer_types=["sliding_attention", "full_attention"], sliding_window=7)
    causal = frozenset(["sliding_attention"] if shape else [])
    return DFlash(dflash_base(model, **windows if shape else {}), model, causal)


def eagle3_head(model, **layer) -> Eagle3Head:
    """A head of random weights that reads all layers of the model."""
    config = LlamaConfig(**SIZES, num_hidden_layers=1, initializer_range=0.4, **layer)
    head = Eagle3Head(model, Eagle3Config(config, (0, 1, 2), False, False), {"lm_head.weight": torch.empty(V, 0)})
    head.lm_head.weight.data.normal_()
    return head.eval()


def both_ways(monkeypatch, model, way, make, prompt, **options):
    """The rounds of eager runners, and those of the runners that `make` gives."""
    eager = rounds_of(model, drafting(way, model, EagerRunner), prompt, **options)
    with monkeypatch.context() as patch:
        patch.setattr(real, "EagerRunner", make)
        return eager, rounds_of(model, drafting(way, model, make), prompt, **options)


def assert_same(eager, static) -> None:
    assert ids_of(static) == ids_of(eager)
    assert [[token.id for token in r.drafted] for r in static] == [[token.id for token in r.drafted] for r in eager]
    assert [r.passes for r in static] == [r.passes for r in eager]


@pytest.mark.parametrize(
    ("way", "sampled"),
    selected(product(WAYS, (False, True)), [(way, i % 2 == 0) for i, way in enumerate(WAYS)]),
)
def test_static_lanes_write_the_tokens_of_eager_lanes(monkeypatch, model, way, sampled):
    for prompt in (LONG,) if sampled else (prompts(2)[1], LONG):
        assert_same(*both_ways(monkeypatch, model, way, static_runner, prompt, **SAMPLED if sampled else {}))


CUT = dict(temperature=0.8, top_p=0.9, top_k=9)


@pytest.mark.parametrize(
    ("way", "sampling", "verification"),
    selected(
        product(
            ("eagle3", "none", "ngram", "mtp tree", "dflash"), ({}, dict(temperature=0.8), CUT), ("token", "block")
        ),
        [("eagle3", {}, "token"), ("eagle3", dict(temperature=0.8), "block"), ("eagle3", CUT, "token")],
    ),
    ids=str,
)
def test_captured_choices_verdicts_and_annotations_are_those_of_plain_calls(way, sampling, verification):
    model, recorder = llama(0, 3), Recorder()
    graphs, rule = Graphs("recorded", recorder), partial(decide, verification=verification)
    for prompt in prompts(2):
        plain, captured = (
            rounds_of(model, drafting(way, model, None), prompt, max_new_tokens=24, graphs=each, rule=rule, **sampling)
            for each in (None, graphs)
        )
        assert [without_times(r) for r in captured] == [without_times(r) for r in plain]
    assert not graphs.failure
    assert recorder.replays > recorder.captures > 0


AT_ONCE = [
    *(("chain", {}), ("chain", CUT), ("tree", {}), ("sampled tree", CUT), ("assistant", CUT), ("early exit", {})),
    *(("mtp chain", CUT), ("mtp sampled tree", CUT)),
    *(("chain", dict(temperature=0.8)), ("tree", CUT), ("sampled tree", dict(temperature=0.8)), ("assistant", {})),
    *(("mtp chain", {}), ("mtp tree", {}), ("mtp sampled tree", dict(temperature=0.8))),
]


@pytest.mark.parametrize(("way", "sampling"), selected(AT_ONCE, AT_ONCE[:8]), ids=str)
def test_what_is_drafted_at_once_is_what_single_steps_draft(monkeypatch, way, sampling):
    """Across a boundary of what attention reads too, after other drafts of other lengths, and while an MTP layer's
    vocabulary grows from one size to the next."""
    monkeypatch.setattr(hidden, "LEAST", 4)
    model, recorder = llama(0, 3), Recorder()
    kept = {each: StaticModel(each, Graphs("recorded", recorder)) for each in (model, ASSISTANT)}
    trained, shape = way.startswith("mtp"), way.removeprefix("mtp ")
    head = network("mtp", model) if trained else eagle3_head(model)
    makes = {
        "single steps": partial(static_runner, room=300),
        "uncaptured": partial(static_runner, room=300),
        "captured": lambda of: StaticRunner(kept[of], 300),
    }
    rule = partial(decide, verification="traversal") if shape == "sampled tree" else decide
    for prompt in (prompts(2)[1], [1 + i % (V - 2) for i in range(248)]):
        written = {}
        for name, make in makes.items():
            with monkeypatch.context() as patch:
                patch.setattr(real, "EagerRunner", make)
                if name == "single steps":
                    patch.setattr(MtpBranches, "captured", None)
                    patch.setattr(AssistantBranches, "captured", None)
                beside = shape in ("chain", "tree", "sampled tree")
                drafts = over(head, shape) if beside else drafting(way, model, make)
                rounds = rounds_of(model, drafts, prompt, max_new_tokens=18, ends=(), rule=rule, **sampling)
            written[name] = [without_times(r) for r in rounds]
        assert written["uncaptured"] == written["captured"]
        if "tree" in way:  # whose levels are grown in wider passes, with other last digits
            written = {
                name: [[(t.id, t.parent, t.decision) for t in r.drafted] for r in of] for name, of in written.items()
            }
        assert written["single steps"] == written["uncaptured"]
    graphs = kept[ASSISTANT if way == "assistant" else model].graphs
    assert {key[0][1][0] for key in graphs._calls} == {shape if "tree" in way else "chain"}
    sizes = {key[0][-1][-1] for key in graphs._calls if trained}  # of the columns that the text adds, and their number
    assert sizes <= {5, 9, 17, 21} and len(sizes) != 1
    assert len(graphs._calls) > 1, "drafts of several sizes"
    assert not graphs.failure


def _shape(round_: Round) -> list[tuple]:
    return [(token.id, token.parent, token.decision) for token in round_.drafted]


def test_what_an_aborted_round_asked_for_is_not_captured_over_another_text():
    model = llama(0, 3)
    head, static = eagle3_head(model), StaticModel(model, Graphs("recorded", Recorder()))

    def drafted(ids: list[int]) -> StaticRunner:
        runner = StaticRunner(static, 64)
        drafter = over(head)(runner)
        runner.forward(ids, keep=1)
        runner.commit(len(ids))
        drafter.commit(len(ids))
        assert drafter.propose([*ids, 5], 4, 0.0, GREEDY).ids
        return runner

    runner = drafted(LONG)
    entries = static.layer(head).cache.copied(len(LONG))
    runner.prepare()
    aborted = drafted(LONG[:3])  # asks for the second time, and nothing prepares the next round
    runner.prepare()
    assert all(map(torch.equal, static.layer(head).cache.copied(len(LONG)), entries))
    assert aborted.length == 3


def test_lanes_in_turn_draft_from_their_own_vocabularies(monkeypatch):
    monkeypatch.setattr(hidden, "LEAST", 8)
    model = llama(0, 3)
    static, drafter = StaticModel(model, Graphs("recorded", Recorder())), over(network("mtp", model))
    texts, options = ([1, 3, 5, 7], [31, 33, 35, 37]), dict(max_new_tokens=16, ends=())
    alone = [[_shape(r) for r in rounds_of(model, drafter, text, **options)] for text in texts]  # eager
    monkeypatch.setattr(real, "EagerRunner", lambda of: StaticRunner(static, 64))
    runs = [real.begun(model, drafter, text, **options) for text in texts]
    in_turn: list[list] = [[], []]
    for rounds in zip_longest(*runs):
        for lane, round_ in zip(in_turn, rounds, strict=True):
            lane += [_shape(round_)] if round_ else []
    assert in_turn == alone
    assert any(id_ % 2 for lane in alone for drafted in lane for id_, *_ in drafted)


def without_times(round_: Round) -> Round:
    return replace(round_, start_s=0, draft_s=0, verify_s=0, end_s=0, commit_s=0, annotate_s=0, mask_s=0)


@pytest.mark.parametrize(
    "way",
    selected(
        ("none", "assistant", "early exit", "mtp", "mtp tree", "eagle3", "eagle3 tree", "dflash windows", "dspark"),
        ("early exit", "mtp tree", "eagle3 tree", "dflash windows", "dspark"),
    ),
)
def test_a_replay_reads_and_writes_the_same_addresses(monkeypatch, way):
    """Were an address or a number of the host part of what was captured, the replays would write other tokens."""
    model, recorders, kept = llama(0, 3), [], {}

    def make(of):
        if of not in kept:
            recorders.append(Recorder())
            kept[of] = StaticModel(of, Graphs("recorded", recorders[-1]))
        return StaticRunner(kept[of], 64)

    addresses = []
    for prompt in prompts(2):
        assert_same(*both_ways(monkeypatch, model, way, make, prompt))
        addresses.append([tensor.data_ptr() for static in kept.values() for tensor in buffers(static)])
    assert len({tuple(of_run) for of_run in addresses}) == 1
    assert all(recorder.replays > 2 * recorder.captures for recorder in recorders)
    assert kept[model].graphs.seconds > 0


def buffers(static: StaticModel | StaticNetwork) -> list[torch.Tensor]:
    held = [
        each for value in vars(static).values() for each in (value.values() if isinstance(value, dict) else [value])
    ]
    of_passes = [part for each in held if isinstance(each, Buffers) for part in vars(each).values()]
    own = [each for each in [*held, *of_passes] if isinstance(each, torch.Tensor)]
    sent = [each.rows for each in [*held, *of_passes] if isinstance(each, Inputs)]
    drafting = [tensor for each in held if isinstance(each, StaticNetwork) for tensor in buffers(each)]
    return [*own, *sent, *static.cache.tensors, *drafting]


@pytest.mark.parametrize(
    ("way", "passes"),
    [pytest.param(*each, marks=pytest.mark.slow) for each in (("mtp tree", 2), ("dflash windows", 1))],
)
def test_compiled_passes_write_the_same_and_are_compiled_once(monkeypatch, way, passes):
    model = llama(0, 2)
    monkeypatch.setattr(widths, "WIDTHS", (8, 64))
    monkeypatch.setattr(static_network, "WIDTHS", (64,))
    monkeypatch.setattr(static_network, "BRANCHES", (8,))
    monkeypatch.setattr(static_network, "WIDTHS", (64,))
    compiled = Graphs("compiled", lambda work: torch.compile(work, fullgraph=True, backend="aot_eager", dynamic=False))
    static = StaticModel(model, compiled)

    def make(of):
        return StaticRunner(static, 64)

    torch._dynamo.reset()
    counters.clear()
    assert_same(*both_ways(monkeypatch, model, way, make, prompts(1)[0]))
    assert not compiled.failure
    once = counters["stats"]["unique_graphs"]
    for prompt in prompts(3):
        assert_same(*both_ways(monkeypatch, model, way, make, prompt))
    assert counters["stats"]["unique_graphs"] == once == 2 + 1 + passes  # the target's, and the move of a branch
    assert not counters["graph_break"]


def test_a_capture_that_fails_leaves_the_pass_as_it_is_and_says_why(monkeypatch):
    def refuse(work):
        raise RuntimeError("no such graph")

    graphs = Graphs("compiled", refuse)
    model = llama(0, 2)
    runner = lambda of: static_runner(of, graphs)  # noqa: E731
    assert_same(*both_ways(monkeypatch, model, "mtp", runner, prompts(1)[0]))
    assert graphs.failure == "no such graph"


@pytest.mark.slow
def test_a_cache_that_is_too_short_grows(monkeypatch):
    recorder = Recorder()
    runner = lambda of: static_runner(of, Graphs("recorded", recorder), room=8)  # noqa: E731
    options = dict(max_new_tokens=400, ends=())
    assert_same(*both_ways(monkeypatch, llama(0, 2), "mtp tree", runner, prompts(1)[0], **options))
    assert recorder.replays > 5 * recorder.captures, "what has moved is captured again"


class SecondBranch(NoDrafter):
    """Drafts a tree whose second branch is the text itself, four tokens deep, and whose first is wrong."""

    def __init__(self, text: list[int]) -> None:
        self._text = text

    def propose(self, ids, k, stop_below, sampler):
        right = self._text[len(ids) : len(ids) + min(k, 4)]
        if not right:
            return NOTHING
        return Draft([(right[0] + 1) % V, *right], [0.5] * (len(right) + 1), tree=[-1, -1, *range(1, len(right))])


@pytest.mark.parametrize("new_tokens", [40, pytest.param(300, marks=pytest.mark.slow, id="a cache that grows")])
def test_a_branch_that_is_accepted_is_moved_once(monkeypatch, new_tokens):
    """Moving entries twice loses some: the first one moved may be the source of another."""
    model, recorder = llama(0, 2), Recorder()
    static = StaticModel(model, Graphs("recorded", recorder))
    for prompt in prompts(3):
        alone = rounds_of(model, lambda *_: NoDrafter(), prompt, max_new_tokens=new_tokens, ends=())
        text = [*prompt, *ids_of(alone), 0]
        with monkeypatch.context() as patch:
            patch.setattr(real, "EagerRunner", lambda of: StaticRunner(static, 64))
            drafted = rounds_of(
                model, lambda *_, text=text: SecondBranch(text), prompt, max_new_tokens=new_tokens, ends=()
            )
        assert ids_of(drafted) == ids_of(alone)
        assert max(len(r.accepted) for r in drafted) == 4


@pytest.mark.slow
def test_nothing_is_captured_while_a_round_is_timed(monkeypatch):
    """Not in the first round of a run, nor in the round after a cache has grown."""
    model, recorder, timed = llama(0, 2), Recorder(), []
    static = StaticModel(model, Graphs("recorded", recorder))

    class Counting(Clock):
        def __call__(self) -> float:
            timed.append(recorder.captures)
            return super().__call__()

    monkeypatch.setattr("playground.decoding.loop.Clock", Counting)
    monkeypatch.setattr(real, "EagerRunner", lambda of: StaticRunner(static, 64))
    rounds = rounds_of(model, drafting("mtp tree", model, None), [3, 1, 4], max_new_tokens=300, ends=())
    readings = timed[1:]  # of a round: at its start, after draft, pass and commit, then around the annotation
    assert len(readings) == 6 * len(rounds) and readings[0] > 0
    assert all(readings[i] == readings[i + 4] for i in range(0, len(readings), 6))
    assert readings[-1] > readings[0], "it has grown"


def test_ten_runs_of_changing_length_capture_what_the_longest_needs(monkeypatch):
    """A backend a run, as on the page."""
    model, recorder = llama(0, 2), Recorder()
    of = loaded(model)
    of.static["target"] = StaticModel(model, Graphs("recorded", recorder))
    captures = []
    for new_tokens in (30, 500, 8, 200, 900, 30, 700, 16, 500, 900):
        runners = Runners(compiled=True)
        runners.expect(10, new_tokens, 5)
        runners(of).prepare()
        captures.append(recorder.captures)
    passes = moves = len(WIDTHS)
    assert captures[0] == passes + moves, "over 256 entries"
    assert captures[1] - captures[0] == 3 * passes + moves, "over 256, 512 and 768, which have moved"
    assert captures[4] - captures[1] == 3 * passes + moves, "over 256, 512 and 1,024"
    assert captures == [captures[0], *[captures[1]] * 3, *[captures[4]] * 6]


@pytest.mark.parametrize(
    ("prompt", "new_tokens", "reserved"), [(10, 30, 256), (1, 448, 768), (1985, 2048, 5120), (3000, 9000, 5120)]
)
def test_a_cache_reserves_little_more_than_a_request_needs(prompt, new_tokens, reserved):
    model, recorder = llama(0, 1), Recorder()
    of, runners = loaded(model), Runners(compiled=True)
    of.static["target"] = StaticModel(model, Graphs("recorded", recorder))
    runners.expect(prompt, new_tokens, 5)
    runner = runners(of)
    runner.prepare()
    assert of.static["target"].cache.cursor.length == reserved
    captures = recorder.captures
    runner.forward([1] * prompt, keep=1)
    runner.commit(prompt)
    while runner.length + WIDTHS[-1] < min(reserved, prompt + new_tokens):
        runner.prepare()
        runner.forward([1] * WIDTHS[-1], keep=1)
        runner.commit(runner.length)
    assert of.static["target"].cache.cursor.length == reserved and recorder.captures == captures


@pytest.mark.parametrize("tokens", [1, 60, 200, 300, 900])
def test_attention_reads_what_is_there_not_what_is_reserved(monkeypatch, tokens):
    runner = StaticRunner(StaticModel(llama(0, 2), Graphs("as it is", None)), 1000)
    assert real.keys_read(monkeypatch, runner, tokens) == {max(256, 1 << (tokens + 3).bit_length())}


@pytest.mark.parametrize(
    "way",
    [
        "eagle3",
        "dflash",
        *(pytest.param(way, marks=pytest.mark.slow) for way in ("eagle3 tree", "mtp", "dflash windows")),
    ],
)
def test_drafting_reads_what_is_there_not_what_is_reserved(monkeypatch, way):
    """And writes the same beyond a boundary of what is read."""
    model, read, update = llama(0, 3), set(), FixedLayer.update
    static, prompt = StaticModel(model, Graphs("recorded", Recorder())), [1 + i % (V - 2) for i in range(235)]

    def seen(layer, *args, **kwargs):
        keys, values = update(layer, *args, **kwargs)
        if layer not in static.cache.layers:
            read.add(keys.shape[2])
        return keys, values

    monkeypatch.setattr(FixedLayer, "update", seen)
    runner = lambda of: StaticRunner(static, 4_000)  # noqa: E731
    for text in (prompt[:3], prompt):
        assert_same(*both_ways(monkeypatch, model, way, runner, text, max_new_tokens=26, ends=()))
    read.remove(max(read))  # the pass that allocates the cache
    assert read == {256, 512}


def test_a_pass_after_the_prompt_that_is_wider_than_any_width_is_fed_in_parts():
    model = llama(0, 2)
    ids = [i % V for i in range(700)]
    static, eager = static_runner(model), EagerRunner(model)
    for runner in (static, eager):
        runner.watch([0])
        runner.forward(ids[:3], keep=1)
        runner.commit(3)
    tree = [-1, -1, 0, 1]
    logits = [runner.forward(ids[3:], keep=6, tree=tree) for runner in (static, eager)]
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(static.hidden, eager.hidden, rtol=1e-4, atol=1e-4)


def test_what_one_run_left_does_not_reach_the_next():
    """Not even numbers that are none: 0 times NaN would be NaN."""
    model = llama(0, 2)
    static = StaticModel(model, Graphs("as it is", None))
    logits = [StaticRunner(static, 64).forward([3, 1, 4], keep=1)]
    with torch.inference_mode():
        for entries in static.cache.tensors:
            entries.fill_(float("nan"))
    logits.append(StaticRunner(static, 64).forward([3, 1, 4], keep=1))
    assert torch.equal(*logits)


@pytest.mark.parametrize("way", ["mtp", "eagle3 tree", "dflash windows"])
def test_what_was_drafted_before_leaves_no_state(monkeypatch, way):
    """Nor does a round that the drafter was not asked in."""
    model = llama(0, 3)
    text = [3, 1, 4, *generated(model, [3, 1, 4])]
    monkeypatch.setattr(real, "EagerRunner", static_runner)
    leaves_no_state(model, drafting(way, model, None), text, [(3, 5), (3, 6), (4, 10), (0, 13), (3, 14), (3, 18)])


def test_what_one_draft_left_does_not_reach_the_next_run():
    model = llama(0, 3)
    head, static = eagle3_head(model), StaticModel(model, Graphs("as it is", None))
    layer = static.layer(head)
    ids, hidden = [3, 1, 4], torch.randn(3, 3 * 32)
    with torch.inference_mode():
        passes = [(StaticLayerRunner(layer).read(ids, hidden), layer.grow([5, 6], [0, 0]), layer.grow([7, 8], [1, 0]))]
        for tensor in (*layer.cache.tensors, layer._hidden, layer._out):
            tensor.fill_(float("nan"))
        passes.append(
            (StaticLayerRunner(layer).read(ids, hidden), layer.grow([5, 6], [0, 0]), layer.grow([7, 8], [1, 0]))
        )
    first, second = ([logits for logits, _ in run] for run in passes)
    assert all(map(torch.equal, first, second))


def test_a_layer_with_a_window_of_its_own_stays_eager_beside_a_static_target():
    model = llama(0, 3)
    windowed = eagle3_head(model)
    windowed.config.sliding_window = 6
    made = [type(static_runner(model).layer(head)) for head in (eagle3_head(model), windowed)]
    assert made == [StaticLayerRunner, EagerLayer]


def test_models_that_cannot_run_statically_say_why():
    assert not any(why_eager(build(0, 2)) for build in (llama, gemma))
    assert "experts" in why_eager(deepseek(0, 2))
    chunked = llama(0, 1)
    chunked.config.layer_types = ["chunked_attention"]
    assert "chunked" in why_eager(chunked)
    mamba = MambaForCausalLM(MambaConfig(vocab_size=V, hidden_size=16, num_hidden_layers=1, state_size=4))
    assert "recurrent" in why_eager(mamba)
    assert "length" in why_eager(growing(0, 1))
    growing_in_one = gemma(0, 2)
    growing_in_one.config.rope_parameters["full_attention"]["rope_type"] = "longrope"
    assert "length" in why_eager(growing_in_one)


def growing(seed: int, layers: int):
    """Its rotary frequencies depend on the length of the text."""
    model = llama(seed, layers)
    model.config.rope_parameters["rope_type"] = "dynamic"
    return model


@pytest.mark.parametrize("build", [llama, growing])
def test_a_model_keeps_its_buffers_and_one_that_cannot_stays_eager(build):
    of, runners = loaded(build(0, 2)), Runners(compiled=True)
    runners.expect(10, 20, 5)
    static = build is llama
    assert type(runners(of)) is (StaticRunner if static else EagerRunner)
    runners(of, "assistant")
    assert set(of.static) == ({"target", "assistant"} if static else set())
    kept = dict(of.static)
    runners(of)
    assert of.static == kept
    assert runners.describe(of).startswith("static cache" if static else "eager: ")
    assert type(Runners()(of)) is EagerRunner
    assert Runners().describe(of) == "eager"


def test_auto_compiles_on_cuda_alone():
    cpu, cuda = torch.device("cpu"), SimpleNamespace(type="cuda")
    wanted = {choice: (wants_compiled(choice, cpu), wants_compiled(choice, cuda)) for choice in ("auto", "on", "off")}
    assert wanted == {"auto": (False, True), "on": (True, True), "off": (False, False)}
