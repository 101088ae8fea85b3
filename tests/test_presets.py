from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError
from playground.presets import PRESETS, custom_pair, load_pairs, load_suites

PAIR = {
    "title": "T",
    "target": "owner/name",
    "weights": "{assistant: owner/small}",
    "drafter": "assistant",
    "lookahead": "5",
    "size_gb": "1.5",
}


def write(folder: Path, name: str, changes: dict[str, str | None]) -> None:
    keys = {key: value for key, value in {**PAIR, **changes}.items() if value is not None}
    (folder / name).write_text("".join(f"{key}: {value}\n" for key, value in keys.items()), encoding="utf-8")


def test_every_shipped_pair_is_good():
    pairs, problems = load_pairs()
    assert problems == []
    assert set(pairs) == {path.stem for path in (PRESETS / "pairs").iterdir()}
    assert next(iter(pairs)) == "starter", "the smallest comes first"
    default, *others = pairs["starter"].drafters
    assert default == pairs["starter"].drafter == "composite"
    assert others == [name for name in METHODS if name in others], "in the order of registration"
    assert {"ngram", "assistant", "mtp", "eagle3", "dflash", "dspark", "heads", "tree"} <= set(others)
    assert pairs["starter"].drafts_by("composite") == "mtp", "the best of them"
    assert not {"universal", "none", "composite"} & set(others)
    assert not {"tree", "composite", "adaptive"} & set(pairs["qwen3.5-2b"].drafters), "recurrent layers take no trees"
    assert pairs["smollm2-360m"].weights == {"assistant": "HuggingFaceTB/SmolLM2-135M-Instruct"}
    gated = {pair.name for pair in pairs.values() if pair.gated}
    assert gated == {"layerskip-llama3.2-1b", "layerskip-llama3-8b", "llama-3.1-8b", "mistral-7b-medusa"}
    assert all("\n" not in pair.note for pair in pairs.values())


def test_every_key_of_a_shipped_pair_is_explained():
    for path in (PRESETS / "pairs").iterdir():
        lines = path.read_text(encoding="utf-8").splitlines()
        for above, line in zip(["", *lines], lines, strict=False):
            assert line.strip().startswith("#") or above.strip().startswith("#"), f"{path.name}: {line}"


def test_the_shipped_suite_covers_the_five_kinds():
    suites, problems = load_suites()
    assert problems == []
    assert [prompt.kind for prompt in suites["examples"].prompts] == [
        "technical comparison",
        "step-by-step math",
        "logic",
        "translation and grammar",
        "constrained writing",
    ]
    assert "\n2. Asha" in suites["examples"].prompts[2].text, "each premise stands on a line of its own"


def test_optional_keys_have_defaults(tmp_path):
    write(tmp_path, "mine.yaml", {"weights": None, "drafter": "ngram"})
    pair = load_pairs(tmp_path)[0]["mine"]
    assert (pair.weights, pair.dtype, pair.gated, pair.note) == ({}, "auto", False, "")
    assert {"ngram", "suffix"} <= set(pair.drafters) and not any(METHODS[name].drafts_with for name in pair.drafters)


@pytest.mark.parametrize(
    ("changes", "key", "expected"),
    [
        ({"colour": "red"}, "colour", "known keys"),
        ({"target": None}, "target", "missing"),
        ({"title": "[a, b]"}, "title", "text"),
        ({"title": "' '"}, "title", "text"),
        ({"lookahead": "five"}, "lookahead", "Lookahead must be a whole number from 1 to 64; it is 'five'"),
        ({"lookahead": "true"}, "lookahead", "whole number"),
        ({"lookahead": "65"}, "lookahead", "from 1 to 64"),
        ({"size_gb": "big"}, "size_gb", "number"),
        ({"size_gb": "-1"}, "size_gb", "0 or more"),
        ({"gated": "'no'"}, "gated", "true or false"),
        ({"drafters": "ngram"}, "drafters", "list"),
        ({"drafters": "[ngram, 3]"}, "drafters[1]", "text"),
        ({"drafter": "eagle"}, "drafter should be one of", "ngram, suffix"),
        ({"drafters": "[assistant, eagle]"}, "drafters should be some of", "ngram, suffix"),
        ({"without": "[eagle]"}, "without should be some of", "ngram, suffix"),
        ({"without": "[ngram, assistant]"}, "without", "other drafters than the default, assistant"),
        ({"drafters": "[ngram]"}, "drafter", "one of this pair's drafters (ngram)"),
        ({"name": "mine"}, "name", "left out"),
        ({"weights": None}, "weights should name assistant", "for the drafter assistant"),
        ({"weights": "{assistant: null}"}, "weights.assistant", "text or a whole number; it is empty"),
        ({"weights": "{assistant: 3}"}, "weights.assistant", "an id on the hub or a folder"),
        ({"weights": "{early-exit: 0}"}, "weights.early-exit", "a number of layers, 1 or more"),
        ({"weights": "{early-exit: four}"}, "weights.early-exit", "a number of layers, 1 or more"),
        ({"weights": "{tree: a}"}, "weights.tree", "known keys: assistant, universal, early-exit, mtp"),
        ({"weights": "[a]"}, "weights", "keys with values; it is a list"),
        ({"assistant": "owner/small"}, "assistant", "known keys"),
        ({"drafter": "mtp"}, "weights should name mtp", "for the drafter mtp"),
        ({"drafters": "[assistant, mtp]"}, "weights should name mtp", "for the drafter mtp"),
        ({"drafter": "tree"}, "weights should name mtp or eagle3", "for the drafter tree"),
        ({"nodes": "0"}, "nodes", "from 1 to 256"),
        ({"dtype": "int3"}, "dtype", "auto, float32, bfloat16, float16, int8, int4"),
        ({"title": "'unclosed"}, "not YAML", "line"),
        ({"title": "!!python/object/apply:os.getcwd []"}, "not YAML", "constructor"),
        ({"title": "2026-01-01"}, "2026-01-01 is a date", "made of text"),
    ],
)
def test_a_bad_pair_is_named_with_its_key_and_what_was_expected(tmp_path, changes, key, expected):
    write(tmp_path, "good.yaml", {})
    write(tmp_path, "bad.yaml", changes)
    pairs, problems = load_pairs(tmp_path)
    assert list(pairs) == ["good"]
    assert len(problems) == 1
    assert all(part in problems[0] for part in ("bad.yaml", key, expected)), problems[0]


