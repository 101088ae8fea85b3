"""The native runner: a token's logits have the same bits whatever is fed beside it, and they are the model's."""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref
from itertools import product

import pytest
import torch
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

from playground.backends.local import NATIVE_TURN, TURN, LocalRun
from playground.decoding.drafters.base import NoDrafter
from playground.decoding.drafters.branches import ChainDrafter
from playground.decoding.drafters.lookup import NgramDrafter
from playground.decoding.drafters.mtp import Eagle3Branches, TrainedBranches
from playground.decoding.drafters.tree import TreeDrafter
from playground.decoding.lookahead import Measured
from playground.decoding.loop import decode
from playground.decoding.runners.eager import EagerBlock, EagerLayer, EagerRunner
from playground.decoding.runners.factory import Runners
from playground.decoding.runners.native import CHUNK, NativeBlockRunner, NativeLayerRunner, NativeRunner
from playground.decoding.text import Detokenizer
from playground.lane import Lane, Request
from playground.models.cpu.int4 import BlockLinear
from playground.models.cpu.native import drafter
from playground.models.cpu.native.layers import of_blocks
from playground.models.cpu.native.library import PLAIN, Threads, engine, engines
from playground.models.cpu.native.model import NativeModel, native_model
from playground.models.cpu.packed import pack
from playground.models.load import LoadedModel
from playground.models.networks.dflash import DFlash
from playground.models.networks.eagle3 import Eagle3Config, Eagle3Head
from playground.models.networks.mtp import MtpLayer, one_layer
from playground.models.store import LoadedPair
from tests.decoding.fakes import GREEDY, NumberTokenizer
from tests.decoding.real import ids_of
from tests.engine import FAMILIES, WIDE, blocks, small, stored
from tests.selection import selected

pytestmark = pytest.mark.skipif(engine() is None, reason="the engine does not run here")
TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q4_K_M")
KINDS = (*TYPES, "bfloat16", "float16")
PACKED = ("Q4_1", "Q5_1", "Q8_0", "Q5_K", "Q4_K_M", "bfloat16")  # one of each layout


def sizes_for(kind: str) -> dict[str, int]:
    return WIDE if "_K" in kind else {}


def runner_of(model, found=None) -> NativeRunner:
    native = native_model(model)
    assert isinstance(native, NativeModel), native
    if found:
        native.engine = found
    return NativeRunner(model, native)


