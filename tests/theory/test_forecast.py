"""The forecast for other hardware: its formulas, and its error on what was measured and published."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from scipy.optimize import brentq

from playground import ROOT
from playground.commands import main
from playground.errors import PlaygroundError
from playground.theory import forecast
from playground.theory.forecast import Drafts, Setting
from playground.trace import Shape


def dense(vocabulary, width, layers, heads, kept, head, inner) -> Shape:
    """A dense decoder: with its head, without its embedding."""
    layer = width * (heads + 2 * kept) * head + heads * head * width + 3 * width * inner
    return Shape(layers * layer + vocabulary * width, 7 * layers + 1, 2 * layers * kept * head)


QWEN = dense(151936, 4096, 36, 32, 8, 128, 12288)
SHAPES = {
    "Llama-3.2-1B": dense(128256, 2048, 16, 32, 8, 64, 8192),
    "Qwen3-8B": QWEN,
    "Qwen3-4B": dense(151936, 2560, 36, 32, 8, 128, 9728),
}
LAYER = Shape(400_000_000, 8, 0)
H200 = forecast.load_hardware()["h200"]


def drafts(length=3.0, lookahead=5, drafter=LAYER, target=QWEN, **how) -> Drafts:
    """Drafts that give so many tokens a pass at a lookahead."""
    rate = brentq(lambda rate: sum(rate**i for i in range(lookahead + 1)) - length, 0, 1)
    reached = [round(1e6 * rate**i) for i in range(lookahead + 1)]
    accepted = tuple(itertools.pairwise(reached))
    return Drafts("it", accepted, 1.0, lookahead, target, drafter, how.get("parallel", False), None)


def measured_there(table: str) -> dict[str, dict[str, float]]:
    return json.loads((ROOT / "assets/results/h200-random-weights-3.json").read_text())["tables"][table]


def test_passes_of_an_h200_take_as_long_as_forecast():
    """The ranges of presets/hardware.yaml were set by these 24 passes, with random weights of real shapes."""
    off, inside = [], []
    for name, row in measured_there("Captured passes").items():
        model, _, rest = name.partition(", ")
        width, _, context = rest.partition(" of ")
        at = Setting(H200, context=int(context.replace(",", "")))
        times = [forecast.seconds(SHAPES[model], at, int(width), each) for each in itertools.product(*H200.ranges)]
        middle = forecast.seconds(SHAPES[model], at, int(width), [sum(each) / 2 for each in H200.ranges])
        measured = row["ms with the host"] / 1e3
        off.append(abs(middle / measured - 1))
        inside.append(min(times) <= measured <= max(times))
    assert sum(inside) == 23 and sum(off) / len(off) < 0.12


def test_a_round_that_set_no_range_takes_as_long_as_forecast():
    """Llama-3.1-8B with Llama-3.2-1B as its assistant, lookahead 5."""
    row = measured_there("Rounds of Llama-3.1-8B")["Llama-3.2-1B, greedy"]
    at, middle = Setting(H200), [sum(each) / 2 for each in H200.ranges]
    target = dense(128256, 4096, 32, 32, 8, 128, 14336)
    draft, verify = 5 * forecast.seconds(SHAPES["Llama-3.2-1B"], at, 1, middle), forecast.seconds(target, at, 6, middle)
    assert 1e3 * draft == pytest.approx(row["draft, ms"], rel=0.05)
    assert 1e3 * verify == pytest.approx(row["verify, ms"], rel=0.05)


# Speed-up and tokens per pass of Spec-Bench, Vicuna-7B on an A100 by transformers; lookaheads of its settings.
VICUNA = dense(32000, 4096, 32, 32, 32, 128, 11008)
PUBLISHED = {
    "prompt lookup": (1.66, drafts(1.75, 10, None, VICUNA)),
    "Medusa": (1.71, drafts(2.31, 4, Shape(4 * (4096 * 4096 + 32000 * 4096), 8, 0), VICUNA, parallel=True)),
    "a model of 68 M": (1.52, drafts(2.28, 5, dense(32000, 768, 2, 12, 12, 64, 3072), VICUNA)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_speedups_are_not_far_off(name):
    """They are of eager passes, so that the forecast, which is of captured ones, is the higher one."""
    measured, it = PUBLISHED[name]
    band = forecast.speedup(it, Setting(forecast.load_hardware()["a100"]), len(it.accepted))
    assert 1 < band.mean / measured < 1.3


def test_a_band_is_wider_where_less_was_measured_and_narrows_to_its_middle():
    at = Setting(H200)
    many = drafts()
    few = replace(many, accepted=tuple((round(n / 2e4), round(k / 2e4)) for n, k in many.accepted))
    sure, unsure = (forecast.speedup(it, at, 3) for it in (many, few))
    assert unsure.low < sure.low < sure.mean < sure.high < unsure.high
    assert forecast.speedup(many, at, 0) == forecast.Band(1, 1, 1)


def test_speculation_stops_paying_in_a_batch_and_a_long_context_pays_longer():
    it = drafts(2.0, 5, None)
    short, long = (Setting(H200, context=context) for context in (512, 32768))
    stops = forecast.stops_paying(it, short)
    assert stops and forecast.best(it, replace(short, batch=stops))[0] == 0
    assert (forecast.stops_paying(it, long) or 10**9) > stops, "reading the cache is then most of a pass"
    depths = [forecast.best(it, replace(short, batch=batch))[0] for batch in (1, 32, 128)]
    assert depths == sorted(depths, reverse=True)


def test_a_drafter_of_one_pass_drafts_deeper():
    chain, block = (drafts(3.0, 8, parallel=parallel) for parallel in (False, True))
    at = Setting(H200)
    assert forecast.best(chain, at)[0] < forecast.best(block, at)[0]


def test_what_cannot_be_forecast_is_a_sentence(tmp_path, capsys):
    with pytest.raises(PlaygroundError, match="no hardware 'abacus'"):
        forecast.hardware("abacus")
    old = ROOT / "assets/results/cpu-2-cores-epyc-suite.json"
    with pytest.raises(SystemExit):
        main(["forecast", str(old)])
    assert "no shapes of its models" in capsys.readouterr().err


def test_each_device_names_its_source():
    for device in forecast.load_hardware().values():
        assert device.source.startswith("https://") and device.flops["bfloat16"] > 1e9
