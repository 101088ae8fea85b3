"""The benchmark compares like with like; how fast anything is, no test asserts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import cpu, parts
from benchmarks.__main__ import main
from playground import results
from playground.backends import llama_server
from playground.errors import PlaygroundError
from playground.models.store import LoadedPair
from playground.presets import custom_pair
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
    assert results.load(json.dumps(results.to_json(result))).results[0].median == ratios[0].median
    assert any("against generate(assistant_model)" in line and "same tokens" in line for line in said)


def test_generate_is_asked_the_same_whatever_the_checkpoints_own_defaults_are(tiny_folder):
    config = json.loads((tiny_folder / "generation_config.json").read_text())
    config |= {"repetition_penalty": 1.9, "no_repeat_ngram_size": 2}
    (tiny_folder / "generation_config.json").write_text(json.dumps(config))
    result, _, _ = run(tiny_folder, ["standard", "ngram"], max_new_tokens=24)
    assert [part.identical for part in result.results if part.unit == "×"] == [True] * 2


def test_an_unknown_part_is_named(tiny_folder):
    with pytest.raises(PlaygroundError, match="no part luck"):
        run(tiny_folder, ["luck"])


def test_parts_that_another_process_runs_take_a_preset(tiny_folder):
    with pytest.raises(PlaygroundError, match="memory, page takes a preset"):
        run(tiny_folder, ["page", "memory", "ngram"])


def test_the_memory_of_a_process_that_failed_is_no_result(tiny_folder, monkeypatch):
    monkeypatch.setattr("sys.executable", shutil.which("false"))  # fails at once
    models = LoadedPair(custom_pair(str(tiny_folder), None), None)
    with pytest.raises(PlaygroundError, match="compare --pair custom` failed"):
        parts._memory(parts.Bench(models, None, 1, 8, "auto"))


def test_no_more_is_asked_for_than_the_context_holds(tiny_folder):
    result, _, _ = run(tiny_folder, ["ngram"], max_new_tokens=400)
    assert result.results[0].identical


def test_a_part_that_fails_is_named_and_the_others_are_measured(tiny_folder):
    result, said, failed = run(tiny_folder, ["cpu", "ngram"])
    assert failed == ["cpu"] and any("Choose --pair starter" in line for line in said)
    assert result.results[0].identical


def test_without_llama_cpp_there_is_a_sentence(monkeypatch):
    monkeypatch.setattr(cpu.starter, "fetch_gguf", lambda progress: Path("starter.gguf"))
    monkeypatch.setattr(llama_server, "find_spec", lambda name: None)
    monkeypatch.setattr(llama_server.shutil, "which", lambda name: None)
    with pytest.raises(PlaygroundError, match=r"playground\[llama\]"):
        cpu.tokens_per_second(None, None, None, [], 1, print)


def test_the_stopwatch_leaves_the_prompt_and_the_first_token_out(monkeypatch):
    times = iter([0.0, 5.0, 5.5, 6.0])
    monkeypatch.setattr(cpu.time, "perf_counter", lambda: next(times))
    watch = cpu.Stopwatch()
    for _ in range(4):
        watch.put(None)
    assert watch.tokens_per_second == 2.0


@pytest.mark.parametrize("number", ["0", "-1", "x"])
def test_it_runs_once_at_least(number, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["speed", f"--runs={number}"])
    assert exit_.value.code == 2
    assert f"{number!r} is not a whole number of at least 1" in capsys.readouterr().err