@pytest.mark.parametrize(
    ("family", "kind"),
    selected(product(FAMILIES, KINDS), [(list(FAMILIES)[i % len(FAMILIES)], kind) for i, kind in enumerate(KINDS)]),
)
def test_the_logits_are_those_of_the_weights_in_float32(family, kind):
    model = stored(small(family, **sizes_for(kind)), kind)
    ids = random.Random(1).choices(range(300), k=40)
    expected, seen = EagerRunner(model).forward(ids, keep=40), runner_of(model).forward(ids, keep=40)
    atol = 1.5e-4 if sizes_for(kind) else 1e-4  # a model of twice the width adds up twice the terms
    torch.testing.assert_close(seen, expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("head", "heads", "groups", "tied"),
    [(32, 4, 2, True), (64, 4, 4, True), (96, 4, 1, False), (128, 4, 2, False), (32, 16, 1, True)],
)
def test_heads_of_any_width_and_number(head, heads, groups, tied):
    """One token at the end: of a group with many heads, several threads attend to its entry."""
    model = stored(small("llama", head, groups, tied, num_attention_heads=heads), "Q4_1")
    ids = random.Random(1).choices(range(300), k=30)
    runner = runner_of(model)
    seen = torch.cat([runner.forward(ids[:-1], keep=29), runner.forward(ids[-1:], keep=1)])
    torch.testing.assert_close(seen, EagerRunner(model).forward(ids, keep=30), rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def models():
    return {kind: stored(small("qwen3", **sizes_for(kind)), kind) for kind in PACKED}


class OneByOne:
    """What a text gives that is fed token by token, on one thread."""

    def __init__(self, runner: NativeRunner, known: dict[tuple[int, ...], torch.Tensor]) -> None:
        self._runner, self._fed, self.known = runner, [], known

    def __call__(self, text: list[int]) -> torch.Tensor:
        if tuple(text) not in self.known:
            used, Threads.number = Threads.number, 1
            shared = next((i for i, (a, b) in enumerate(zip(text, self._fed, strict=False)) if a != b), len(self._fed))
            self._runner.commit(min(shared, len(text) - 1, len(self._fed)))
            for end in range(self._runner.length + 1, len(text) + 1):
                self.known[tuple(text[:end])] = self._runner.forward([text[end - 1]], keep=1)[0]
                self._runner.commit(end)
            self._fed, Threads.number = list(text), used
        return self.known[tuple(text)]


@pytest.fixture(scope="module")
def known():
    """What each kind of weights gives by texts on engines that give the same; all tests of this file share it."""
    return defaultdict(dict)


ENGINES = [each.name for each in engines()] if engine() else []


@pytest.mark.parametrize(
    ("kind", "name", "threads"),
    selected(
        product(PACKED, ENGINES, (1, 2)),
        [
            (kind, name, 1 + (i + j) % 2)
            for i, name in enumerate(ENGINES)
            for j, kind in enumerate(("Q4_1", "bfloat16", PACKED[1:-1][i % 4]))
        ],
    ),
)
def test_a_token_has_the_same_bits_in_any_pass_over_any_tree_after_any_roll_back(models, known, kind, name, threads):
    """All instruction sets equal plain C, and so each other; but AMX has products in bfloat16 of its own."""
    alike = next(each for each in engines() if kind != "bfloat16" or (each.name == "AMX") == (name == "AMX"))
    one_by_one = OneByOne(runner_of(models[kind], alike), known[kind, alike.name])
    runner = runner_of(models[kind], next(each for each in engines() if each.name == name))
    Threads.number = threads
    draw = random.Random(0)
    text: list[int] = []
    for step in range(4 if name == PLAIN else 16):
        before = draw.choices(range(300), k=draw.choice((1, 1, 2, 30) if step else (CHUNK + 40,)))
        tree = [draw.randrange(-1, i) for i in range(draw.randrange(24))]
        drafted = draw.choices(range(300), k=len(tree))
        keep = len(tree) + 1
        logits = runner.forward([*before, *drafted], keep, tree or None)
        text += before
        paths = [[]]
        for i, parent in enumerate(tree):
            paths.append([*paths[parent + 1], i])
        for row, path in zip(logits, paths, strict=True):
            expected = one_by_one([*text, *(drafted[i] for i in path)])
            assert torch.equal(row, expected), (step, path)
        kept = draw.choice(paths)
        runner.commit(len(text), kept)
        text += [drafted[i] for i in kept]
        if draw.random() < 0.2:
            text = text[: draw.randrange(1, len(text) + 1)]
            runner.commit(len(text))


def test_any_number_of_threads_and_several_passes_at_once_give_the_same_bits(models):
    texts = [random.Random(i).choices(range(300), k=20) for i in range(3)]
    used, Threads.number = Threads.number, 1
    expected = [runner_of(models["Q4_1"]).forward(text, keep=20) for text in texts]
    try:
        for Threads.number in (3, 2, 4, 2):
            with ThreadPoolExecutor(len(texts)) as visitors:
                seen = visitors.map(lambda text: runner_of(models["Q4_1"]).forward(text, keep=20), texts)
            assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))
    finally:
        Threads.number = used


def test_hidden_states_are_those_of_the_watched_layers_without_what_was_rolled_back(models):
    model = models["Q4_1"]
    runner, eager = runner_of(model), EagerRunner(model)
    for each in (runner, eager):
        each.watch([0, 1, -1])
        each.forward([5, 6, 7], keep=1)
        each.commit(3)
        each.forward([8, 9, 10, 11], keep=4, tree=[-1, -1, 1])
        each.commit(4, [1, 2])
    assert runner.hidden.shape == (3, 3 * 128)
    torch.testing.assert_close(runner.hidden, eager.hidden, rtol=0, atol=1e-4)


