"""Presets: model pairs and prompt suites, read from YAML into dataclasses. No model is loaded here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import yaml

from playground import ROOT
from playground.conversation import Message
from playground.drafting_methods import METHODS, recognised
from playground.errors import PlaygroundError
from playground.settings import DTYPES, PRESET, PairSettings, check_fields
from playground.tensor_header import headers
from playground.validation import read

PRESETS = ROOT / "presets"
SHIPPED = ROOT / "assets" / "drafters"
HUB = "hub:"  # prefix of an id on the hub, where no folder of that name may be read
OWN = "own"  # in place of a pair's name, where the user names the models
NATIVE = "native"  # the MTP layers of the target's own checkpoint
BESIDE = ("grammar", "none")  # methods of every pair that "all of its drafters" does not include
T = TypeVar("T")


def drafters() -> list[str]:
    """Return the drafting methods that a pair can name, in the order of their registration."""
    return [name for name in METHODS if name not in BESIDE]


@dataclass(frozen=True)
class Pair(PairSettings):
    """A target and the drafters that fit it.

    Attributes:
        target: an id on the hub, a folder (also one of assets/drafters), or "starter".
        weights: the drafter's weights, by the name of the drafting method: an id or a folder as for `target`; for mtp
            also "native", the target's own layers; for early-exit the number of the target's layers.
        readings: how weights are read where their own config.json is wrong, by the name of the drafting method:
            fields of `models.networks.readings`. `playground doctor` finds them.
        without: methods that fit, but are not offered.
        drafters: the methods that are offered: by default all that fit, in the order of their registration, after the
            default `drafter`.
        size_gb: the size of the weights of target and largest drafter in bf16, in 1e9 bytes; 0 where it is unknown.
        note: one line for the user, or "".
        adapter: a folder with a LoRA adapter for the target, which is merged into it; "" for none.
    """

    name: str
    title: str
    target: str
    drafter: str
    size_gb: float
    weights: Mapping[str, str | int] = field(default_factory=dict)
    readings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    dtype: str = "auto"
    gated: bool = False
    note: str = ""
    adapter: str = ""

    def __post_init__(self) -> None:
        _expect(self.title.strip(), "title", "some text")
        _expect(self.target.strip(), "target", "an id on the hub, a folder, or starter")
        known, weighted = drafters(), [name for name, method in METHODS.items() if method.weights]
        for key, named in (("drafter", [self.drafter]), ("drafters", self.drafters), ("without", self.without)):
            _expect(set(named) <= set(known), key, f"{'one' if key == 'drafter' else 'some'} of {', '.join(known)}")
        for method, value in self.weights.items():
            _expect(method in weighted, f"weights.{method}", f"one of the known keys: {', '.join(weighted)}")
            if METHODS[method].weights == "layers":
                _expect(isinstance(value, int) and value >= 1, f"weights.{method}", "a number of layers, 1 or more")
            else:
                _expect(isinstance(value, str) and value.strip(), f"weights.{method}", "an id on the hub or a folder")
        networks = [name for name in self.weights if METHODS[name].weights == "network"]
        _expect(
            set(self.readings) <= set(networks), "readings", f"for networks that weights names: {', '.join(networks)}"
        )
        for drafter in (self.drafter, *self.drafters):
            if not self.fits(drafter):
                wanted = " or ".join(METHODS[drafter].drafts_with)
                raise PlaygroundError(f"weights should name {wanted}, for the drafter {drafter}.")
        _expect(self.drafter not in self.without, "without", f"other drafters than the default, {self.drafter}")
        if not self.drafters:
            others = [name for name in known if self.fits(name) and name not in (self.drafter, *self.without)]
            object.__setattr__(self, "drafters", (self.drafter, *others))
        _expect(self.drafter in self.drafters, "drafter", f"one of this pair's drafters ({', '.join(self.drafters)})")
        check_fields(self, keys=True)
        _expect(self.size_gb >= 0, "size_gb", "a size in GB, 0 or more")
        _expect(self.dtype in DTYPES, "dtype", f"one of {', '.join(DTYPES)}")

    @property
    def defaults(self) -> dict[str, Any]:
        """The drafter and the settings of its drafts that count where none are chosen, by the settings' names."""
        return {name: getattr(self, name) for name in ("drafter", *PRESET)}

    def drafts_by(self, drafter: str) -> str | None:
        """Return the key of `weights` that a method uses here; None where it needs none, or has none."""
        return next((name for name in METHODS[drafter].drafts_with if name in self.weights), None)

    def fits(self, drafter: str) -> bool:
        """Return True if the pair has the weights that a method needs."""
        return not METHODS[drafter].drafts_with or self.drafts_by(drafter) is not None

    def weights_of(self, drafter: str) -> str | None:
        """Return the weights of a method in words; None where it needs none.

        Raises:
            PlaygroundError: it needs some, and the pair names none.
        """
        wanted, kind = METHODS[drafter].drafts_with, self.drafts_by(drafter)
        if wanted and not kind:
            raise PlaygroundError(
                f"The pair {self.name} has no weights for the drafter {drafter}. Choose another drafter "
                f"({', '.join(self.drafters)}), or a pair whose weights name {' or '.join(wanted)}."
            )
        if kind and METHODS[kind].weights == "layers":
            return f"its first {self.weights[kind]} layers"
        return str(self.weights[kind]) if kind else None

    @property
    def models(self) -> tuple[str, ...]:
        """The target, and every other model or network to fetch."""
        named = [str(value) for method, value in self.weights.items() if METHODS[method].weights != "layers"]
        return tuple(dict.fromkeys(name for name in (self.target, *named) if name != NATIVE))


