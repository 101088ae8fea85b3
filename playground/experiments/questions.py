"""The prompts of a suite: a preset, or a file in Spec-Bench's form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playground.errors import PlaygroundError
from playground.lane import Request
from playground.presets import load_suites

MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}


@dataclass(frozen=True)
class Question:
    category: str
    request: Request


def questions(source: str, per_category: int | None, settings: Mapping[str, Any]) -> list[Question]:
    """Reads a suite.

    Args:
        source: a suite of presets/prompts by its name, or a file in Spec-Bench's form: a JSON object a line, with
            `category` and `turns`, of which the first is used. MT-Bench's eight categories count as one, as in
            Spec-Bench's tables.
        per_category: at most this many prompts of each category, spread evenly over it; None for all.
        settings: the other fields of each `Request`.

    Raises:
        PlaygroundError: there is no such suite or file, or the file is not of this form.
    """
    suites, _ = load_suites()
    if source in suites:
        found = [Question(p.kind, Request(p.text, system=p.system, **settings)) for p in suites[source].prompts]
    else:
        try:
            found = _read(Path(source), settings)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise PlaygroundError(
                f"{source} is not a suite ({type(error).__name__}: {error}). Name one of {', '.join(suites)}, or a "
                'file with a JSON object a line: {"category": …, "turns": [prompt, …]}.'
            ) from error
    if per_category is None:
        return found
    groups: dict[str, list[Question]] = {}
    for question in found:
        groups.setdefault(question.category, []).append(question)
    return [question for group in groups.values() for question in _spread(group, per_category)]


def _read(path: Path, settings: Mapping[str, Any]) -> list[Question]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise ValueError("it is empty")
    return [
        Question(
            "mt_bench" if line["category"] in MT_BENCH else line["category"],
            Request(_first(line["turns"]), **settings),
        )
        for line in lines
    ]


def _first(turns: object) -> str:
    if not isinstance(turns, list) or not isinstance(turns[0], str):
        raise TypeError("turns is not a list of prompts")
    return turns[0]


def _spread(group: Sequence[Question], n: int) -> Sequence[Question]:
    """n of them, evenly from the first to the last."""
    return group if len(group) <= n else [group[i * len(group) // n] for i in range(n)]