def test_the_first_layers_use_the_cache_of_the_whole(models):
    from playground.models.networks.early_exit import _exiting_after

    model = models["Q4_1"]
    shallow = _exiting_after(model, model.model.layers[:1])
    runners = runner_of(model), EagerRunner(model)
    rows = []
    for runner in runners:
        runner.forward([5, 6, 7], keep=1)
        runner.commit(3)
        first = runner.first_layers(shallow)
        first.length = 3
        rows.append(first.forward([8], keep=1))
        first.commit(3)
        rows.append(runner.forward([9], keep=1))
    torch.testing.assert_close(rows[0], rows[2], rtol=0, atol=1e-4)
    torch.testing.assert_close(rows[1], rows[3], rtol=0, atol=1e-4)


def test_what_is_not_a_number_comes_out_as_such(models):
    model = copy.deepcopy(models["Q4_1"])
    model.get_input_embeddings().weight.data[7] = float("nan")
    logits = runner_of(model).forward([5, 7, 6], keep=3)
    assert not logits[0].isnan().any() and logits[1:].isnan().all()


def test_a_token_outside_of_the_vocabulary_is_refused_before_the_engine_reads_memory_by_it(models):
    runner = runner_of(models["Q4_1"])
    for wrong in (-1, 300):
        with pytest.raises(IndexError):
            runner.forward([1, wrong], keep=1)


def test_a_model_that_the_engine_does_not_run_says_why():
    sliding = stored(small("mistral", sliding_window=8), "Q4_1")
    assert "sliding" in native_model(sliding)
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    assert "dynamic" in native_model(stored(small("llama", rope_parameters=dynamic), "Q4_1"))
    assert native_model(small()) == "", "float32 was chosen: torch computes in it"


def test_gate_and_up_projection_in_two_formats_are_run_by_torch():
    model = small(hidden_size=128, intermediate_size=160)
    expected = EagerRunner(model).forward(range(9), keep=9)
    for layer in model.model.layers:
        for name, kind in (("gate_proj", "Q8_0"), ("up_proj", "Q5_1")):
            matrix = getattr(layer.mlp, name).weight.detach()
            setattr(layer.mlp, name, BlockLinear(blocks(kind, *matrix.shape, matrix.numpy()), None))
    pack(model)
    assert "gate and up" in native_model(model)
    seen = EagerRunner(model).forward(range(9), keep=9)
    assert (seen - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "Q4_K_M"])
def test_a_product_does_not_depend_on_what_lies_in_its_memory(kind):
    """Slots without a token hold any bits. The sanitizers of test_native_library.py run this too."""
    layer, found = of_blocks(blocks(kind, 48, 512), None), engine()
    bits, extremes = torch.Generator().manual_seed(0), torch.tensor([2**31 - 1, -(2**31)], dtype=torch.int32)
    for tokens in (1, 2, 3, 5, 9):
        x, outs = torch.randn(tokens, 512, generator=bits), []
        words = found.functions.product_scratch(512, tokens) // 4
        before = (extremes[torch.randint(2, (words,), generator=bits)] for _ in range(4))
        for scratch in (torch.zeros(words, dtype=torch.int32), *before):
            outs.append(torch.empty(tokens, 48))
            numbers = x.data_ptr(), tokens, outs[-1].data_ptr(), 1, scratch.data_ptr()
            found.functions.product(byref(layer.matrix), 1, *numbers)
        assert all(torch.equal(out, outs[0]) for out in outs)


def test_the_highest_column_of_each_row_is_known(models):
    logits = runner_of(models["Q4_1"]).forward(range(9), keep=5)
    assert logits.__dict__["highest"] == logits.argmax(dim=-1).tolist()


