"""A command to deploy is the setting that was measured, or says that it was not and how to measure it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

import pytest

from playground import metrics, theory
from playground.drafting_methods import MATCHED
from playground.lane import Lane
from playground.trace import Comparison, PassTime, Trace
from playground.ui import panels
from playground.views import comparison as view  # noqa: F401  # registers its report
from playground.views import engines, headline, report
from playground.views.engines import Given
from playground.views.stage import replaying
from tests.examples import drafted_round, plain_round, trace, tree_round
from tests.views.test_engines import lanes

TIMES = tuple(PassTime(tokens, 0.1 + 0.03 * (tokens - 1)) for tokens in (1, 2, 4, 8, 16))
BASE = trace([plain_round(9 if i else 0, start_s=0.1 * i) for i in range(32)])
LOOKUP = Lane("Prompt lookup", "t", "ngram", lookahead=10, policy="auto")


def made(lane: Lane, accepts: Sequence[int] = (1, 2, 0, 2, 1, 0), drafted: int = 3) -> Trace:
    """A run of the lane over 30 tokens or more: `drafted` tokens a check, of which so many are accepted in turn."""
    rounds, now = [plain_round(0)], 0.1
    while sum(len(round_.tokens) for round_ in rounds) < 30:
        accepted = accepts[len(rounds) % len(accepts)]
        spent = {"draft_s": 0.0, "verify_s": 0.1 + 0.03 * drafted}
        rounds.append(drafted_round([9] * drafted, accepted=accepted, own=9, start_s=now, **spent))
        now = rounds[-1].end_s
    found = trace(rounds, drafter=lane.drafter)
    return replace(found, lane=lane, environment=replace(found.environment, pass_times=TIMES))


def vllm(found: Sequence[engines.Settings]) -> tuple[dict, engines.Settings]:
    it = next(it for it in found if it.engine == "vLLM")
    return json.loads(shlex.split(it.text)[-1]), it


def test_a_policy_is_exported_as_the_constant_lookahead_that_is_best_by_its_run_and_without_a_number():
    comparison = Comparison((BASE, made(LOOKUP)))
    config, it = vllm(engines.of_comparison(comparison, LOOKUP))
    best = theory.constant(BASE, comparison.others[0])
    assert best.by_costs and config["num_speculative_tokens"] == best.lookahead < 4
    assert "×" not in it.note and "Not measured as exported" in it.note and "policy auto" in it.note
    command = shlex.split(re.search("`(.*)`", it.note)[1])
    assert command[3:] == [
        "compare", "--target", "t", "--drafter", "ngram", "--lookahead", str(best.lookahead), "--policy", "constant",
        "--dtype", "float32", "--prompt=a prompt",
    ]  # fmt: skip
    assert (it.drafter, it.lookahead) == ("ngram", best.lookahead), "which a press runs"


def test_a_number_is_over_the_command_whose_very_lane_was_measured_and_it_is_the_same_everywhere():
    best = theory.constant(BASE, made(LOOKUP)).lookahead
    constant = replace(LOOKUP, name="Constant", lookahead=best, policy="constant")
    comparison = Comparison((BASE, made(LOOKUP), made(constant, drafted=best)))
    figure = headline.speedup(metrics.measured(comparison, "Constant"))
    for lane, by in ((LOOKUP, "Constant"), (constant, "")):
        config, it = vllm(engines.of_comparison(comparison, lane))
        assert (config["prompt_lookup_min"], config["prompt_lookup_max"]) == MATCHED[::-1]
        assert it.note.startswith(f"Measured as exported: {figure}.") and (it.drafter, it.lane) == ("", by)
    alone = Comparison((BASE, made(constant, drafted=best)))
    said = f"Measured as exported: {headline.speedup(metrics.measured(alone, 'Constant'))}."
    shown = report.of(alone)
    for text in (
        report.text(shown),
        report.markdown(shown),
        replaying(alone).value()["deploy"]["note"],
        panels.blocks(engines.of_comparison(alone, constant)),
    ):
        assert said in text


def test_no_number_is_over_a_command_that_drafts_otherwise():
    """Of all methods and engines."""
    for lane, method in lanes():
        for it in engines.of_ranked({lane: Given("1.23×", 4)}, method):
            _, differs = engines._settings(it.engine, lane, method, None)
            measured = bool(it.text) and not differs and lane.drafter != "none"
            assert ("Measured as exported: 1.23×" in it.note) == measured, it
            assert ("Not measured" in it.note) == bool(differs), it
    lookup = replace(LOOKUP, policy="constant")
    measured = {it.engine for it in engines.of_ranked({lookup: Given("1.23×", 10)}) if "1.23×" in it.note}
    assert measured == {"vLLM", "TensorRT-LLM", "transformers"}, "others match otherwise"


def test_transformers_has_the_policies_of_draft_models():
    for policy in ("heuristic", "confidence"):
        lane = Lane("x", "t", "assistant", "owner/drafter", lookahead=4, policy=policy)
        found = {it.engine: it for it in engines.of_ranked({lane: Given("1.20×", 2, "Chosen.")})}
        assert "1.20×" in found["transformers"].note and "num_assistant_tokens = 4" in found["transformers"].text
        assert "1.20×" not in found["vLLM"].note and '"num_speculative_tokens": 2' in found["vLLM"].text


@pytest.mark.parametrize("drafter", ["mtp", "heads", "tree"])
def test_a_method_that_no_engine_has_has_no_command_and_says_why(drafter):
    lane = Lane("x", "starter", drafter, "starter-heads" if drafter == "heads" else "starter-mtp", lookahead=10)
    comparison = Comparison((BASE, made(lane)))
    found = engines.of_comparison(comparison, lane)
    assert found and not any(it.text for it in found) and engines.first(found) is None
    said = engines.text(engines.shown(found))
    assert said.startswith("# No engine") and "playground" in said and "ngram" not in said
    assert said in report.text(report.of(comparison))


def test_the_nearest_is_a_drafter_that_was_seen_to_be_faster_here():
    mtp = Lane("MTP layer", "starter", "mtp", "starter-mtp", lookahead=2)
    lookup = replace(LOOKUP, target="starter", lookahead=2, policy="constant")
    for accepts, faster in (((2,), True), ((0,), False)):
        comparison = Comparison((BASE, made(mtp, (2,), 2), made(lookup, accepts, 2)))
        found = engines.first(engines.of_comparison(comparison, mtp))
        assert bool(found) == faster
        if found:
            figure = headline.speedup(metrics.measured(comparison, "Prompt lookup"))
            assert f"The nearest is Prompt lookup (2 ahead). Measured as exported: {figure}." in found.note
            assert found.lane == "Prompt lookup"


def test_an_engine_without_trees_is_given_the_chain_of_the_tree_s_network_unmeasured():
    tree = Lane("Draft tree", "owner/target", "tree", "owner/drafter", lookahead=10, policy="auto")
    rounds = (plain_round(0), *(tree_round(start_s=0.1 + i / 5) for i in range(9)))
    comparison = Comparison((BASE, replace(made(tree), rounds=rounds)))
    found = {it.engine: it for it in engines.of_comparison(comparison, tree, "eagle3")}
    config, it = vllm([*found.values()])
    assert config["method"] == "eagle3" and config["num_speculative_tokens"] == 2, "one more than it accepted"
    assert "×" not in it.note and "drafted a tree" in it.note and (it.drafter, it.lookahead) == ("eagle3", 2)
    assert "--speculative-num-steps 10" in found["SGLang"].text and "Not measured: SGLang" in found["SGLang"].note


@pytest.mark.parametrize(
    ("lane", "method", "types"),
    [
        (Lane("x", "owner/t", "composite", "native", lookahead=4), "mtp", "ngram-mod,draft-mtp"),
        (Lane("x", "owner/t", "adaptive", "owner/d", lookahead=4), "dflash", "ngram-mod,draft-dflash"),
        (Lane("x", "owner/t", "composite", "owner/d", lookahead=4), "eagle3", "ngram-mod,draft-eagle3"),
        (Lane("x", "starter", "composite", "starter-mtp", lookahead=4), None, "ngram-mod,draft-eagle3"),
    ],
)
def test_llama_server_combines_a_lookup_with_a_draft_as_a_chain_that_must_be_measured(lane, method, types):
    found = {it.engine: it for it in engines.of_ranked({lane: Given("1.50×", 3)}, method)}
    assert [name for name, it in found.items() if it.text] == ["llama-server"]
    it = found["llama-server"]
    words = shlex.split(it.text)
    assert words[words.index("--spec-type") + 1] == types and words[words.index("--spec-draft-n-max") + 1] == "3"
    assert "chain" in it.note and "Not measured" in it.note and "--server URL" in it.note and "×" not in it.note
    assert it.drafter == "", "no lane here drafts so"
    written = it.text.startswith("python -m playground export-drafter starter-eagle3 ")
    assert written == (lane.target == "starter")


def test_a_long_prompt_is_a_file_in_the_command_that_measures():
    for prompt, said in (("word " * 100, "--prompt-file=PROMPT.txt"), ("two\nlines", "--prompt-file=PROMPT.txt")):
        comparison = Comparison(
            tuple(replace(it, request=replace(it.request, prompt=prompt)) for it in (BASE, made(LOOKUP)))
        )
        _, it = vllm(engines.of_comparison(comparison, LOOKUP))
        assert said in it.note and "word" not in it.note
