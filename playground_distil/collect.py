"""Collects the target's answers on disk, in shards.

Shards are written one after the other, each from its own seed, so that an interruption loses at most one. Some prompts
are questions that the target writes itself, in place of a user's turn ("Magpie", Xu et al. 2024): templates hold only
their author's ideas, while a chat model also remembers the questions that it was trained on.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
import yaml
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from playground import ROOT
from playground.errors import PlaygroundError
from playground.models.fetch.files import replacing
from playground.models.load import LoadedModel
from playground_distil.answers import Answer, Messages, plain_text, prompt_ids, write

OWN_QUESTIONS = 0.5  # share of the prompts that the target writes itself, where it has a chat template
TEMPERATURES = (0.0, 0.0, 0.0, 0.5, 0.7, 1.0)  # one answer each, in turn
BATCHES = 6  # batches of a shard; its prompts are sorted by length over all, so that little is padding
TEXT_TOKENS = (60, 250)  # length of an earlier answer that serves as a text to work on


def collect(
    target: LoadedModel,
    folder: Path,
    *,
    tokens: int,
    layers: tuple[int, ...] = (-1,),
    batch: int = 64,
    max_new_tokens: int = 200,
    longest_prompt: int = 900,
    seed: int = 0,
    passages: Sequence[str] = (),
) -> int:
    """Writes shards into the folder until they hold `tokens` written tokens, continuing with an earlier call's shards.
    The target writes half of the prompts itself, half come from templates; the texts that those work on are the
    target's own earlier answers, and `passages` half of the time where there are some.

    Returns the number of tokens that the target has written.

    Raises:
        PlaygroundError: the folder holds another target's answers, or a damaged shard.
    """
    folder.mkdir(parents=True, exist_ok=True)
    templates = Templates()
    texts: list[str] = []
    total = 0
    with tqdm(total=tokens, unit="token", desc="Answers", smoothing=0.05) as bar:
        for shard in itertools.count():
            path = folder / f"answers-{shard:05d}.safetensors"
            if path.exists():
                _check_target(path, target)
            else:
                rng = random.Random(f"{seed}-{shard}")
                conversations = own_questions(target, int(OWN_QUESTIONS * BATCHES * batch), rng)
                while len(conversations) < BATCHES * batch:
                    conversations.append(templates.draw(rng, passages if passages and rng.random() < 0.5 else texts))
                prompts = sorted((prompt_ids(target.tokenizer, it)[-longest_prompt:] for it in conversations), key=len)
                generator = torch.Generator(target.model.device).manual_seed(rng.getrandbits(63))
                answers = []
                for start in range(0, len(prompts), batch):
                    rows = prompts[start : start + batch]
                    heat = [TEMPERATURES[i % len(TEMPERATURES)] for i in range(len(rows))]
                    for answer in write(
                        target.model,
                        rows,
                        heat,
                        layers=layers,
                        max_new_tokens=max_new_tokens,
                        stop_ids=target.eos_ids,
                        generator=generator,
                    ):
                        answers.append(answer)
                        bar.update(len(answer.ids) - answer.prompt_length)
                _save(answers, path, target, layers)
            texts = [*texts, *_texts(path, target.tokenizer)][-2000:]
            total += written_in(path)
            bar.update(total - bar.n)
            if total >= tokens and shard >= 1:  # the first shard is held out
                break
    return total


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("answers-*.safetensors"))


def read(path: Path, layers: Sequence[int]) -> Iterator[Answer]:
    """Yields the answers of a shard, with the features of these layers, in the form of `Runner.watch`.

    Raises:
        PlaygroundError: the shard lacks a layer, or is damaged.
    """
    with _opened(path) as file:
        stored = file.get_tensor("layers").tolist() if "layers" in file.keys() else []  # noqa: SIM118
        if not set(layers) <= set(stored):
            raise PlaygroundError(
                f"The answers in {path.parent} lack hidden states that this drafter reads: an earlier version wrote "
                "them. Name another folder to work in."
            )
        lengths, prompt_lengths = file.get_tensor("lengths"), file.get_tensor("prompt_lengths")
        ids, choices, chances = (file.get_tensor(name) for name in ("ids", "choices", "chances"))
        features = file.get_tensor("features")[:, [stored.index(layer) for layer in layers]]
    split = [tensor.split(lengths.tolist()) for tensor in (ids, features, choices, chances)]
    for i, (answer_ids, *rest) in enumerate(zip(*split, strict=True)):
        yield Answer(answer_ids, int(prompt_lengths[i]), *rest)


def written_in(path: Path) -> int:
    """Returns the number of tokens of a shard that the target wrote."""
    with _opened(path) as file:
        return int(file.get_tensor("lengths").sum() - file.get_tensor("prompt_lengths").sum())


@contextmanager
def _opened(path: Path) -> Iterator[safe_open]:
    try:
        with safe_open(path, "pt") as file:
            yield file
    except SafetensorError as error:
        raise PlaygroundError(f"{path} is damaged ({error}). Delete it: its answers are written again.") from error


def _check_target(path: Path, target: LoadedModel) -> None:
    with _opened(path) as file:
        wrote = (file.metadata() or {}).get("target", target.weights)  # earlier versions did not record it
    if wrote != target.weights:
        raise PlaygroundError(
            f"The answers in {path.parent} are those of another target: {wrote}. This one is: {target.weights}. "
            "Name another folder to work in."
        )


def _save(answers: list[Answer], path: Path, target: LoadedModel, layers: tuple[int, ...]) -> None:
    tensors = {
        "layers": torch.tensor(layers),
        "ids": torch.cat([answer.ids for answer in answers]),
        "lengths": torch.tensor([len(answer.ids) for answer in answers]),
        "prompt_lengths": torch.tensor([answer.prompt_length for answer in answers]),
        "features": torch.cat([answer.features for answer in answers]),
        "choices": torch.cat([answer.choices for answer in answers]),
        "chances": torch.cat([answer.chances for answer in answers]),
    }
    with replacing(path) as part:
        save_file(tensors, part, metadata={"target": target.weights})


def _texts(path: Path, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    with _opened(path) as file:
        ids, lengths, prompts = (file.get_tensor(name) for name in ("ids", "lengths", "prompt_lengths"))
    answers = [row[start:] for row, start in zip(ids.split(lengths.tolist()), prompts.tolist(), strict=True)]
    low, high = TEXT_TOKENS
    return [plain_text(tokenizer, row) for row in answers if low <= len(row) <= high]


PLACE = "\N{OBJECT REPLACEMENT CHARACTER}"  # no template holds it
LONGEST_QUESTION = 80  # tokens; a longer question is cut
QUESTION_TEMPERATURES = (0.7, 1.0)  # one question each, in turn


def own_questions(target: LoadedModel, count: int, rng: random.Random) -> list[Messages]:
    """Makes at most `count` conversations of one turn, which the target writes; none without a chat template."""
    if not target.tokenizer.chat_template:
        return []
    turn = cast(str, target.tokenizer.apply_chat_template([{"role": "user", "content": PLACE}], tokenize=False))
    start = target.tokenizer(turn.split(PLACE)[0], add_special_tokens=False)["input_ids"]
    written = write(
        target.model,
        [start] * count,
        [QUESTION_TEMPERATURES[i % len(QUESTION_TEMPERATURES)] for i in range(count)],
        layers=(-1,),
        max_new_tokens=LONGEST_QUESTION,
        stop_ids=target.eos_ids,
        generator=torch.Generator(target.model.device).manual_seed(rng.getrandbits(63)),
    )
    texts = (plain_text(target.tokenizer, it.ids[it.prompt_length :]).strip() for it in written)
    return [[{"role": "user", "content": text}] for text in texts if text]


TEMPLATES = ROOT / "presets" / "distil" / "prompts.yaml"
WORD = re.compile(r"\{([a-z]+)(\d?)\}")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
TEXT_CHARACTERS = (600, 1200, 2400, 3600)  # limits of a prompt's texts together, one drawn uniformly for each prompt
FALLBACK_TEXT = (
    "The sea was calm that morning, and the old harbor town was just waking up. Fishermen mended their nets."
)


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
        of_texts = {place[0] for turn in turns for place in WORD.finditer(turn) if place[1] == "text"}
        characters = rng.choice(TEXT_CHARACTERS) // max(1, len(of_texts))

        def fill(place: re.Match[str]) -> str:
            if place[0] not in words:
                words[place[0]] = self._word(place[1], rng, texts, characters, set(words.values()))
            return words[place[0]]

        filled = [WORD.sub(fill, turn) for turn in turns]
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
