"""A round's launches and waits for the device, counted on models of tiny size."""

from __future__ import annotations

import pytest
import torch

from playground.bench.launches import Counter, mean_of
from playground.decoding.drafters.base import NoDrafter
from playground.decoding.lookahead import Constant
from playground.decoding.loop import decode
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.runners.graphs import Graphs
from playground.decoding.runners.static import StaticRunner
from playground.decoding.runners.static_model import StaticModel
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.lane import Request
from playground.models.networks.dflash import DFlash
from playground.models.networks.gemma4 import Gemma4Assistant
from playground.models.networks.mtp import MtpLayer
from tests.decoding.fakes import NumberTokenizer
from tests.decoding.gemma4 import gemma4_assistant, gemma4_target
from tests.decoding.real import V, llama, over
from tests.models.networks.test_eagle3 import LAYOUTS, load, write_head
from tests.published import dflash_base

EVEN = list(range(0, V, 2))
PROMPT = [5, 6, 7, 8, 5, 6, 7, 9, 3]
ONE_LAYER = ("mtp", "eagle3", "dflash", "gemma4")


def models(kind: str, folder):
    if kind == "gemma4":
        target = gemma4_target("text", V)
        return target, Gemma4Assistant(gemma4_assistant(target), target)
    target = llama(0, 7)
    torch.manual_seed(7)
    match kind:
        case "mtp":
            network = MtpLayer(target, torch.tensor(EVEN)).eval()
            network.start_from(target)
        case "dflash":
            network = DFlash(dflash_base(target), target, frozenset())
        case "eagle3":
            network = load(write_head(folder / "head", target, EVEN, **LAYOUTS["safeai"]), target).network
    return target, network


@pytest.mark.parametrize("sampling", [{}, dict(temperature=0.8, top_p=0.9)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ONE_LAYER)
def test_a_round_waits_for_the_device_four_times_at_most(kind, sampling, tmp_path):
    target, network = models(kind, tmp_path)
    counts = counted(target, over(network), **sampling)
    assert 1 <= counts.waits <= 4
    assert counts.launches > 100


@pytest.mark.parametrize("way", ["chain", "tree"])
@pytest.mark.parametrize("kind", ["mtp", "eagle3", "dflash"])
def test_a_layer_beside_a_static_target_drafts_through_graphs(kind, way, tmp_path):
    target, network = models(kind, tmp_path)
    eager, compiled = counted(target, over(network, way)), counted(target, over(network, way), graphs=True)
    assert compiled.launches < eager.launches / 5  # of a target with 7 layers; deeper ones save more
    assert compiled.waits <= eager.waits
    assert way == "tree" or compiled.waits <= 4


def counted(target, new_drafter, graphs=False, **sampling):
    counter = Counter()
    make = EagerRunner
    if graphs:
        static = StaticModel(target, Graphs("counted", counter.capture))
        make = lambda model: StaticRunner(static, 64)  # noqa: E731
    runner, sampler = make(target), Sampler(Request("x", **sampling), target.device)
    drafter, detokenizer = new_drafter(runner, sampler), Detokenizer(NumberTokenizer(), PROMPT)
    return mean_of(counter, decode(runner, drafter, Constant(5), sampler, detokenizer, PROMPT, 24, ()))


def test_a_graph_launches_a_pass_at_once():
    target = llama(0, 7)
    nothing = lambda runner, sampler: NoDrafter()  # noqa: E731
    eager, compiled = counted(target, nothing), counted(target, nothing, graphs=True)
    assert eager.launches > 7 * 30
    assert compiled.launches < eager.launches / 10
    assert compiled.waits <= 2