DOCUMENTS = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))


@dataclass(frozen=True)
class Prompt:
    """One example. `kind`: its category; `system`: the system prompt, or "". `hint`: a few words on how much drafting
    helps here, shown with the title, or "". `json_schema`: the answer's schema, or empty. `before`: the conversation
    before the text, which is "" where a tool's answer ends it; `more`: the user's messages in later turns; `tools`: as
    text for `conversation.read_tools`. `document`: one of the project's own documents, which comes before the text."""

    name: str
    title: str
    kind: str
    text: str
    system: str = ""
    json_schema: Mapping[str, Any] = field(default_factory=dict)
    before: tuple[Message, ...] = ()
    more: tuple[str, ...] = ()
    tools: str = ""
    document: str = ""

    def __post_init__(self) -> None:
        _expect(self.text.strip() or (self.before and self.before[-1].role == "tool"), "text", "the prompt")
        _expect(self.document in ("", *DOCUMENTS), "document", f"one of {', '.join(DOCUMENTS)}")

    @property
    def full_text(self) -> str:
        """The text, after the document."""
        if not self.document:
            return self.text
        return f"{(ROOT / self.document).read_text(encoding='utf-8').strip()}\n\n{self.text}"


@dataclass(frozen=True)
class Suite:
    name: str
    title: str
    prompts: tuple[Prompt, ...]

    def __post_init__(self) -> None:
        _expect(self.prompts, "prompts", "one prompt or more")
        names = [prompt.name for prompt in self.prompts]
        _expect(len(set(names)) == len(names), "prompts", "a different name for each prompt")


def load_pairs(folder: Path = PRESETS / "pairs") -> tuple[dict[str, Pair], list[str]]:
    """Load every pair in the folder by its file's stem, smallest first, and a sentence for each file that is no
    pair."""
    pairs, problems = _load(folder, Pair)
    return dict(sorted(pairs.items(), key=lambda item: item[1].size_gb)), problems


def load_suites(folder: Path = PRESETS / "prompts") -> tuple[dict[str, Suite], list[str]]:
    """Load every prompt suite in the folder by its file's stem, and a sentence for each file that is no suite."""
    return _load(folder, Suite)


@cache
def suites() -> Mapping[str, Suite]:
    """Return the repository's prompt suites that can be read, by name. They are read once."""
    return MappingProxyType(load_suites()[0])


def load_suite(path: Path) -> Suite:
    """Load one prompt suite from a file.

    Raises:
        PlaygroundError: the file is no suite, or cannot be read.
    """
    try:
        return _read_file(path, Suite)
    except PlaygroundError as error:
        raise PlaygroundError(f"{path.name} is not a suite: {error}") from None


