"""Settings to deploy are what the engines read: parsed, and their option names held against recorded or real ones."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from transformers import GenerationConfig
from transformers.generation import GenerationMixin

from playground.drafting_methods import METHODS
from playground.lane import Lane, Request
from playground.trace import Comparison
from playground.views import engines
from tests.examples import drafted_round, plain_round, trace

# From the help of vLLM 0.32, SGLang 0.5.23 and mlx-lm, and TensorRT-LLM's documentation.
VLLM = {
    "method",
    "model",
    "num_speculative_tokens",
    "prompt_lookup_min",
    "prompt_lookup_max",
    "use_heterogeneous_vocab",
    "parallel_drafting",
}
SGLANG = {"--speculative-algorithm", "--speculative-draft-model-path", "--speculative-num-steps",
          "--speculative-eagle-topk", "--speculative-num-draft-tokens", "--model-path"}  # fmt: skip
MLX = {"--model", "--draft-model", "--num-draft-tokens", "--prompt"}
TENSORRT = {"Eagle3", "MTP", "NGram", "DraftTarget", "DFlash"}
WEIGHTS = {"early-exit": "its first 4 layers", "mtp": "native", "none": None, "ngram": None, "suffix": None}


def lanes() -> list[tuple[Lane, str | None]]:
    chains = [
        (Lane("x", "owner/target", name, WEIGHTS.get(name, "owner/drafter"), lookahead=4), None)
        for name, method in METHODS.items()
        if not method.tree
    ]
    trees = [
        (Lane("x", "owner/target", name, "owner/drafter", nodes=24), method)
        for name in ("tree", "composite", "adaptive")
        for method in ("eagle3", "dflash", None)
    ]
    return chains + trees


def of(engine: str) -> list[engines.Settings]:
    """All that it can do."""
    found = [it for lane, method in lanes() for it in engines.settings(lane, method) if it.engine == engine]
    assert all(it.text or it.note for it in found), "what cannot be done is said"
    return [it for it in found if it.text]


def options(text: str) -> set[str]:
    return {word for word in shlex.split(text) if word.startswith("--")}


def test_the_python_is_python_whose_options_transformers_has():
    known = {*GenerationConfig().to_dict(), *inspect.signature(GenerationMixin.generate).parameters}
    # Read by name out of the keyword arguments.
    known |= {"tokenizer", "assistant_tokenizer", "speculation_type"}
    for it in of("transformers"):
        for call in (node for node in ast.walk(ast.parse(it.text)) if isinstance(node, ast.Call)):
            if getattr(call.func, "attr", "") == "generate":
                assert {keyword.arg for keyword in call.keywords} - {None} <= known
        for name in re.findall(r"generation_config\.(\w+)", it.text):
            assert hasattr(GenerationConfig(), name)
    assert len(of("transformers")) == 7


def test_a_drafter_that_ships_is_written_for_engines_that_read_its_layout():
    """SGLang reads no EAGLE-3 in the layout of speculators, and DFlash in z-lab's alone, which a command writes."""
    able = {kind: engines.runs_in(Lane("x", "starter", kind, f"starter-{kind}", lookahead=3))
            for kind in ("eagle3", "dflash", "dspark", "assistant")}  # fmt: skip
    assert able["eagle3"] == able["dspark"] == "vLLM, llama-server"
    assert able["dflash"] == "vLLM, SGLang, llama-server"
    assert "SGLang" in able["assistant"] and "transformers" in able["assistant"]
    found = {it.engine: it.text for it in engines.settings(Lane("x", "starter", "dflash", "starter-dflash"))}
    first, serve = found["SGLang"].splitlines()
    assert shlex.split(first)[3:] == [
        "export-drafter",
        "starter-dflash",
        "--out",
        "starter-dflash",
        "--layout",
        "z-lab",
    ]
    assert "--speculative-draft-model-path starter-dflash" in serve and "--layout" not in found["vLLM"]


def test_transformers_drafts_with_dflash_drafters_of_its_own_class_alone():
    zlab = Lane("x", "Qwen/Qwen3-4B", "dflash", "z-lab/Qwen3-4B-DFlash-b16")
    assert "transformers" not in engines.runs_in(zlab) and "SGLang" in engines.runs_in(zlab)
    own = Lane("x", "owner/Muse-Glimmer", "dflash", "owner/Muse-Glimmer-assistant")
    assert "transformers" in engines.runs_in(own)


def test_sglang_drafts_with_domino_s_head_as_it_does_with_dflash():
    lane = Lane("x", "Qwen/Qwen3-8B", "domino", "Huang2020/Qwen3-8B-Domino-b16")
    assert engines.runs_in(lane) == "SGLang"


def test_one_of_them_runs(tiny_folder, capsys):
    lane = Lane("x", str(tiny_folder), "assistant", str(tiny_folder), lookahead=3)
    code = next(it.text for it in engines.settings(lane) if it.engine == "transformers")
    exec(code.replace("max_new_tokens=128", "max_new_tokens=5"), {})
    assert capsys.readouterr().out.startswith("Your prompt")


