"""The benchmark compares like with like; how fast anything is, no test asserts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from playground import results
from playground.backends import llama_server
from playground.bench import cpu, parts
from playground.errors import PlaygroundError
from playground.models.store import LoadedPair
from playground.presets import custom_pair
from tests.packing import needs_packing

packed = pytest.param("float16", marks=needs_packing)


def run(folder, only, dtype="float32", max_new_tokens=8):
    said = []
    pair = custom_pair(str(folder), None)
    options = dict(runs=1, max_new_tokens=max_new_tokens, dtype=dtype, device="cpu")
    return parts.run(pair, only=only, say=said.append, **options), said


@pytest.mark.parametrize("dtype", ["float32", packed])
def test_each_side_makes_the_same_tokens_in_float32(tiny_folder, dtype):
    result, said = run(tiny_folder, ["standard", "ngram", "assistant"], dtype)
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
    result, _ = run(tiny_folder, ["standard", "ngram"], max_new_tokens=24)
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
        parts._memory(models, 1, 8, dtype="auto")


def test_no_more_is_asked_for_than_the_context_holds(tiny_folder):
    result, _ = run(tiny_folder, ["ngram"], max_new_tokens=400)
    assert result.results[0].identical


def test_llama_cpp_runs_the_starter_alone(tiny_folder):
    with pytest.raises(PlaygroundError, match="Choose --pair starter"):
        run(tiny_folder, ["cpu"])


def test_without_llama_cpp_there_is_a_sentence(monkeypatch):
    monkeypatch.setattr(cpu.starter, "fetch_gguf", lambda progress: Path("starter.gguf"))
    monkeypatch.setattr(llama_server, "find_spec", lambda name: None)
    monkeypatch.setattr(llama_server.shutil, "which", lambda name: None)
    with pytest.raises(PlaygroundError, match="pip install xllamacpp"):
        cpu.tokens_per_second(None, None, None, [], 1, print)


def test_the_stopwatch_leaves_the_prompt_and_the_first_token_out(monkeypatch):
    times = iter([0.0, 5.0, 5.5, 6.0])
    monkeypatch.setattr(cpu.time, "perf_counter", lambda: next(times))
    watch = cpu.Stopwatch()
    for _ in range(4):
        watch.put(None)
    assert watch.tokens_per_second == 2.0
