"""Every number of a finished page, computed again from the saved trace by plain arithmetic over its rounds."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
import statistics

import pytest

from playground import export, metrics
from playground.trace import Comparison, Round, Trace
from tests.browser.test_page import ask, finish, open_trace, saved
from tests.ui import fakes

pytestmark = pytest.mark.browser


def noisy(lane: Trace, seed: int, speed: float = 1.0) -> Trace:
    """A lane whose passes vary, with a roll-back and an annotation after each round."""
    rng, now, rounds = random.Random(seed), 0.0, []
    for round_ in lane.rounds:
        draft_s, verify_s = round_.draft_s * speed, round_.verify_s * speed * rng.uniform(0.9, 1.3)
        end_s = now + draft_s + verify_s
        times = {"start_s": now, "draft_s": draft_s, "verify_s": verify_s, "end_s": end_s}
        rounds.append(dataclasses.replace(round_, **times, commit_s=0.003, annotate_s=0.5))
        now = end_s + 0.003
    return dataclasses.replace(lane, rounds=tuple(rounds))


def made(seed: int = 0, repeats: int = 0) -> Comparison:
    lanes = fakes.comparison(60).lanes

    def run(number: int) -> tuple[Trace, ...]:
        return tuple(noisy(lane, 10 * number + i, 1 + 0.2 * number) for i, lane in enumerate(lanes))

    return Comparison(run(seed), repeats=tuple(run(seed + 1 + i) for i in range(repeats)))


def tokens(rounds: tuple[Round, ...]) -> int:
    return sum(sum(token.decision == "accepted" for token in it.drafted) + (it.target is not None) for it in rounds)


def speed(rounds: tuple[Round, ...]) -> float:
    return tokens(rounds) / rounds[-1].end_s


def ratio(lanes: tuple[Trace, ...]) -> float:
    return speed(lanes[1].rounds) / speed(lanes[0].rounds)


def part(rounds: tuple[Round, ...], name: str, unit: float = 1.0) -> float:
    """The mean of a duration."""
    return statistics.fmean(getattr(it, name) for it in rounds) / unit


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"[+-]?\d+(?:\.\d+)?", text)]


def unfolded(page, fold: str, text: str = "") -> str:
    """What the fold shows once it holds `text`; until then it may show what was there before."""
    page.locator(f"{fold} > button").click()
    page.locator(f"{fold} p").first.wait_for()
    page.locator(fold, has_text=text).wait_for()
    return page.locator(fold).inner_text()


def check_lanes(page, comparison: Comparison) -> None:
    for index, lane in enumerate(comparison.lanes):
        shown = page.locator(".lane").nth(index).locator(".figures").inner_text().split("\n")
        rounds, n = lane.rounds, tokens(lane.rounds)
        expected = {
            "First token": f"{1000 * rounds[0].end_s:.0f}ms",
            "Speed": f"{speed(rounds):.1f}tok/s",
            "Tokens": f"{n}",
            "Total": f"{rounds[-1].end_s:.2f}s",
        }
        if index:
            drafted = sum(len(it.drafted) for it in rounds)
            expected |= {
                "Acceptance": f"{100 * (n - len(rounds)) / drafted:.0f}% of {drafted:,} drafted",
            }
        assert dict(zip(shown[::2], shown[1::2], strict=True)) == expected


def median_run(comparison: Comparison) -> Comparison:
    """The pass with the median speed-up, which the page shows; of two in the middle the later one."""
    passes = (comparison.lanes, *comparison.repeats)
    order = sorted(range(len(passes)), key=lambda i: ratio(passes[i]))
    return Comparison(passes[max(order[(len(order) - 1) // 2], order[len(order) // 2])])


def speed_up(comparison: Comparison) -> float:
    """The geometric mean over the passes."""
    return statistics.geometric_mean(map(ratio, (comparison.lanes, *comparison.repeats)))


def terms(comparison: Comparison) -> tuple[float, float, float, float, float, float]:
    """Tokens per check, cost of a check, checking, guessing, the rest, and the factor of the prefill."""
    (base, base_prefill), (ours, prefill) = (
        (lane.rounds, lane.rounds[0].verify_s - part(lane.rounds[1:], "verify_s"))
        for lane in median_run(comparison).lanes
    )
    plain_s = (base[-1].end_s - base_prefill) / len(base)
    cost = (ours[-1].end_s - prefill) / len(ours) / plain_s
    verify, draft = part(ours[1:], "verify_s", plain_s), part(ours, "draft_s", plain_s)
    per_pass = tokens(ours) / len(ours)
    factor = (1 + base_prefill / plain_s / len(base)) / (1 + prefill / plain_s / len(ours) / cost)
    noise = per_pass / cost * factor / speed_up(comparison)  # that of this pass, which the cost takes
    return per_pass, *(noise * it for it in (cost, verify, draft, cost - verify - draft)), factor


def check_verdict(page, comparison: Comparison) -> None:
    """The headline, its interval and its equation."""
    over, runs = speed_up(comparison), 1 + len(comparison.repeats)
    assert page.locator("#verdict .figure").inner_text().removeprefix("≈ ") == f"{over:.2f}×"
    spread = numbers(page.locator("#verdict .range").inner_text())
    assert bool(spread) == bool(comparison.repeats)
    if spread:
        confidence, low, high, *count = spread
        assert confidence == 95 and low < over < high and count == [runs]
    per_pass, cost, verify, draft, rest, prefill = terms(comparison)
    expected = [over, per_pass, cost, verify, draft, *[rest] * (rest >= 0.005)]
    expected += [prefill] * (f"{prefill:.2f}" != "1.00")
    assert numbers(page.locator("#explained .terms").inner_text()) == pytest.approx(expected, abs=0.00501)
    shown = page.locator("#explained .bars .value").all_inner_texts()
    assert list(map(float, shown)) == pytest.approx([per_pass, cost], abs=0.00501)


def check_why(page, comparison: Comparison) -> None:
    """The breakdown begins and ends at the headline, with the headline's own terms."""
    ours, over = median_run(comparison).lanes[1].rounds, speed_up(comparison)
    per_pass, cost, verify, draft, rest, prefill = terms(comparison)
    spread = page.locator("#verdict .range").inner_text().strip("()")
    words = unfolded(page, "#why", spread if comparison.repeats else "")
    drafting = tuple(it for it in ours if it.drafted)
    idle = [tokens(drafting) / len(drafting), round(100 * (1 - len(drafting) / len(ours)))]
    expected = [per_pass, *idle * (len(drafting) < len(ours)), cost, verify, draft, rest, per_pass, cost]
    expected += [*[prefill] * (f"{prefill:.2f}" != "1.00"), over]
    assert numbers(words.split("A check gave ")[1])[: len(expected)] == pytest.approx(expected, abs=0.00501)
    assert (spread in words) == bool(comparison.repeats)
    page.locator("#why .bartext").first.wait_for()
    bars = page.locator("#why .bartext").all_text_contents()
    steps = [per_pass, *(per_pass / c for c in (verify, verify + draft, cost)), over]
    falls = [after - before for before, after in itertools.pairwise(steps)]
    shown = [float(bar.replace("−", "-").rstrip("×")) for bar in bars]
    assert shown == pytest.approx([per_pass, *falls, over], abs=0.00501)


