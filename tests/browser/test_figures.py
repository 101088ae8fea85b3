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
            "TTFT": f"{1000 * rounds[0].end_s:.0f}ms",
            "Speed": f"{speed(rounds):.1f}tok/s",
            "Tokens": f"{n}",
            "Total": f"{rounds[-1].end_s:.2f}s",
        }
        if index:
            drafted = sum(len(it.drafted) for it in rounds)
            expected |= {
                "Acceptance": f"{100 * (n - len(rounds)) / drafted:.0f}%",
            }
        assert dict(zip(shown[::2], shown[1::2], strict=True)) == expected


def median_run(comparison: Comparison) -> Comparison:
    """The pass with the median speed-up, which the page shows."""
    passes = sorted((comparison.lanes, *comparison.repeats), key=ratio)
    return Comparison(passes[(len(passes) - 1) // 2])


def check_verdict(page, comparison: Comparison) -> None:
    """The headline, its range and its equation."""
    runs = [ratio(lanes) for lanes in (comparison.lanes, *comparison.repeats)]
    assert page.locator("#verdict .figure").inner_text().removeprefix("≈ ") == f"{statistics.median(runs):.2f}×"
    spread = numbers(page.locator("#verdict .range").inner_text())
    assert spread == pytest.approx([min(runs), max(runs), len(runs)] if comparison.repeats else [], abs=0.00501)
    base, ours = (lane.rounds for lane in median_run(comparison).lanes)
    plain_s = base[-1].end_s / len(base)
    cost = ours[-1].end_s / len(ours) / plain_s
    verify, draft = (part(ours, name, plain_s) for name in ("verify_s", "draft_s"))
    expected = [statistics.median(runs), tokens(ours) / len(ours), cost, verify, draft]
    if cost - verify - draft >= 0.005:
        expected.append(cost - verify - draft)
    assert numbers(page.locator("#verdict .terms").inner_text()) == pytest.approx(expected, abs=0.00501)
    shown = page.locator("#verdict .bars .value").all_inner_texts()
    assert list(map(float, shown)) == pytest.approx([tokens(ours) / len(ours), cost], abs=0.00501)


def check_why(page, comparison: Comparison) -> None:
    """The breakdown ends at the headline, with the headline's own terms."""
    median = median_run(comparison)
    base, ours = (lane.rounds for lane in median.lanes)
    plain_s = base[-1].end_s / len(base)
    cost = ours[-1].end_s / len(ours) / plain_s
    wider = (part(ours[1:], "verify_s") - part(base[1:], "verify_s")) / plain_s
    draft = part(ours, "draft_s", plain_s) - part(base, "draft_s", plain_s)
    all_verify = part(ours, "verify_s", plain_s) - part(base, "verify_s", plain_s)
    rest = cost - 1 - all_verify - draft
    per_pass = tokens(ours) / len(ours)
    runs = [ratio(lanes) for lanes in (comparison.lanes, *comparison.repeats)]
    spread = f"the range is {min(runs):.2f} to {max(runs):.2f}, {len(runs)} runs."
    words = unfolded(page, "#why", spread if comparison.repeats else "")
    drafting = tuple(it for it in ours if it.drafted)
    ideal = tokens(drafting) / len(drafting)
    idle = [ideal, per_pass, round(100 * (1 - len(drafting) / len(ours)))] if len(drafting) < len(ours) else [per_pass]
    expected = [*idle, cost, 1, wider, draft, rest, all_verify - wider, per_pass, cost, ratio(median.lanes)]
    assert numbers(words.split("A pass gave ")[1])[: len(expected)] == pytest.approx(expected, abs=0.00501)
    assert (spread in words) == bool(comparison.repeats)
    page.locator("#why .bartext").first.wait_for()
    bars = page.locator("#why .bartext").all_text_contents()
    steps = [per_pass, *(per_pass / c for c in (1 + wider, 1 + wider + draft, 1 + wider + draft + rest, cost))]
    falls = [after - before for before, after in itertools.pairwise([ideal, *steps])]
    shown = [float(bar.replace("−", "-").rstrip("×")) for bar in bars]
    assert shown == pytest.approx([ideal, *falls, ratio(median.lanes)], abs=0.00501)


def check_cost(page, comparison: Comparison) -> None:
    page.locator("#cost > button").click()
    speeds = [f"{speed(lane.rounds):.1f}" for lane in comparison.lanes]
    page.locator("#cost tbody", has_text=speeds[0]).wait_for()
    shown = page.locator("#cost tbody tr td:nth-child(2)").all_inner_texts()
    assert shown == speeds


def test_the_page_of_a_noisy_trace_agrees_with_its_rounds(reader):
    for comparison in (made(), made(repeats=2)):
        open_trace(reader, json.dumps(export.to_json(comparison)))
        figure = f"{statistics.median(map(ratio, (comparison.lanes, *comparison.repeats))):.2f}×"
        reader.locator("#verdict .figure", has_text=figure).wait_for()
        reader.locator("#why p").first.wait_for(state="detached")  # folded, and without the words on the run before
        check_lanes(reader, median_run(comparison))
        check_verdict(reader, comparison)
        check_why(reader, comparison)
        check_cost(reader, median_run(comparison))
        every = list(itertools.chain(comparison.lanes, *comparison.repeats))
        ended = sum(lane.rounds[-1].end_s for lane in every)
        annotated = sum(it.annotate_s for lane in every for it in lane.rounds)
        assert f"{ended + annotated:.1f} s" in reader.locator("#status").inner_text()


def test_a_stopped_lane_is_compared_over_what_both_have_and_says_so(reader):
    whole, cut = made().lanes
    cut = dataclasses.replace(cut, rounds=cut.rounds[:5], finish="stopped")
    n, both = tokens(cut.rounds), whole.rounds
    while tokens(both[:-1]) >= n:
        both = both[:-1]
    open_trace(reader, json.dumps(export.to_json(Comparison((whole, cut)))))
    expected = f"≈ {speed(cut.rounds) / speed(both):.2f}×"
    reader.locator("#verdict .figure", has_text=expected).wait_for()
    assert f"over the first {n} tokens, as far as both lanes got" in reader.locator("#verdict .badges").inner_text()
    check_lanes(reader, Comparison((whole, cut)))


def test_strip_and_history_name_the_speedup_that_the_page_shows(visit, url):
    page = visit()
    ask(page, "Compare TCP and UDP.", 24)
    page.locator("#every").click()
    finish(page)
    page.locator("#run:enabled").wait_for()
    comparison = saved(page)
    shown = page.locator(".lane h2").nth(1).inner_text()
    assert shown != comparison.others[0].lane.name, "the fastest is shown, not the first"
    figure = page.locator("#verdict .figure").inner_text().removeprefix("≈ ")
    assert figure == f"{ratio(metrics.beside(comparison, shown).lanes):.2f}×"
    speedup = page.locator("#runs label").inner_text().split(" · ")[-1]
    assert figure in speedup
    page.goto(f"{url}history")
    title = f"{shown} and 1 more on fake-target, {speedup}: Compare TCP and UDP."
    page.locator("#history a", has_text=title).first.wait_for()
