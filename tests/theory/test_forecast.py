"""The forecast for other hardware: its formulas, and its error on what was measured and published."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml
from scipy.optimize import brentq

from playground import ROOT
from playground.commands import main
from playground.commands.forecast import checks
from playground.errors import PlaygroundError
from playground.theory import forecast
from playground.theory.forecast import Drafts, Hardware, Setting
from playground.trace import Environment, Shape


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


def test_speculation_stops_paying_in_a_batch_and_a_long_context_pays_longer():
    it = drafts(2.0, 5, None)
    short, long = (Setting(H200, context=context) for context in (512, 32768))
    pay = [[forecast.best(it, replace(at, batch=batch)).pays for batch in (1, 16, 256)] for at in (short, long)]
    assert pay == [[True, True, False], [True, True, True]], "reading a long cache is most of a pass"
    depths = [forecast.best(it, replace(short, batch=batch)).lookahead for batch in (1, 32, 128)]
    assert depths == sorted(depths, reverse=True)


def test_a_drafter_of_one_pass_drafts_deeper():
    chain, block = (drafts(3.0, 8, parallel=parallel) for parallel in (False, True))
    at = Setting(H200)
    assert forecast.best(chain, at).lookahead < forecast.best(block, at).lookahead


def test_what_cannot_be_forecast_is_a_sentence(tmp_path, capsys):
    with pytest.raises(PlaygroundError, match="no hardware 'abacus'"):
        forecast.hardware("abacus")
    old = ROOT / "assets/results/cpu-2-cores-epyc-suite.json"
    with pytest.raises(SystemExit):
        main(["forecast", str(old)])
    assert "no shapes of its models" in capsys.readouterr().err


def test_each_device_names_its_source():
    for device in forecast.load_hardware().values():
        assert device.source.startswith("https://") and device.rate("bfloat16") > 1e11


# Machines of which the truth is known: it is one point of the ranges that a forecast assumes, or it is not.


def truth(it: Drafts, at: Setting, lookahead: int, tokens: float, shares, slow=1.0) -> float:
    """The speed-up of a machine that reaches these shares. `slow`: how many times longer than that its drafts take."""
    plain, verify = (forecast.seconds(it.target, at, at.batch * n, shares) for n in (1, lookahead + 1))
    return tokens * plain / (verify + slow * lookahead * forecast.seconds(it.drafter, at, at.batch, shares))


def machines(count: int):
    """Drafters whose counts were drawn, each on a machine of its own: what was seen, the tokens per check of each
    lookahead in truth, where, and the machine's shares."""
    rng = np.random.default_rng(7)
    for _ in range(count):
        rates, reached, accepted = rng.uniform(0.15, 0.95) * 0.9 ** np.arange(6), 150, []
        for rate in rates:
            accepted.append((reached, reached := int(rng.binomial(reached, rate))))
        layer = Shape(int(10 ** rng.uniform(7, 10)), int(rng.integers(8, 200)), 0)
        it = Drafts("it", tuple(accepted), 1.0, 6, QWEN, layer, False, None)
        at = Setting(H200, batch=int(rng.choice([1, 8, 64, 256])))
        yield it, np.concatenate([[1], 1 + np.cumsum(np.cumprod(rates))]), at, [rng.uniform(*it) for it in H200.ranges]


def test_a_lookahead_that_pays_by_its_low_end_pays_and_by_its_middle_it_need_not():
    by_low, by_middle, never = [], [], []
    for it, tokens, at, shares in machines(200):
        gains = [truth(it, at, k, tokens[k], shares) for k in range(1, it.most + 1)]
        advice = forecast.best(it, at)
        if advice.pays:
            by_low.append(gains[advice.lookahead - 1])
        if advice.never:
            never.append(max(gains))
        middle = max((forecast.speedup(it, at, k).mean, k) for k in range(1, it.most + 1))
        if middle[0] > 1:
            by_middle.append(gains[middle[1] - 1])
    assert len(by_low) > 50 and min(by_low) > 1
    assert len(never) > 5 and max(never) <= 1
    assert sum(gain <= 1 for gain in by_middle) > 2


HERE = Environment({}, "Linux", "cuda", "NVIDIA H200", "bfloat16", None, (), "2026-01-01T00:00:00Z")


