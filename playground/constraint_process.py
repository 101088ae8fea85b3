"""The script that reads grammars in a process of its own, which `constraint.py` starts and may kill.

It reads a JSON object a line, with the `kind` of a grammar, its `text`, and the `bytes` that this process may use. It
writes one for each: `error`, which is "" for a grammar that can be followed. It imports nothing of this package.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any

NAMED = re.compile(r"<[^<>\s]+>")  # special tokens in a Lark grammar, and ranges of ids as <[1-5]>
LARGEST = 400_000  # ids of models are smaller
NICE = 5  # other users' runs are decoded on the same cores


def main() -> None:
    """Answer each line of standard input until it ends."""
    from llguidance import LLMatcher, LLTokenizer

    compilers: dict[str, Callable[[str], str]] = {
        "json_schema": LLMatcher.grammar_from_json_schema,
        "regex": LLMatcher.grammar_from_regex,
        "grammar": LLMatcher.grammar_from_lark,
    }
    bytes_alone = LLTokenizer("byte")
    if hasattr(os, "nice"):
        os.nice(NICE)
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            question = json.loads(line)
            limit_memory(question["bytes"])
            kind, text = question["kind"], question["text"]
            named = sorted(set(NAMED.findall(text))) if kind == "grammar" else []
            tokenizer = LLTokenizer(with_tokens(named), n_vocab=size(named)) if named else bytes_alone
            matcher = LLMatcher(tokenizer, compilers[kind](text), log_level=0)
            matcher.compute_bitmask()  # only this finds that nothing can be written
            error = matcher.get_error()
        except Exception as problem:
            error = str(problem) or type(problem).__name__
        print(json.dumps({"error": error[:10_000]}), flush=True)


def size(named: list[str]) -> int:
    """Return the size of a vocabulary with these tokens, each byte, and an end of text."""
    ids = [int(id_[:9]) for name in named if name.startswith("<[") for id_ in re.findall(r"\d+", name)]
    return max(257 + len(named), *(min(id_, LARGEST) + 1 for id_ in ids), 0)


def with_tokens(named: list[str]) -> str:
    """Return a tokenizer.json with a token for each byte and these special tokens, so that a grammar is read to its end
    whichever model's tokens it names."""
    from tokenizers import pre_tokenizers

    as_bytes: dict[str, Any] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    names = enumerate(["<end>", *(name for name in named if not name.startswith("<["))], start=256)
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [{"id": id_, "content": name, "special": True, **plain} for id_, name in names],
            "pre_tokenizer": as_bytes,
            "decoder": as_bytes,
            "model": {
                "type": "BPE",
                "vocab": {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))},
                "merges": [],
            },
        }
    )


def limit_memory(size: int) -> None:
    """Limit the memory of this process to `size` bytes, where the system can."""
    try:
        import resource
    except ImportError:
        return  # Windows has no limits of this kind
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


if __name__ == "__main__":
    main()