@pytest.mark.parametrize("content", [b"", b"- a\n- b\n", b"text", b"\xff\xfe\x00", b"a: [1", b"1: 2\n", b"\x00"])
def test_a_file_that_is_no_pair_is_reported(tmp_path, content):
    (tmp_path / "odd.yaml").write_bytes(content)
    pairs, problems = load_pairs(tmp_path)
    assert pairs == {}
    assert len(problems) == 1 and "odd.yaml" in problems[0]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("title: S\nprompts: []\n", "prompts should"),
        ("title: S\nprompts:\n  - {name: a, title: A, kind: k}\n", "prompts[0].text should"),
        ("title: S\nprompts:\n  - {name: a, title: A, kind: k, text: ' '}\n", "the prompt"),
        ("title: S\nprompts:\n  - a\n", "prompts[0] should"),
        ("title: S\nprompts:\n" + 2 * "  - {name: a, title: A, kind: k, text: t}\n", "different name"),
    ],
)
def test_a_bad_suite_is_named_with_its_key(tmp_path, content, expected):
    (tmp_path / "suite.yaml").write_text(content, encoding="utf-8")
    suites, problems = load_suites(tmp_path)
    assert suites == {}
    assert "suite.yaml" in problems[0] and expected in problems[0], problems[0]


def test_a_typed_pair_drafts_with_its_assistant():
    pair = custom_pair(" owner/big ", "owner/small")
    assert (pair.target, pair.weights, pair.drafter) == ("owner/big", {"assistant": "owner/small"}, "assistant")
    assert pair.title == "big + small"


def test_a_typed_target_alone_drafts_by_lookup():
    pair = custom_pair("./models/big", " ")
    assert (pair.weights, pair.drafter, pair.title) == ({}, "ngram", "big")
    assert "suffix" in pair.drafters and not any(METHODS[name].drafts_with for name in pair.drafters)


@pytest.mark.parametrize(
    ("second", "drafter", "named"),
    [
        ("starter-mtp", "assistant", "as mtp"),
        ("starter-mtp", "ngram", "Choose mtp"),
        ("/no/such/folder", "suffix", "was named"),
        ("starter-mtp", "early-exit", "target's layers"),
    ],
)
def test_what_was_typed_to_draft_is_never_left_out_in_silence(second, drafter, named):
    with pytest.raises(PlaygroundError, match=named):
        custom_pair("owner/big", second, drafter)
    assert custom_pair("owner/big", "starter-mtp", "tree").weights == {"mtp": "starter-mtp"}
    assert custom_pair("owner/big", second, "none").drafters


def test_a_typed_pair_needs_a_target():
    with pytest.raises(PlaygroundError, match="target"):
        custom_pair("  ", "owner/small")


def test_a_typed_early_exit_is_a_number_of_layers():
    assert custom_pair("owner/big", "6", "early-exit").weights == {"early-exit": 6}
    assert custom_pair("owner/big", "6", "assistant").weights == {"assistant": "6"}


@pytest.mark.parametrize("drafter", ["gemma4", "dflash", "eagle3", "medusa", "universal", "heads"])
def test_a_typed_id_is_what_the_drafter_says(drafter):
    pair = custom_pair("owner/big", "owner/small", drafter)
    assert pair.weights == {drafter: "owner/small"}
    assert drafter in pair.drafters


@pytest.mark.parametrize("drafter", ["tree", "composite", "adaptive"])
def test_for_trees_a_typed_id_must_be_known(drafter):
    with pytest.raises(PlaygroundError, match=rf"{drafter} .*owner/small.* folder"):
        custom_pair("owner/big", "owner/small", drafter)
    assert drafter in custom_pair("owner/big", "starter-mtp", drafter).drafters


def test_a_typed_target_drafts_with_its_own_layers_where_that_is_asked():
    pair = custom_pair("owner/big", "", "mtp")
    assert (pair.weights, pair.drafter, "tree" in pair.drafters) == ({"mtp": "native"}, "mtp", True)


def test_a_reading_is_of_a_network_that_the_pair_names():
    pair = custom_pair("target", "head", "eagle3")
    assert replace(pair, readings={"eagle3": {"layers": [1, 2, 3]}}).readings
    with pytest.raises(PlaygroundError, match=r"readings .*: eagle3"):
        replace(pair, readings={"mtp": {}})