def check_cost(page, comparison: Comparison) -> None:
    page.locator("#cost > button").click()
    page.locator("#hourly-rate input").fill("2")
    page.locator("#hourly-rate input").press("Tab")
    speeds = [f"{speed(lane.rounds):.1f}" for lane in comparison.lanes]
    page.locator("#cost tbody", has_text=speeds[0]).wait_for()
    shown = page.locator("#cost tbody tr td:nth-child(2)").all_inner_texts()
    assert shown == speeds


def test_the_page_of_a_noisy_trace_agrees_with_its_rounds(reader):
    for comparison in (made(), made(repeats=2)):
        open_trace(reader, json.dumps(export.to_json(comparison)))
        figure = f"{speed_up(comparison):.2f}×"
        reader.locator("#verdict .figure", has_text=figure).wait_for()
        reader.locator("#why p").first.wait_for(state="detached")  # folded, and without the words on the run before
        check_lanes(reader, median_run(comparison))
        check_verdict(reader, comparison)
        check_why(reader, comparison)
        check_cost(reader, median_run(comparison))
        ran = reader.locator("#status").inner_text()
        assert ran == "Ran on Fake CPU · bfloat16 · 2 threads.", "nobody waited for it here"


def test_a_stopped_lane_is_compared_over_what_both_have_and_says_so(reader):
    whole, cut = made().lanes
    cut = dataclasses.replace(cut, rounds=cut.rounds[:5], finish="stopped")
    n, both = tokens(cut.rounds), whole.rounds
    while tokens(both[:-1]) >= n:
        both = both[:-1]
    open_trace(reader, json.dumps(export.to_json(Comparison((whole, cut)))))
    expected = f"≈ {speed(cut.rounds) / speed(both):.2f}×"
    reader.locator("#verdict .figure", has_text=expected).wait_for()
    assert f"first {n} tokens" in reader.locator("#explained .badges").inner_text()
    check_lanes(reader, Comparison((whole, cut)))


@pytest.mark.slow
def test_strip_and_history_name_the_speedup_that_the_page_shows(visit, url):
    page = visit()
    ask(page, "Compare TCP and UDP.", 24)
    page.locator("#which > button").click()
    page.locator("#every").click()
    finish(page)
    page.locator("#run:enabled").wait_for()
    comparison = saved(page)
    shown = page.locator("#drafters tr[aria-current]").get_attribute("data-lane")
    assert shown != comparison.others[0].lane.name, "the fastest is shown, not the first"
    figure = page.locator("#verdict .figure").inner_text().removeprefix("≈ ")
    assert figure == f"{metrics.measured(comparison, shown).speedup:.2f}×"
    speedup = page.locator("#runs label").inner_text().split(" · ")[-1]
    assert figure in speedup
    page.goto(f"{url}history")
    title = f"{speedup}, {shown} and 1 more: Compare TCP and UDP. · fake-target"
    page.locator("#history a", has_text=title).first.wait_for()
