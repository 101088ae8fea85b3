"""The benchmark compares like with like; how fast anything is, no test asserts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import cpu, parts, turns
from benchmarks.__main__ import main
from playground.backends import llama_server
from playground.errors import PlaygroundError
from playground.lane import Request, assisted_lane, standard_lane
from playground.models.load import LoadedModel
from playground.models.store import LoadedPair
from playground.presets import custom_pair, load_pairs
from playground.trace import PassTime
from tests import architectures, examples
from tests.packing import needs_packing

packed = pytest.param("float16", marks=needs_packing)


def run(folder, only, dtype="float32", max_new_tokens=8):
    """The result after the last part, what was said, and the parts that failed."""
    said, kept = [], []
    pair = custom_pair(str(folder), None)
    options = dict(runs=1, max_new_tokens=max_new_tokens, dtype=dtype, device="cpu")
    failed = parts.run(pair, only=only, say=said.append, keep=kept.append, **options)
    return kept[-1], said, failed


@pytest.mark.parametrize("dtype", ["float32", packed])
def test_each_side_makes_the_same_tokens_in_float32(tiny_folder, dtype):
    result, said, _ = run(tiny_folder, ["standard", "ngram", "assistant"], dtype)
    ratios = [part for part in result.results if part.unit == "×"]
    assert [part.identical for part in ratios] == [True] * 3
    assert all(part.median > 0 for part in ratios)
    assert [trace.finish for part in ratios for trace in part.traces] == ["length"] * 3
    assert result.environment.device == "cpu"
    assert parts.BenchResult.from_json(json.loads(json.dumps(result.to_json()))).results[0].median == ratios[0].median
    assert any("against generate(assistant_model)" in line and "same tokens" in line for line in said)


def test_generate_is_asked_the_same_whatever_the_checkpoints_own_defaults_are(tiny_folder):
    config = json.loads((tiny_folder / "generation_config.json").read_text())
    config |= {"repetition_penalty": 1.9, "no_repeat_ngram_size": 2}
    (tiny_folder / "generation_config.json").write_text(json.dumps(config))
    result, _, _ = run(tiny_folder, ["standard", "ngram"], max_new_tokens=24)
    assert [part.identical for part in result.results if part.unit == "×"] == [True] * 2


def test_an_unknown_part_is_named(tiny_folder):
    with pytest.raises(PlaygroundError, match="luck"):
        run(tiny_folder, ["luck"])


def test_parts_that_another_process_runs_take_a_preset(tiny_folder):
    with pytest.raises(PlaygroundError, match="memory, page"):
        run(tiny_folder, ["page", "memory", "ngram"])


def test_the_memory_of_a_process_that_failed_is_no_result(tiny_folder, monkeypatch):
    monkeypatch.setattr("sys.executable", shutil.which("false"))  # fails at once
    models = LoadedPair(custom_pair(str(tiny_folder), None), None)
    with pytest.raises(PlaygroundError, match="compare --pair custom` failed"):
        parts._memory(parts.Bench(models, None, 1, 8, "auto"))


def test_no_more_is_asked_for_than_the_context_holds(tiny_folder):
    result, _, _ = run(tiny_folder, ["ngram"], max_new_tokens=400)
    assert result.results[0].identical


@pytest.mark.parametrize("name", load_pairs()[0])
def test_an_assistant_is_cut_from_every_presets_target(name):
    pair = parts.with_assistant(load_pairs()[0][name], "the first layers")
    assert assisted_lane(pair, "assistant").assistant == "the first layers"


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "gemma4_text", "glm4_moe_lite"])
def test_the_assistant_of_a_presets_architecture_drafts_as_in_generate(architecture, tiny_tokenizer, monkeypatch):
    assert parts._assistant(bench_of(architecture, tiny_tokenizer, monkeypatch))[0].identical


def test_a_recurrent_target_has_no_such_assistant_in_a_sentence(tiny_tokenizer, monkeypatch):
    with pytest.raises(PlaygroundError, match="cannot draft here"):
        parts._assistant(bench_of("qwen3_5_text", tiny_tokenizer, monkeypatch))


def bench_of(architecture, tokenizer, monkeypatch):
    for field in ("vocab_size", "vocab_size_per_layer_input"):
        monkeypatch.setitem(architectures.SIZES, field, 300)
    target = LoadedModel(architectures.tiny(architecture), tokenizer, "tiny", "tiny")
    return parts.Bench(LoadedPair(custom_pair("tiny", None), target), None, 1, 8, "auto")


def test_what_a_part_measured_stays_whatever_it_then_raises(tiny_folder, monkeypatch):
    def breaks(bench):
        yield parts.measured("the first half", [1.0])
        raise NotImplementedError

    monkeypatch.setitem(parts.PARTS, "standard", breaks)
    result, said, failed = run(tiny_folder, ["standard", "ngram"])
    assert failed == ["standard"] and any("NotImplementedError" in line for line in said)
    assert result.results[0].what == "the first half" and len(result.results) > 1


def test_without_llama_cpp_there_is_a_sentence(monkeypatch):
    monkeypatch.setattr(cpu.starter, "fetch_gguf", lambda progress: Path("starter.gguf"))
    monkeypatch.setattr(llama_server, "find_spec", lambda name: None)
    monkeypatch.setattr(llama_server.shutil, "which", lambda name: None)
    with pytest.raises(PlaygroundError, match=r"playground\[llama\]"):
        cpu.measured(1, 8, "mtp", print)


def test_the_stopwatch_leaves_the_prompt_and_the_first_token_out(monkeypatch):
    times = iter([0.0, 5.0, 5.5, 6.0])
    monkeypatch.setattr(cpu.time, "perf_counter", lambda: next(times))
    watch = cpu.Stopwatch()
    for _ in range(4):
        watch.put(None)
    assert watch.tokens_per_second == 2.0


def test_the_table_has_a_row_for_each_decoder_with_what_is_known_of_it():
    passes = PassTime(1, 0.01), PassTime(8, 0.016)
    ours = cpu.Decoder("native, 4 bits", (100.0, 120.0), (150.0, 150.0), True, passes, 8.0)
    shown = cpu.table([ours, cpu.Decoder("llama.cpp, 1 thread", (55.0, 55.0))]).rows
    assert shown[0][:6] == ("native, 4 bits", "110 (100 to 120)", "1.00", "150 (150 to 150)", "1.38", "yes")
    assert shown[0][6:] == ("10.00", "", "", "16.00", "", "", "", "8.00")
    assert shown[1] == ("llama.cpp, 1 thread", "55 (55 to 55)", "0.50", *[""] * 11)


@pytest.mark.parametrize("number", ["0", "-1", "x"])
def test_it_runs_once_at_least(number, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["speed", f"--runs={number}"])
    assert exit_.value.code == 2
    assert f"--runs: {number!r} is" in capsys.readouterr().err


def test_turns_are_held_against_lanes_alone(tiny_folder, tmp_path):
    out = tmp_path / "turns.json"
    main(["turns", "--target", str(tiny_folder), "--drafters", "ngram", "--runs", "3", "--max-new-tokens", "160",
          "--dtype", "float32", "--json", str(out)])  # fmt: skip
    (found,) = json.loads(out.read_text())
    assert found["drafter"] == "ngram" and found["rounds"] >= 3 * (turns.LEAST - 1)
    for low, high in ((1, 0), (0, 2)):
        assert found["speedup"][low] <= found["speedup"][high]


class Disturbed:
    """Lanes whose rounds take a twentieth longer after a round of another lane; every 40th round meets a burst."""

    def __init__(self):
        self.last, self.taken = None, 0

    def load(self, lane, progress):
        pass

    def warm_up(self, lane, request, stopped):
        pass

    def run(self, lane, request):
        return SimpleNamespace(rounds=self.rounds(lane, request.max_new_tokens), turn=4)

    def rounds(self, lane, tokens):
        for i in range(tokens):
            verify_s = (
                turns.SECONDS
                * (1.05 if lane.drafter == "none" and self.last != lane else 1)
                * (1 + (self.taken % 40 == 0))
            )
            self.last, self.taken = lane, self.taken + 1
            yield examples.plain_round(i, verify_s=verify_s)


def test_rounds_that_take_longer_by_turns_are_told_through_bursts():
    pair = load_pairs()[0]["starter"]
    lanes = [standard_lane(pair), assisted_lane(pair, "ngram", 4)]
    found = turns._measured(Disturbed(), lanes, Request("x", max_new_tokens=60), 5)
    assert found.standard[0] == pytest.approx(1.05) and found.assisted[0] == pytest.approx(1.0)
    assert found.speedup == pytest.approx((1.05,) * 3)
    assert found.rounds == 5 * 8 * (turns.LEAST - 1), "of nine segments, the first left out"


def test_answers_that_end_before_a_turn_are_told_in_words():
    pair = load_pairs()[0]["starter"]
    lanes = [standard_lane(pair), assisted_lane(pair, "ngram", 4)]
    with pytest.raises(PlaygroundError, match="--max-new-tokens"):
        turns._measured(Disturbed(), lanes, Request("x", max_new_tokens=4), 2)
