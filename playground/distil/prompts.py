"""Prompts of many kinds, drawn from templates and word lists: what a target is asked so that drafters learn from it."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

import yaml

TEMPLATES = Path(__file__).resolve().parents[2] / "presets" / "distil" / "prompts.yaml"
PLACE = re.compile(r"\{([a-z]+)(\d?)\}")
TEXT_CHARACTERS = 1200  # of an earlier answer that is given as a text to work on
FALLBACK_TEXT = (
    "The sea was calm that morning, and the old harbor town was just waking up. Fishermen mended their nets."
)

Messages = list[dict[str, str]]


class Templates:
    """Draws conversations that end with a user's turn.

    Raises:
        KeyError: a template names a word list that the file does not hold.
    """

    def __init__(self, path: Path = TEMPLATES) -> None:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        self.kinds: dict[str, list[str | list[str]]] = data["kinds"]
        self.words: dict[str, list[str]] = data["words"]

    def draw(self, rng: random.Random, texts: Sequence[str] = ()) -> Messages:
        """One conversation. Each kind is as likely as any other. `texts`: what `{text}` is taken from."""
        template = rng.choice(self.kinds[rng.choice(sorted(self.kinds))])
        turns = template if isinstance(template, list) else [template]
        drawn: dict[str, str] = {}

        def fill(place: re.Match[str]) -> str:
            if place[0] not in drawn:
                drawn[place[0]] = self._word(place[1], rng, texts, set(drawn.values()))
            return drawn[place[0]]

        filled = [PLACE.sub(fill, turn) for turn in turns]
        return [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(filled)]

    def _word(self, name: str, rng: random.Random, texts: Sequence[str], taken: set[str]) -> str:
        if name == "n":
            return str(rng.randint(2, 99))
        if name == "big":
            return str(rng.randint(100, 9999))
        if name in ("text", "sentence"):
            text = rng.choice(texts).strip()[:TEXT_CHARACTERS] if texts else FALLBACK_TEXT
            return rng.choice(re.split(r"(?<=[.!?])\s+", text)) if name == "sentence" else text
        return rng.choice([word for word in self.words[name] if word not in taken])
