"""What `export-drafter` tells to run: only what the engine reads."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from playground_distil.export import _commands

SHIPPED = Path(__file__).parents[1] / "assets" / "drafters"


@pytest.mark.parametrize(
    ("drafter", "layout", "able"),
    [
        ("eagle3", "speculators", ["vLLM", "llama-server"]),
        ("dflash", "speculators", ["vLLM"]),
        ("dflash", "z-lab", ["vLLM", "SGLang", "llama-server"]),
        ("assistant", "speculators", ["vLLM", "SGLang", "llama-server"]),
    ],
)
def test_only_engines_that_read_a_layout_are_given_a_command(drafter, layout, able):
    options = Namespace(out=SHIPPED / f"starter-{drafter}", target="starter", layout=layout)
    found = _commands(options, drafter)
    assert [it.engine for it in found if it.text] == able
    assert all(it.note for it in found if not it.text)
    for it in found:
        if it.engine == "llama-server" and it.text:
            target, converted, served = it.text.splitlines()
            assert target.startswith("python convert_hf_to_gguf.py TARGET")
            assert ("--target-model-dir" in converted) == (drafter != "assistant")
            assert served.startswith("llama-server -m MODEL.gguf --spec-type draft-")
