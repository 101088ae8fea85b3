"""The options of the kinds of experiments, as fields from which tab, command and endpoint are made.

Importing this module is quick, because the terminal imports it for every command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from playground import settings
from playground.backends.connect import server_lanes
from playground.errors import check
from playground.lane import Lane, Request, assisted_lane, read_request
from playground.presets import Pair
from playground.settings import PRESET, SAMPLING, SETTINGS, Setting, Slider

if TYPE_CHECKING:
    from playground.experiments.questions import Question

Place = Literal["page", "terminal", "endpoint"]
EVERYWHERE: tuple[Place, ...] = ("page", "terminal", "endpoint")
ON_PAGE = ("max_new_tokens", "temperature")  # the answer settings that the page shows
NEW_TOKENS = 64  # fewer than for a single prompt, because there are many
MANY = 10**9
ANSWER = tuple(name for name in settings.ANSWER if name != "system")
WHOLE_ANSWER = tuple(name for name in ANSWER if name != "seed" and (name not in SAMPLING or SETTINGS[name].greedy))


@dataclass(frozen=True)
class Option:
    """Settings of a field as an option.

    Args:
        setting: label, help, bounds and choices; those of a tuple apply to each value.
        places: the places that have the option.
        group: its heading in the terminal's help.
        flag: the terminal's option; "" for the field's name.
        folded: whether it is under Advanced on the page.
        positional: whether the terminal takes it without a name.
        weighted: whether the drafters to choose from are those with weights of their own, and a folder or an id.
        by: another field, and the values that each of its choices stands for where none are given.
        default, of, several: the field's default, the type of its value or of each of its values, and whether it takes
            several. `options_of` fills them in.
    """

    setting: Setting
    places: tuple[Place, ...] = EVERYWHERE
    group: str = ""
    flag: str = ""
    folded: bool = False
    positional: bool = False
    weighted: bool = False
    by: tuple[str, Mapping[Any, tuple[Any, ...]]] | None = None
    default: Any = None
    of: Any = str
    several: bool = False


def option(
    default: Any,
    label: str,
    help: str,
    *,
    low: float = 0,
    high: float = MANY,
    choices: Mapping[Any, str] | None = None,
    slider: Slider | None = None,
    one: Any = "",
    **how: Any,
) -> Any:
    """Returns a field with its `Option`. `help`: one line without a full stop. `one`: an example value, where the
    default is empty. `how`: the other fields of `Option`."""
    if default not in ((), None):
        one = default[0] if isinstance(default, tuple) else default
    return _field(default, Setting(label, help, one, low, high, slider, choices=choices or {}), how)


def option_of(name: str, default: Any = ..., **how: Any) -> Any:
    """Returns a field for one of the settings of a comparison."""
    return _field(SETTINGS[name].default if default is ... else default, SETTINGS[name], how)


def _field(default: Any, setting: Setting, how: Mapping[str, Any]) -> Any:
    extra: Any = {"option": Option(setting, **how)}
    return Field(default, json_schema_extra=extra)


def _option(field: Any) -> Option:
    return field.json_schema_extra["option"]


def options_of(kind: type[Options], place: Place) -> dict[str, Option]:
    """Returns the options of a place by the names of their fields."""
    found: dict[str, Option] = {}
    for name, it in kind.model_fields.items():
        hint = it.annotation
        several = get_origin(hint) is tuple
        if several or get_origin(hint) in (Union, UnionType):  # a type with None
            hint = next(each for each in get_args(hint) if each is not type(None))
        found[name] = replace(_option(it), default=it.default, of=hint, several=several)
    return {name: option for name, option in found.items() if place in option.places}


class Options(BaseModel):
    """Options of a kind, checked when they are made.

    Raises:
        PlaygroundError: a value is not accepted.
    """

    model_config = ConfigDict(frozen=True)

    def broken_lines(self) -> list[str]:
        """Returns a sentence for each line of a file that is skipped."""
        return []

    def model_post_init(self, context: Any) -> None:
        for name, it in type(self).model_fields.items():
            value, setting = getattr(self, name), _option(it).setting
            for each in value if isinstance(value, tuple) else () if value is None else (value,):
                check(setting.accepts(each), setting.refusal(each))


def _answer(*names: str, **defaults: Any) -> Any:
    """Returns a base class with options for settings of a `Request`. The page shows only length and temperature."""
    hints = get_type_hints(Request)
    how = {name: EVERYWHERE if name in ON_PAGE else EVERYWHERE[1:] for name in names}
    made: Any = {
        name: (hints[name], option_of(name, defaults.get(name, ...), places=how[name], group="answer", folded=True))
        for name in names
    }
    return create_model("AnswerOptions", __base__=Options, **made)


def _drafting(*names: str) -> Any:
    """Returns a base class with options for the drafts of all lanes; None is the preset's value."""
    hints = get_type_hints(Lane)
    how: Any = {"places": ("terminal",), "group": "drafting"}
    made: Any = {name: (hints[name] | None, option_of(name, None, **how)) for name in names}
    return create_model("DraftingOptions", __base__=Options, **made)


AnswerOptions = _answer(*ANSWER, max_new_tokens=NEW_TOKENS)
WholeAnswerOptions = _answer(*WHOLE_ANSWER, max_new_tokens=NEW_TOKENS)  # every token can be sampled with it
DraftingOptions = _drafting(*PRESET)
TreeOptions = _drafting(*(name for name in PRESET if name != "lookahead"))