def test_vllms_json_parses_and_has_its_names():
    for it in of("vLLM"):
        words = shlex.split(it.text)
        assert words[:3] == ["vllm", "serve", "owner/target"]
        if "--speculative-config" in words:
            config = json.loads(words[words.index("--speculative-config") + 1])
            assert set(config) <= VLLM and config["num_speculative_tokens"] > 0


def test_sglang_and_mlx_have_options_of_their_help():
    for engine, known in (("SGLang", SGLANG), ("mlx-lm", MLX)):
        assert of(engine) and all(options(it.text) <= known for it in of(engine))


def test_block_verification_is_exported_where_an_engine_has_it():
    lane = Lane("x", "owner/target", "eagle3", "owner/drafter", lookahead=4, verification="block")
    found = {it.engine: it for it in engines.settings(lane)}
    config = json.loads(shlex.split(found["vLLM"].text)[-1])
    assert (config["rejection_sample_method"], config["draft_sample_method"]) == ("block", "probabilistic")
    assert "V2 runner alone" in found["vLLM"].note
    assert found["SGLang"].text.endswith("--speculative-use-block-verification")
    assert "block" not in " ".join(it.text for it in engines.settings(Lane("x", "t", "eagle3", "d")))


def test_tensorrts_yaml_parses():
    for it in of("TensorRT-LLM"):
        config = yaml.safe_load(it.text)["speculative_config"]
        assert config["decoding_type"] in TENSORRT and config["max_draft_len"] == 4


def test_llama_servers_options_are_in_a_real_build():
    xllamacpp = pytest.importorskip("xllamacpp")
    build = b"".join(path.read_bytes() for path in Path(xllamacpp.__file__).parent.glob("*.so"))
    used = {option for it in of("llama-server") for option in options(it.text)}
    types = {name for it in of("llama-server") if "--spec-type" in (words := shlex.split(it.text))
             for name in words[words.index("--spec-type") + 1].split(",")}  # fmt: skip
    assert used >= {"--spec-type", "--spec-draft-n-max"}
    assert all(f"{name}\0".encode() in build for name in used | types | {"--rpc", "--metrics"})  # and docs/servers.md


def test_what_a_request_asks_for_beside_the_drafts_is_in_the_command_or_said():
    lane = Lane("x", "owner/target", "universal", "owner/drafter", lookahead=4)
    asked = Request("x", presence_penalty=0.5, stop_strings="  a'b\\n\u2028")
    found = {it.engine: it for it in engines.settings(lane, None, asked)}
    said = """Send with each request: "presence_penalty": 0.5, "stop": ["  a'b\\n\\u2028"]."""
    assert found["vLLM"].note == said
    call = next(node for node in ast.walk(ast.parse(found["transformers"].text))
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "model.generate")  # fmt: skip
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    assert ast.literal_eval(given["stop_strings"]) == [*asked.stops] and "tokenizer" in given
    assert "no setting" in found["transformers"].note and "presence_penalty" in found["transformers"].note
    assert not engines.settings(lane, None, Request("x"))[0].note


def test_names_from_a_trace_cannot_leave_their_quotes():
    lane = Lane("x", "a; rm -rf ~ '\"", "assistant", "$(b)\n", lookahead=2)
    for it in engines.settings(lane):
        if it.language == "shell" and it.engine not in ("llama-server",):
            assert lane.target in shlex.split(it.text)
        if it.language == "python":
            ast.parse(it.text)
        if it.language == "yaml":
            assert yaml.safe_load(it.text)["speculative_config"]["speculative_model"] == "$(b)\n"


def test_the_starters_own_drafters_say_that_no_engine_reads_them():
    lane = Lane("x", "starter", "mtp", "starter-mtp")
    assert "\n" not in "".join(it.note for it in engines.settings(Lane("x", "a\nb", "ngram")))
    assert all(not it.text and "playground" in it.note for it in engines.settings(lane))
    assert "SmolLM2" in engines.text(engines.settings(Lane("x", "starter", "ngram")))


@pytest.mark.parametrize(("accepted", "examined"), [(0, True), (3, False)])
def test_a_drafter_that_is_right_by_chance_is_to_be_examined_before_it_is_deployed(accepted, examined):
    rounds = [drafted_round([900, 901], accepted=int(i < accepted), own=i, start_s=0.3 * i) for i in range(25)]
    base = trace([plain_round(i, start_s=0.1 * i) for i in range(25)])
    lane = Lane("EAGLE-3", "t", "eagle3", "owner/drafter", lookahead=2)
    (first, *_) = engines.of_comparison(Comparison((base, replace(trace(rounds), lane=lane))), lane)
    assert (" doctor --target t --assistant owner/drafter --drafter eagle3" in first.text) == examined
    assert ("vllm" in first.text) != examined