def test_the_memory_of_an_expected_prompt_is_there_before_its_pass(models, monkeypatch):
    runners, loaded = Runners(), LoadedModel(models["Q4_1"], NumberTokenizer(), "big", "")
    runners.expect(300, 8, 1)
    runner = runners(loaded)
    monkeypatch.setattr(torch, "zeros", None)
    assert runner.forward(range(300), keep=1).shape == (1, 300), "a clock that runs meets no new memory"


def test_turns_are_shorter_where_the_engine_decodes(models, tiny_tokenizer):
    lane, request = Lane("Standard", "big", "none"), Request("1 2 3")
    of_torch, of_engine = (
        LocalRun(LoadedPair(None, LoadedModel(model, tiny_tokenizer, "big", "")), lane, request, Runners()).turn
        for model in (small("qwen3"), models["Q4_1"])
    )
    assert (of_torch, of_engine) == (TURN, NATIVE_TURN) and NATIVE_TURN < TURN


def network_of(kind: str, target):
    torch.manual_seed(3)
    if kind == "mtp":
        network = MtpLayer(target, torch.arange(0, 300, 3))
        torch.nn.init.normal_(network.proj.weight, std=0.1)
    else:
        normed = kind == "normed"
        network = Eagle3Head(target, Eagle3Config(one_layer(target.config), (0, 0, 1), normed, normed), {})
        torch.nn.init.normal_(network.fc.weight, std=0.1)
    for parameter in network.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    (network.base if kind == "mtp" else network).norm.weight.data *= 8  # some tokens are much likelier than others
    pack(network, drafts=True)
    return network.eval()


class Torch(NativeRunner):
    """A runner whose drafter is run by torch, over the engine's linear layers."""

    def layer(self, layer):
        return EagerLayer(layer)

    def block(self, network):
        return EagerBlock(network)


def proposed(model, network, way: str, runner: type[NativeRunner], threads: int = 1):
    """The drafts after several roll-backs of a text that was verified by passes of the target."""
    Threads.number = threads
    target = runner(model, native_model(model))
    branches = (TrainedBranches if isinstance(network, MtpLayer) else Eagle3Branches)(network, target)
    costs = lambda tokens: 1 + tokens / 60  # noqa: E731
    drafter = ChainDrafter(branches, 300, {299}) if way == "chain" else TreeDrafter(branches, 20, {299}, 5, costs)
    text = random.Random(2).choices(range(300), k=CHUNK + 40)
    drafts, length = [], CHUNK + 20
    target.forward(text[:length], keep=1)
    target.commit(length)
    drafter.commit(length)
    for accepted in (1, 0, 3, 2, 0):
        draft = drafter.propose(text[: length + 1], 5, 0.0, GREEDY)
        drafts.append((draft, torch.stack([*draft.candidates])))
        target.forward(text[length : length + 4], keep=4)
        target.commit(length + 1, range(accepted))
        length += 1 + accepted
        drafter.commit(length)
    assert drafter.rewind(40) == 39
    assert drafter.propose(text[:41], 5, 0.0, GREEDY).ids == []
    return drafts


@pytest.mark.parametrize("way", ["chain", "tree"])
@pytest.mark.parametrize("kind", ["mtp", "eagle3", "normed"])
def test_a_draft_in_one_call_is_that_of_torch(models, kind, way, monkeypatch):
    monkeypatch.setattr(drafter, "WIDE", True)  # activations as in torch's layers
    model = models["Q4_1"]
    network = network_of(kind, model)
    assert isinstance(runner_of(model).layer(network), NativeLayerRunner)
    native, other = (proposed(model, network, way, runner) for runner in (NativeRunner, Torch))
    for (seen, logits), (expected, others) in zip(native, other, strict=True):
        assert len(seen.ids) > 1 and (seen.ids, seen.tree) == (expected.ids, expected.tree)
        assert seen.q == pytest.approx(expected.q, rel=0.1)
        own = len(network.draft_ids)  # torch has the rows that the text adds as they were loaded
        torch.testing.assert_close(logits[:, :own], others[:, :own], rtol=0, atol=2e-3)
        added, unused = others[:, own : logits.shape[1]], others[:, logits.shape[1] :]  # columns that torch has besides
        torch.testing.assert_close(logits[:, own:], added, rtol=0, atol=0.1)
        assert unused.isneginf().all()
    again = proposed(model, network, way, NativeRunner, threads=2)
    assert all(torch.equal(one, two) for (_, one), (_, two) in zip(native, again, strict=True))