class PromptOptions(Options):
    suite: str = option(
        "examples", "Prompts", "a suite's name, or a .jsonl, .csv, .txt or .yaml file", group="prompts"
    )  # fmt: skip
    prompts: tuple[str, ...] = option((), "Texts", "your own prompts in place of the suite", places=("endpoint",))
    messages: str = option_of("messages", places=("terminal", "endpoint"), group="prompts")
    per_category: int = option(
        0, "Prompts per category", "prompts of each category, at most; 0 for all", group="prompts", folded=True
    )
    turns: int = option(0, "Turns", "turns of each prompt, at most; 0 for all", places=("terminal",), group="prompts")
    on_error: Literal["stop", "skip"] = option(
        "stop", "Broken lines", "what a broken line of the file does",
        choices={"stop": "Stop", "skip": "Skip"}, places=("terminal",), group="prompts",
    )  # fmt: skip

    def read(self, turns: int = 0) -> tuple[str, tuple[Question, ...]]:
        """Returns the name of the prompts, and the prompts. `turns`: overrides the option.

        Raises:
            PlaygroundError: there is no such suite or file, it holds no prompt, or a prompt is empty.
        """
        from playground.experiments.questions import Question

        if self.messages.strip():
            return "a conversation", (Question("own", read_request("", self.messages, self._settings)),)
        if self.prompts:
            check(all(text.strip() for text in self.prompts), "A prompt is empty. Leave it out.")
            given = tuple(Question("own", Request(text, **self._settings)) for text in self.prompts)
            return "own prompts", given
        return Path(self.suite).stem, tuple(self._load(turns)[0])

    def broken_lines(self) -> list[str]:
        return [] if self.on_error == "stop" or self.prompts or self.messages.strip() else self._load()[1]

    def _load(self, turns: int = 0) -> tuple[list[Question], list[str]]:
        from playground.experiments.questions import load

        turns = turns or self.turns
        return load(self.suite, self.per_category or None, self._settings, turns=turns or None, on_error=self.on_error)

    @property
    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ANSWER if hasattr(self, name)}


class DraftersOptions(Options):
    drafters: tuple[str, ...] = option(
        (),
        "Drafters",
        "each a lane, compared with standard decoding; none takes all that the pair has",
        group="drafting",
    )


class OrderOptions(Options):
    order_seed: int = option(0, "Order", "seed of the lanes' shuffled order", group="repeats", folded=True)


class RunsOptions(Options):
    runs: int = option(
        3, "Runs", "runs of each prompt in each lane", low=1, high=100, slider=Slider(1, 10, 1), group="repeats",
        folded=True,
    )  # fmt: skip


class ServersOptions(Options):
    """Two servers that decode instead of the pair; for a kind whose `alone` is true one is enough."""

    baseline_server: str = option(
        "", "Standard server", "address of one with the same model, without speculation", places=("terminal",),
        group="servers", folded=True,
    )  # fmt: skip
    server: str = option(
        "", "Server", "address of the one to measure, in place of a pair, such as http://127.0.0.1:8082",
        places=("terminal",), group="servers",
    )  # fmt: skip
    model: str = option(
        "", "Model's name", "if a server has several models", places=("terminal",), group="servers", folded=True
    )

    @property
    def served(self) -> bool:
        """Whether servers decode."""
        return bool(self.server.strip() or self.baseline_server.strip())

    def lanes(self, over: str, *, alone: bool) -> list[Lane]:
        """Returns the lanes of the servers, the baseline's first. `over`: the setting whose values are compared; "" for
        none. `alone`: whether the baseline's may be missing.

        Raises:
            PlaygroundError: a server is missing, does not answer, or has no such setting.
        """
        urls = [url for it in (self.baseline_server, self.server) if (url := it.strip())]
        check(bool(self.server and (alone or len(urls) == 2)), "Give both --server and --baseline-server.")
        unknown = over in ("nodes", "confidence_threshold")
        check(not unknown, f"No server can be asked for another {over.replace('_', ' ')}. Sweep the lookahead.")
        lanes, backends = server_lanes(urls, self.model.strip())
        server = backends[lanes[-1].backend]
        check(
            over != "lookahead" or server.obeys_lookahead,
            f"{server.name} does not draft as many tokens as a request asks for. Start it with each lookahead in turn, "
            "and compare these with `suite`.",
        )
        return lanes


class TracesOptions(Options):
    traces: str = option("", "Traces", "a file that takes the trace of every answer, one a line", places=("terminal",))

    @property
    def traces_file(self) -> str:
        """The absolute path, so that the experiment can be resumed in another folder."""
        return str(Path(self.traces).absolute()) if self.traces else ""


@dataclass(frozen=True)
class Decoders:
    """A pair that decodes in this process; or, without a pair, a server's lane that is compared with a baseline's."""

    title: str
    pair: Pair | None = None
    baseline: Lane | None = None
    server: Lane | None = None

    @classmethod
    def of(cls, pair: Pair) -> Decoders:
        return cls(pair.title, pair)

    def lanes(self, drafters: tuple[str, ...], **settings: Any) -> tuple[Lane, ...]:
        """Returns a lane for each drafter, or for all drafters of the pair; or the server's lane alone."""
        if self.server:
            return (self.server,)
        assert self.pair, "without a pair there is a server's lane"
        return tuple(assisted_lane(self.pair, drafter, **settings) for drafter in drafters or self.pair.drafters)
