"""Presets: model pairs and prompt suites, read from YAML into dataclasses. Knows neither models nor pages."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from playground import settings
from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError

PRESETS = Path(__file__).resolve().parent.parent / "presets"
SHIPPED = PRESETS.parent / "assets" / "drafters"
DRAFTERS = tuple(name for name in METHODS if name != "none")
# Ways of drafting, by the model type of what was published for them.
PUBLISHED = {"gemma4_assistant": "gemma4", "gemma4_unified_assistant": "gemma4"}
NATIVE = "native"  # the MTP layers of the target's own checkpoint
DTYPES = ("auto", "float32", "bfloat16", "float16", "int8", "int4")
T = TypeVar("T")


@dataclass(frozen=True)
class Pair:
    """A target and the ways of drafting that fit it.

    `target` and what drafts for it are ids on the hub, folders (also those of assets/drafters), or "starter". Each of
    `assistant`, `universal`, … is what the way of drafting of that name drafts with; `mtp` may be "native", for the
    target's own layers, and `early_exit` is the number of the target's layers that draft. `drafter` is the default of
    `drafters`.
    `nodes`: the most tokens of a draft tree. `size_gb` is what the weights of both take in bf16, in 1e9 bytes; 0 where
    it is not known. `note` is one line for the user, or "".
    """

    name: str
    title: str
    target: str
    drafters: tuple[str, ...]
    drafter: str
    lookahead: int
    size_gb: float
    assistant: str | None = None
    universal: str | None = None
    early_exit: int = 0
    gemma4: str | None = None
    mtp: str | None = None
    heads: str | None = None
    medusa: str | None = None
    dflash: str | None = None
    eagle3: str | None = None
    policy: str = settings.default("policy")
    confidence_threshold: float = settings.default("confidence_threshold")
    nodes: int = settings.default("nodes")
    dtype: str = "auto"
    gated: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        _expect(self.title.strip(), "title", "some text")
        _expect(self.target.strip(), "target", "an id on the hub, a folder, or starter")
        _expect(self.drafters and set(self.drafters) <= set(DRAFTERS), "drafters", f"some of {', '.join(DRAFTERS)}")
        for drafter in self.drafters:
            wanted = METHODS[drafter].weights
            _expect(not wanted or self.drafts_by(drafter), " or ".join(wanted), f"named, for the drafter {drafter}")
        _expect(self.drafter in self.drafters, "drafter", f"one of this pair's drafters ({', '.join(self.drafters)})")
        for name in settings.PRESET:
            setting = settings.SETTINGS[name]
            _expect(setting.accepts(getattr(self, name)), name, setting.allowed)
        _expect(self.early_exit >= 0, "early_exit", "a number of layers")
        _expect(self.size_gb >= 0, "size_gb", "a size in GB, 0 or more")
        _expect(self.dtype in DTYPES, "dtype", f"one of {', '.join(DTYPES)}")

    def weights_of(self, drafter: str) -> str | None:
        """What a way of drafting drafts with; None where it needs no weights.

        Raises:
            PlaygroundError: it needs some, and the pair names none.
        """
        wanted, field = METHODS[drafter].weights, self.drafts_by(drafter)
        if wanted and not field:
            raise PlaygroundError(
                f"The pair {self.name} has nothing for the drafter {drafter} to draft with. "
                f"Choose another drafter ({', '.join(self.drafters)}), or a pair that names its {' or '.join(wanted)}."
            )
        return f"its first {self.early_exit} layers" if field == "early_exit" else field and getattr(self, field)

    def drafts_by(self, drafter: str) -> str | None:
        """The field that names what a way of drafting drafts with here; None where there is none."""
        return next((field for field in METHODS[drafter].weights if getattr(self, field)), None)

    @property
    def models(self) -> tuple[str, ...]:
        """The target, and all that can draft for it beside its own weights."""
        names = [getattr(self, field) for way in METHODS.values() for field in way.weights if field != "early_exit"]
        return tuple(dict.fromkeys(name for name in (self.target, *names) if name and name != NATIVE))


@dataclass(frozen=True)
class Prompt:
    """One example. `kind` says what it exercises; `system` is the system prompt, or ""."""

    name: str
    title: str
    kind: str
    text: str
    system: str = ""

    def __post_init__(self) -> None:
        _expect(self.text.strip(), "text", "the prompt")


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
    """Every pair in the folder by its file's stem, smallest first, and a sentence for each file that is no pair."""
    pairs, problems = _load(folder, Pair)
    return dict(sorted(pairs.items(), key=lambda item: item[1].size_gb)), problems


def load_suites(folder: Path = PRESETS / "prompts") -> tuple[dict[str, Suite], list[str]]:
    """Every prompt suite in the folder by its file's stem, and a sentence for each file that is no suite."""
    return _load(folder, Suite)


