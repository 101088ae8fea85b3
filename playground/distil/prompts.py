"""Samples training prompts of many kinds from templates and word lists."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from playground import ROOT

TEMPLATES = ROOT / "presets" / "distil" / "prompts.yaml"
PLACE = re.compile(r"\{([a-z]+)(\d?)\}")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
TEXT_CHARACTERS = (600, 1200, 2400, 3600)  # limits of a prompt's texts together, one drawn uniformly for each prompt
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
        """Draws one conversation. All kinds are equally likely. `texts`: the source of `{text}`; neighbours are joined
        where a long text is needed."""
        template = rng.choice(self.kinds[rng.choice(sorted(self.kinds))])
        turns = template if isinstance(template, list) else [template]
        words: dict[str, str] = {}
        of_texts = {place[0] for turn in turns for place in PLACE.finditer(turn) if place[1] == "text"}
        characters = rng.choice(TEXT_CHARACTERS) // max(1, len(of_texts))

        def fill(place: re.Match[str]) -> str:
            if place[0] not in words:
                words[place[0]] = self._word(place[1], rng, texts, characters, set(words.values()))
            return words[place[0]]

        filled = [PLACE.sub(fill, turn) for turn in turns]
        return [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(filled)]

    def _word(self, name: str, rng: random.Random, texts: Sequence[str], characters: int, taken: set[str]) -> str:
        if name in ("text", "sentence"):
            text = _text(rng, texts, characters)
            return rng.choice(SENTENCE_END.split(text)) if name == "sentence" else text
        if name == "n":
            return str(rng.randint(2, 99))
        if name == "big":
            return str(rng.randint(100, 9999))
        return rng.choice([word for word in self.words[name] if word not in taken])


def _text(rng: random.Random, texts: Sequence[str], characters: int) -> str:
    """Joins neighbouring texts from a random one on; the last is cut."""
    if not texts:
        return FALLBACK_TEXT
    start, joined = rng.randrange(len(texts)), ""
    for text in texts[start:]:
        joined += f"{text.strip()}\n\n"
        if len(joined) > characters:
            break
    return joined[:characters].strip()