@pytest.mark.parametrize(("slow", "withheld"), [(1.0, False), (8.0, True)])
def test_a_forecast_that_is_wrong_for_the_machine_of_the_run_is_withheld(slow, withheld):
    wrong, n = 0, 40
    for it, tokens, at, shares in machines(n):
        here = replace(at, batch=1, context=128)
        seen = replace(it, lookahead=4, measured=truth(it, here, 4, tokens[4], shares, slow))
        trusted, (said,) = checks([seen], HERE, ())
        assert (trusted == []) == said.endswith("its forecast is withheld.")
        wrong += not trusted
    assert wrong > 0.9 * n if withheld else wrong < 0.05 * n


def test_a_run_on_a_machine_that_is_in_no_list_is_not_checked_and_says_so():
    unknown = replace(HERE, device_name="Abacus 9")
    it = replace(drafts(), measured=99.0)
    (trusted, (said,)), mine = checks([it], unknown, ()), Hardware("Mine", {"bfloat16": 1.0}, 100.0, "Abacus 9")
    assert trusted == [it] and "not checked" in said
    assert checks([it], unknown, [mine])[0] == [], "a file of one's own names it"


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("NVIDIA L40S", "NVIDIA L40S"), ("NVIDIA L4", "NVIDIA L4"), ("NVIDIA A10", "NVIDIA A10"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 SXM 80 GB"), ("Tesla T4", "NVIDIA T4"),
        ("Apple M4 Max", "Apple M4 Max, 40 GPU cores"), ("NVIDIA B200", "NVIDIA B200"),
    ],
)  # fmt: skip
def test_a_device_is_found_by_the_words_of_its_name(name, title):
    assert forecast.hardware_of(replace(HERE, device_name=name)).title == title


def test_a_device_without_bfloat16_computes_in_float16():
    (t4,), (h100,) = forecast.hardware("t4"), forecast.hardware("h100")
    assert [t4.format(it) for it in ("bfloat16", "float16", "int4")] == ["float16", "float16", "int4"]
    assert t4.rate("bfloat16") == t4.rate("float16") == pytest.approx(65.1e12) and h100.format("bfloat16") == "bfloat16"


MINE = {"title": "Mine", "bandwidth": 256, "tflops": {"float16": 59.4}}


@pytest.mark.parametrize("written", [json.dumps, yaml.safe_dump], ids=["JSON", "YAML"])
def test_hardware_of_one_s_own_is_read_from_a_file(tmp_path, written):
    path = tmp_path / "mine"
    path.write_text(written({"mine": MINE, "other": MINE | {"product_us": [2, 3]}}))
    mine, other = forecast.hardware(str(path))
    assert (mine.bandwidth, mine.rate("float16"), other.product_us) == (256, 59.4e12, (2, 3))
    assert forecast.best(drafts(), Setting(mine, "float16")).band.mean > 1


WRONG = {
    "no speed": ({"title": "Mine", "bandwidth": 1}, "mine.tflops should be there"),
    "text": (MINE | {"bandwidth": "fast"}, "mine.bandwidth should be a number; it is 'fast'"),
    "nothing": (MINE | {"bandwidth": 0}, "mine.bandwidth should be greater than 0"),
    "no bandwidth": ({"title": "Mine", "tflops": {"float16": 1}}, "mine.bandwidth should be there"),
    "no 16 bits": (MINE | {"tflops": {"int8": 1}}, "tflops of Mine should have bfloat16"),
    "another format": (MINE | {"tflops": {"float16": 1, "fp4": 2}}, "fp4"),
    "a range": (MINE | {"memory": [0.9, 0.1]}, "memory of Mine should be [low, high]"),
    "another key": (MINE | {"speed": 1}, "mine.speed should be one of the known keys"),
}


@pytest.mark.parametrize(("data", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_of_hardware_is_a_sentence(tmp_path, data, said):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"mine": data}))
    with pytest.raises(PlaygroundError, match=re.escape(said)) as raised:
        forecast.hardware(str(path))
    assert str(raised.value).startswith("mine.json: ")
    path.write_text("{")
    with pytest.raises(PlaygroundError, match="neither YAML nor JSON"):
        forecast.hardware(str(path))