def custom_pair(target: str, assistant: str | None, drafter: str | None = None, early_exit: int = 0) -> Pair:
    """A pair that the user typed: hub ids or folders, or for an early exit the number of layers as the second.
    `drafter` tells what the second is, where it cannot be seen from its folder. Without one, only what needs no further
    weights is left: lookup, and the target's own layers.

    Raises:
        PlaygroundError: no target was typed, the drafter does not draft with the second, or for trees it is not known
        what that is.
    """
    target, assistant = target.strip(), (assistant or "").strip() or None
    if not target:
        raise PlaygroundError("No target model was named. Type its id on the hub (owner/name) or a folder.")
    title = " + ".join(Path(name).name for name in (target, assistant) if name)
    wanted = METHODS[drafter].weights if drafter in METHODS else ()
    asked = next(iter(wanted), None)
    drafts: dict[str, Any] = {"early_exit": early_exit}
    if asked == "early_exit" and assistant:
        if not assistant.isdecimal():
            raise PlaygroundError(f"{drafter} takes a number of the target's layers, such as 4, and not {assistant!r}.")
        drafts["early_exit"] = int(assistant)
    elif assistant:
        kind = kind_of(assistant)
        if drafter in METHODS and drafter != "none" and not (kind in wanted if kind else wanted):
            made = f"is made to draft as {kind}" if kind else "was named to draft"
            raise PlaygroundError(
                f"{assistant} {made}, and the drafter {drafter} makes no use of it. Choose "
                f"{kind or 'the drafter that it is for'}, or name the target alone."
            )
        if not kind and len(wanted) > 1:
            raise PlaygroundError(
                f"{drafter} drafts with several kinds of drafters, and which of them {assistant} is cannot be told: it "
                "is no folder here with a config.json that says so. Give its folder, or name it in a preset "
                "(presets/pairs)."
            )
        drafts[kind or asked or "assistant"] = assistant
    elif asked == "mtp":
        drafts["mtp"] = NATIVE
    able = [name for name in DRAFTERS if not METHODS[name].weights or any(map(drafts.get, METHODS[name].weights))]
    default = next((name for name in able if METHODS[name].weights), able[0])
    return Pair("custom", title, target, tuple(able), default, settings.default("lookahead"), size_gb=0, **drafts)


def folder_of(name: str) -> Path:
    """Where a trained drafter lies: a folder of assets/drafters, or one of the user's."""
    shipped = SHIPPED / name
    return shipped if (shipped / "config.json").is_file() else Path(name).expanduser()


def kind_of(name: str) -> str | None:
    """The way of drafting that a folder on this machine was made for; None where it is no drafter, or not here."""
    try:
        config = json.loads((folder_of(name) / "config.json").read_text(encoding="utf-8"))
        kind = config.get("kind") or _published(config)
    except (OSError, ValueError, AttributeError, TypeError, RuntimeError):  # no config that we know; ~ of nobody here
        return None
    return kind if isinstance(kind, str) and kind in METHODS and METHODS[kind].weights == (kind,) else None


def _published(config: dict[str, Any]) -> str | None:
    """The way of drafting that a drafter was published for, where its config.json tells."""
    for name in config.get("architectures") or ():
        if "Eagle3" in name:
            return "eagle3"
        if "DFlash" in name or name == "MuseGlimmerAssistantModel":
            return "dflash"
    if "medusa_num_heads" in config:
        return "medusa"
    return config.get("speculators_model_type") or PUBLISHED.get(config.get("model_type"))


def _load(folder: Path, kind: type[T]) -> tuple[dict[str, T], list[str]]:
    good, problems = {}, []
    for path in sorted(folder.glob("*.yaml")):
        try:
            good[path.stem] = _read_file(path, kind)
        except PlaygroundError as error:
            problems.append(str(error))
    return good, problems


def _read_file(path: Path, kind: type[T]) -> T:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        return _build(kind, data, "", name=path.stem)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        what = " ".join(str(error).split())
        raise PlaygroundError(f"The preset {path.name} is not YAML: {what}.") from None
    except PlaygroundError as error:
        raise PlaygroundError(f"The preset {path.name}: {error}") from None


def _build(kind: type[T], data: Any, where: str, **given: str) -> T:
    """Makes the dataclass `kind` from a mapping. `where` is the mapping's own key, `given` what is not read from it."""
    _expect(isinstance(data, dict), where or "the file", "keys with values")
    prefix = f"{where}." if where else ""
    hints = {key: hint for key, hint in get_type_hints(kind).items() if key not in given}
    required = [field.name for field in fields(kind) if field.default is MISSING and field.name in hints]
    for key in data:
        _expect(key in hints, f"{prefix}{key}", f"one of the known keys: {', '.join(hints)}")
    for key in required:
        _expect(key in data, f"{prefix}{key}", "there, and is missing")
    return kind(**given, **{key: _value(hints[key], value, f"{prefix}{key}") for key, value in data.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    """Checks a value against a type hint of this module's dataclasses; lists become tuples."""
    if get_origin(hint) is tuple:
        _expect(isinstance(value, list), where, "a list")
        return tuple(_value(get_args(hint)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if hint is Prompt:
        return _build(Prompt, value, where)
    if get_args(hint):  # str | None
        return None if value is None else _value(str, value, where)
    allowed = (int, float) if hint is float else hint
    good = isinstance(value, allowed) and (hint is bool or not isinstance(value, bool))
    _expect(good, where, {str: "text", bool: "true or false", int: "a whole number", float: "a number"}[hint])
    return value


def _expect(condition: Any, key: str, expected: str) -> None:
    if not condition:
        raise PlaygroundError(f"{key} should be {expected}.")