def pair_of(
    pairs: Mapping[str, Pair],
    name: str,
    target: str = "",
    assistant: str | None = None,
    drafter: str | None = None,
    *,
    early_exit: int = 0,
    **how: str,
) -> Pair:
    """Return the preset of this name, or for OWN the pair of the user's models. The other arguments are those of
    `custom_pair`, which names further errors.

    Args:
        how: `compiled` and `dtype`, where they are not the pair's own, which "auto" stands for.

    Raises:
        PlaygroundError: there is no pair of this name.
    """
    if name not in (*pairs, OWN):
        raise PlaygroundError(f"There is no pair {name!r}. Choose one of {', '.join(pairs)}.")
    pair = custom_pair(target, assistant, drafter, early_exit) if name == OWN else pairs[name]
    given: dict[str, Any] = {name: value for name, value in how.items() if value != "auto"}
    return replace(pair, **given) if given else pair


def custom_pair(target: str, assistant: str | None, drafter: str | None = None, early_exit: int = 0) -> Pair:
    """Make a pair that the user typed.

    Args:
        target: a hub id or a folder.
        assistant: the drafter's weights: a hub id or a folder; for early-exit the number of layers.
        drafter: the method, where the assistant's folder does not determine it.
        early_exit: the number of layers, where it is not given as the assistant.

    Raises:
        PlaygroundError: no target was typed, the drafter cannot use the assistant, or for trees it is unknown which
            kind of network the assistant is.
    """
    target, assistant = target.strip(), (assistant or "").strip() or None
    if not target:
        raise PlaygroundError("No target model was named. Type its id on the hub (owner/name) or a folder.")
    title = " + ".join(Path(name).name for name in (target, assistant) if name)
    method = METHODS.get(drafter or "")
    wanted = method.drafts_with if method else ()
    kind_of_weights = next(iter(wanted), "assistant")
    weights: dict[str, str | int] = {"early-exit": early_exit} if early_exit else {}
    if assistant and METHODS[kind_of_weights].weights == "layers":
        if not assistant.isdecimal():
            raise PlaygroundError(f"{drafter} takes a number of the target's layers, such as 4, and not {assistant!r}.")
        weights[kind_of_weights] = int(assistant)
    elif assistant:
        kind = kind_of(assistant)
        if drafter in drafters() and not (kind in wanted if kind else wanted):
            made = f"is made to draft as {kind}" if kind else "was named to draft"
            raise PlaygroundError(
                f"{assistant} {made}, and the drafter {drafter} makes no use of it. Choose "
                f"{kind or 'the drafter that it is for'}, or name the target alone."
            )
        if not kind and len(wanted) > 1:
            raise PlaygroundError(
                f"{drafter} drafts with several kinds of networks, and nothing says which one {assistant} is: it is no "
                "folder here with a config.json that says so. Give its folder, or name it in a preset (presets/pairs)."
            )
        weights[kind or kind_of_weights] = assistant
    elif kind_of_weights == "mtp":
        weights["mtp"] = NATIVE
    default = next((name for name in drafters() if set(METHODS[name].drafts_with) & set(weights)), "ngram")
    return Pair("custom", title, target, default, size_gb=0, weights=weights)


def folder_of(name: str) -> Path:
    """Return the folder of a trained drafter: one of assets/drafters, or one of the user's."""
    shipped = SHIPPED / name
    return shipped if (shipped / "config.json").is_file() else Path(name).expanduser()


def kind_of(name: str) -> str | None:
    """Return the method that a folder on this machine holds weights for; None where it holds none, or is not here."""
    try:
        folder = folder_of(name)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):  # no such folder, no JSON, the home folder of an unknown user
        return None
    return recognised(config, headers(folder)) if isinstance(config, dict) else None


def _load(folder: Path, kind: type[T]) -> tuple[dict[str, T], list[str]]:
    good, problems = {}, []
    for path in sorted(folder.glob("*.yaml")):
        try:
            good[path.stem] = _read_file(path, kind)
        except PlaygroundError as error:
            problems.append(f"The preset {path.name}: {error}")
    return good, problems


def _read_file(path: Path, kind: type[T]) -> T:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # no Unicode, no date, too deep
        raise PlaygroundError(f"it is not YAML ({' '.join(str(error).split())}).") from None
    _expect(isinstance(data, dict), "the file", "keys with values")
    _expect("name" not in data, "name", "left out: it is the file's own name")
    return read(kind, {**data, "name": path.stem})


def _expect(condition: Any, key: str, expected: str) -> None:
    if not condition:
        raise PlaygroundError(f"{key} should be {expected}.")