@pytest.mark.parametrize("way", ["chain", "tree", "eagle3", "lookup"])
@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K_M", "bfloat16"])
def test_greedy_texts_are_the_same_in_every_format_whatever_is_drafted(models, kind, way):
    model, prompt = models[kind], random.Random(4).choices(range(300), k=20)

    def written(way: str) -> tuple[list[int], bool]:
        target = runner_of(model)
        costs = lambda tokens: 1 + tokens / 1000  # noqa: E731
        if way in ("none", "lookup"):
            drafter = NgramDrafter() if way == "lookup" else NoDrafter()
        else:
            network = network_of("eagle3" if way == "eagle3" else "mtp", model)
            branches = (Eagle3Branches if way == "eagle3" else TrainedBranches)(network, target)
            tree = way == "tree"
            drafter = TreeDrafter(branches, 12, (), 4, costs) if tree else ChainDrafter(branches, 300, (), costs)
        shown = Detokenizer(NumberTokenizer(), prompt)
        rounds = [*decode(target, drafter, Measured(4, costs), GREEDY, shown, prompt, 40, ())]
        return ids_of(rounds), any(round_.drafted for round_ in rounds)

    plain, _ = written("none")
    assert written(way) == (plain, True)


@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
def test_a_draft_grown_pass_by_pass_has_the_bits_of_the_whole(models, kind):
    model = models["Q4_1"]
    network = network_of(kind, model)
    (draft, logits), *_ = proposed(model, network, "chain", NativeRunner)

    target = runner_of(model)
    text = random.Random(2).choices(range(300), k=CHUNK + 40)
    branches = (TrainedBranches if kind == "mtp" else Eagle3Branches)(network, target)
    target.forward(text[: CHUNK + 20], keep=1)
    target.commit(CHUNK + 20)
    branches.commit()
    rows = [branches.root(text[: CHUNK + 21])]
    for id_ in draft.ids[:-1]:
        rows.append(branches.grow([id_], [0]))
    assert torch.equal(torch.cat(rows), logits)


@pytest.mark.parametrize("causal", [(), ("full_attention",)])
def test_a_block_is_that_of_torch_after_any_roll_back(models, causal, monkeypatch):
    monkeypatch.setattr(drafter, "WIDE", True)  # activations as in torch's layers
    model = models["Q4_1"]
    torch.manual_seed(3)
    config = MuseGlimmerAssistantConfig(
        hidden_size=128, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, block_size=5, mask_token_id=298, target_layer_ids=[0, 1], initializer_range=0.1,
        layer_types=["full_attention"] * 2,
    )  # fmt: skip
    network = DFlash(MuseGlimmerAssistantModel(config).eval(), model, frozenset(causal))
    pack(network, drafts=True)
    assert isinstance(runner_of(model).block(network), NativeBlockRunner)
    hidden, starts = torch.randn(CHUNK + 60, 2 * 128), [(0, CHUNK + 20), (CHUNK + 20, CHUNK + 23), (40, 41), (41, 45)]

    def drafted(runner: type[NativeRunner], threads: int) -> list[torch.Tensor]:
        Threads.number = threads
        block, rows = runner(model, native_model(model)).block(network), []
        for start, end in starts:
            block.rewind(start)
            rows.append(block.read(7 + start, hidden[start:end]))
            block.end()
        return rows

    with torch.inference_mode():
        native, again, other = drafted(NativeRunner, 1), drafted(NativeRunner, 2), drafted(Torch, 1)
    for one, two, expected in zip(native, again, other, strict=True):
        assert one.shape == (4, 300) and torch.equal(one, two)
        torch.testing.assert_close(one, expected, rtol=0, atol=2e-3)
