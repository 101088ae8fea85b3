"""A request, and the lanes that answer it: their settings, checks, labels and displayed names. It imports no model
code."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from playground import conversation
from playground.conversation import Message, check_unicode
from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError, check
from playground.presets import BESIDE, Pair
from playground.settings import (
    CONSTRAINTS,
    DRAFTING,
    SAMPLING,
    SETTINGS,
    SWEPT,
    AnswerSettings,
    DraftSettings,
    check_fields,
)

STANDARD = "Standard"  # the name of the lane that decodes without a drafter
LOCAL = "local"  # the backend in this process
MANY = 3  # from this number on, drafters are counted, not named
LOSSY = "lossy"  # in the name of a lane whose rule is not exact
SYNTHETIC = "synthetic"  # in the name of a lane whose verdicts are drawn

Axis = Literal["lookahead", "nodes", "confidence_threshold", "temperature", "prompt_tokens", "depth", "acceptance"]
AXES: dict[str, str] = {
    **{name: SETTINGS[name].label.lower() for name in SWEPT},
    "prompt_tokens": "prompt tokens",
    "depth": "depth of the context",
    "acceptance": "rate of acceptance",
}  # the settings that a sweep can vary
Rule = Literal["exact", "wrong-q", "top-2", "typical", "block-residual", "traversal-alpha"]
LOSSY_RULES: dict[Rule, str] = {
    "wrong-q": "takes the drafter's probability for half of what it is",
    "top-2": "accepts the target's two likeliest tokens",
    "typical": "Medusa's typical acceptance",
    "block-residual": "block verification with the tests and the remainder of the token-wise rule",
    "traversal-alpha": "traversal of a sampled tree that divides by what is left of q",
}
OF_RULES: dict[Rule, str] = {"block-residual": "block", "traversal-alpha": "traversal"}  # the verification it breaks
SAMPLED_TREES = ("recursive", "traversal")  # verification for trees whose tokens are sampled
JOINT = ("block", "traversal")  # verification that judges a draft as a whole
# For each rule the one that judges the same drafts in the other way.
OTHER_RULE = {"token": "block", "block": "token", "recursive": "traversal", "traversal": "recursive"}
MOST_STOPS, STOP_CHARACTERS = 16, 200  # stop strings of a request, and the length of each
ESCAPES = {r"\n": "\n", r"\r": "\r", r"\t": "\t", r"\\": "\\"}  # in a stop string


@dataclass(frozen=True)
class Request(AnswerSettings):
    """A request, which every lane of a comparison answers. `prompt`: the user's last message; "" where the conversation
    continues from a tool's answer. `history`: the conversation before it, without the system prompt."""

    prompt: str
    history: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        resumed = bool(self.history) and self.turns[-1].role == "tool"
        check(
            bool(self.prompt.strip()) or (resumed and not self.prompt),
            "The prompt is empty. Write something for the models to continue.",
        )
        check_unicode("The prompt", self.prompt)
        check_unicode("The system prompt", self.system)
        conversation.check_turns(self.turns)
        conversation.read_tools(self.tools)
        conversation.read_arguments(self.template)
        check_fields(self)
        _check_constraint(self)
        _read_stops(self.stop_strings)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings. The first one that appears ends the answer."""
        return _read_stops(self.stop_strings)

    @property
    def constraint(self) -> str:
        """The name of the setting with the answer's grammar; "" for none."""
        return next((name for name in CONSTRAINTS if getattr(self, name)), "")

    @classmethod
    def of(cls, messages: Iterable[Message], prompt: str = "", **answer: Any) -> Request:
        """Make the request for the next message of a conversation. `prompt`: a further message of the user, or "".
        `answer`: fields of `AnswerSettings`.

        Raises:
            PlaygroundError: it ends with a message that cannot be answered, or has a second system prompt.
        """
        turns = list(messages)
        if turns and turns[0].role == "system":
            check(
                not answer.get("system"),
                "There are two system prompts: the setting, and the conversation's own.",
            )
            answer["system"] = turns.pop(0).content
        check(
            not (prompt and turns and turns[-1].role != "assistant"),
            "The conversation ends with a message that waits for an answer, and a prompt follows it. Leave one of them "
            "out.",
        )
        if not prompt:
            conversation.check_turns(turns)
            prompt = turns.pop().content if turns[-1].role == "user" else ""
        return cls(prompt, history=tuple(turns), **answer)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """True where earlier tokens change the logits, in greedy decoding too."""
        return any(getattr(self, name) != SETTINGS[name].neutral for name in SAMPLING if SETTINGS[name].greedy)

    def next_turn(self, answer: Message, prompt: str) -> Request:
        """Return the request with this answer added to its conversation, and then the user's next message."""
        return replace(self, prompt=prompt, history=(*self.turns, answer))

    @property
    def turns(self) -> tuple[Message, ...]:
        """The conversation without its system prompt."""
        return (*self.history, Message("user", self.prompt)) if self.prompt else self.history

    @property
    def earlier(self) -> tuple[Message, ...]:
        """The turns up to the last answer, which were in the cache when it ended."""
        turns = self.turns
        while turns and turns[-1].role != "assistant":
            turns = turns[:-1]
        return turns

    @property
    def turn_seed(self) -> int:
        """The seed of this turn. Each later turn of a conversation has another one, made from the messages: under one
        seed a server would draw the numbers of the first turn again. It has 31 bits, which every server takes."""
        if not self.earlier:
            return self.seed
        said = repr((self.seed, self.turns)).encode()
        return int.from_bytes(blake2b(said, digest_size=4).digest(), "little") >> 1

    @property
    def question(self) -> str:
        """The displayed text of the message to answer: the prompt, or the tool's answer."""
        return self.turns[-1].content

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages for a server, in OpenAI's form."""
        return self.as_messages(self.turns, text_arguments=True)

    def as_messages(self, turns: Iterable[Message], *, text_arguments: bool = False) -> list[dict[str, Any]]:
        """Return some of its turns after the system prompt, in the form of `conversation.as_dict`."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return system + [conversation.as_dict(turn, text_arguments=text_arguments) for turn in turns]

    @property
    def text(self) -> str:
        """The text to continue without a chat template."""
        return self.as_text(self.turns)

    def as_text(self, turns: Iterable[Message]) -> str:
        return "\n\n".join(filter(None, [self.system, *(turn.text for turn in turns)]))

    @property
    def history_json(self) -> str:
        """The messages before the prompt as JSON for `conversation.read_messages`; "" if there are none."""
        turns = self.turns[:-1] if self.prompt else self.turns
        return json.dumps([conversation.as_dict(turn) for turn in turns], ensure_ascii=False) if turns else ""


def read_request(prompt: str, messages: str, answer: Mapping[str, Any]) -> Request:
    """Make a request from the settings' values. `messages`: a conversation for `conversation.read_messages`, or ""; its
    tools count where `answer` has none.

    Raises:
        PlaygroundError: there is neither a prompt nor a conversation, or one of them is not accepted.
    """
    if not messages.strip():
        return Request(prompt, **answer)
    found, tools = conversation.read_messages(messages)
    return Request.of(found, prompt, **{**answer, "tools": answer.get("tools") or tools})


def _check_constraint(request: Request) -> None:
    """Check the grammar's form; whether a text can satisfy it shows when it is used.

    Raises:
        PlaygroundError: there is more than one, or a schema that is not JSON.
    """
    given = [SETTINGS[name].label for name in CONSTRAINTS if getattr(request, name)]
    check(len(given) < 2, f"An answer keeps to one of {' and '.join(given)}. Leave the others out.")
    for name in CONSTRAINTS:
        check_unicode(f"The {SETTINGS[name].label}", getattr(request, name))
    if request.json_schema:
        try:
            schema = json.loads(request.json_schema)
        except (ValueError, RecursionError) as error:
            raise PlaygroundError(f"The JSON schema is not JSON ({error}). Correct it and run again.") from None
        check(isinstance(schema, dict | bool), 'The JSON schema is not an object. Write one, as in {"type": "object"}.')


def _read_stops(text: str) -> tuple[str, ...]:
    """Return the stop strings of a text with one a line. Empty lines are ignored.

    Raises:
        PlaygroundError: there are too many, one is too long, or one has a backslash that begins no escape.
    """
    most = MOST_STOPS * (2 * STOP_CHARACTERS + 1)
    check(
        len(text) <= most,
        f"The stop strings have {len(text):,} characters together, and {most:,} are accepted. Leave some out.",
    )
    check_unicode("The stop strings", text)
    stops = tuple(dict.fromkeys(map(_unescaped, filter(None, text.split("\n")))))
    check(
        len(stops) <= MOST_STOPS,
        f"There are {len(stops)} stop strings, and {MOST_STOPS} are accepted. Leave some out.",
    )
    longest = max(map(len, stops), default=0)
    check(
        longest <= STOP_CHARACTERS,
        f"A stop string has {longest} characters, and {STOP_CHARACTERS} are accepted. Shorten it.",
    )
    return stops


def _unescaped(line: str) -> str:
    unknown = [found for found in re.findall(r"\\.?", line) if found not in ESCAPES]
    check(
        not unknown,
        f"A stop string holds {''.join(unknown[:1])}, which is none of {', '.join(ESCAPES)}. Write "
        r"\\ for a backslash itself.",
    )
    return re.sub(r"\\.", lambda found: ESCAPES[found[0]], line)


@dataclass(frozen=True)
class Lane(DraftSettings):
    """A target, a way of drafting for it, and the settings of the drafts.

    `backend` names what runs the lane: LOCAL, or a server such as "vLLM at http://127.0.0.1:8000". `drafter` is a key
    of METHODS or, in a server, the server's name for its method; "none" is standard decoding. `assistant` names the
    draft model or trained drafter, if the method needs weights. `rule`: which draft tokens are accepted; all but
    "exact" change the output. `adapter`: the folder of a LoRA adapter that is merged into the target. `forced_rates`:
    the chance with which the draft token at each position is accepted if those before it were, regardless of the
    target; the last one holds for all further positions. The output is still that of standard decoding
    (decoding/lossy.py), and everything else is synthetic. Empty for real verdicts.
    """

    name: str
    target: str
    drafter: str = "none"
    assistant: str | None = None
    backend: str = LOCAL
    rule: Rule = "exact"
    adapter: str | None = None
    forced_rates: Annotated[
        tuple[float, ...], Field(validation_alias=AliasChoices("forced_rates", "drawn", "forced"))
    ] = ()  # in older files

    def __post_init__(self) -> None:
        check_fields(self)
        if self.backend == LOCAL:
            _check_known(self.drafter)
        check(self.rule == "exact" or LOSSY in self.name, f"A lane with the rule {self.rule} must be named {LOSSY}.")
        check(
            not self.forced_rates or SYNTHETIC in self.name, f"A lane with forced acceptance must be named {SYNTHETIC}."
        )
        check(all(0 <= rate <= 1 for rate in self.forced_rates), "Forced acceptance takes rates from 0 to 1.")

    @property
    def program(self) -> str:
        """The program that runs the lane, without its address."""
        return self.backend.partition(" at ")[0]

    @property
    def server_url(self) -> str:
        """The address of the server that runs the lane; "" for this process."""
        return self.backend.partition(" at ")[2]


def _check_known(drafter: str) -> None:
    known = ", ".join(METHODS)
    check(
        drafter in METHODS,
        f"There is no drafter {drafter!r}. Choose one of {known}, or install the package that adds it.",
    )


def standard_lane(pair: Pair) -> Lane:
    return Lane(STANDARD, pair.target)


def assisted_lane(pair: Pair, drafter: str | None = None, lookahead: int | None = None, **settings: Any) -> Lane:
    """Return a lane to compare with standard decoding. The drafter "none" is standard decoding once more, which shows
    how much two equal measurements differ.

    Args:
        settings: others of `DraftSettings`. The pair's values replace those that are None or left out.

    Raises:
        PlaygroundError: a drafter that does not exist, or that the pair lacks.
    """
    given = {"drafter": drafter or None, "lookahead": lookahead, **settings}
    settings = pair.defaults | {name: value for name, value in given.items() if value is not None}
    drafter = str(settings.pop("drafter"))
    _check_known(drafter)
    return Lane(METHODS[drafter].label, pair.target, drafter, pair.weights_of(drafter), **settings)


def at_lookahead(lane: Lane, lookahead: int) -> Lane:
    """Return the lane with another lookahead. A server's lane has it in its name, to distinguish such lanes."""
    name = lane.name if lane.backend == LOCAL else f"{lane.name} {lookahead}"
    return replace(lane, name=name, lookahead=lookahead)


def adapted(lane: Lane, adapter: str) -> Lane:
    """Return the lane on the target with an adapter, which its name mentions."""
    return replace(lane, name=f"{lane.name}, adapter {Path(adapter).name}", adapter=adapter)


def lossy(lane: Lane, rule: Rule) -> Lane:
    """Return the lane with another rule, which its name mentions."""
    verification = OF_RULES.get(rule, lane.verification)
    return replace(lane, name=f"{lane.name} ({LOSSY}: {rule})", rule=rule, verification=verification)


def fits(lane: Lane, rule: Rule) -> bool:
    """Return True if the rule changes how the lane's drafts are judged."""
    verification = OF_RULES.get(rule)
    return verification is None or (METHODS[lane.drafter].tree if verification == "traversal" else samples_drafts(lane))


def synthetic(lane: Lane, rates: Sequence[float]) -> Lane:
    """Return the lane with drawn verdicts, which its name mentions. `rates`: see `Lane.forced_rates`."""
    check(lane.backend == LOCAL and lane.drafter != "none", "Only a lane of this process that drafts can be forced.")
    return replace(lane, name=f"{lane.name} ({SYNTHETIC}: {_rates(rates)} accepted)", forced_rates=tuple(rates))


def _rates(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:.3g}" for rate in rates)


def lanes_of(pair: Pair, values: Mapping[str, Any], *, every: bool = False) -> list[Lane]:
    """Return the standard lane and the lane of a drafter, or one for each of the pair's drafters.

    Args:
        values: by the settings' names: `drafter`, and those of DRAFTING. The pair's replace those that are None or
            missing; other names are ignored.

    Raises:
        PlaygroundError: see `assisted_lane`.
    """
    drafters = pair.drafters if every else (values.get("drafter"),)
    settings = {name: values.get(name) for name in DRAFTING}
    return [standard_lane(pair), *(assisted_lane(pair, drafter, **settings) for drafter in drafters)]


def preset_of(lane: Lane, pairs: Iterable[Pair]) -> Pair | None:
    """Return the preset with a drafting lane's target, drafter and weights; None if there is none."""
    return next((pair for pair in pairs if _runs(pair, lane)), None)


def _runs(pair: Pair, lane: Lane) -> bool:
    known = lane.drafter in (*pair.drafters, *BESIDE)
    return known and pair.target == lane.target and pair.weights_of(lane.drafter) == lane.assistant


def samples_drafts(lane: Lane) -> bool:
    """Return True if a drafter of this process samples its tokens at a temperature rather than choosing them: the chain
    of a model or network, except one with another tokenizer; or a tree, for the rules that need it."""
    method = METHODS[lane.drafter]
    if method.tree:
        return lane.verification in SAMPLED_TREES
    return method.weights is not None and method.name != "universal"


def verified_by(lane: Lane) -> str:
    """Return the rule that judges the lane's drafts where they are sampled; "token" where the setting does not
    apply."""
    if lane.backend != LOCAL:
        return "token"
    meant = SAMPLED_TREES if METHODS[lane.drafter].tree else ("block",)
    return lane.verification if samples_drafts(lane) and lane.verification in meant else "token"


def together(lanes: Sequence[Lane]) -> str:
    """Return the lanes' names, such as "Prompt lookup and MTP layer", or their number of drafters."""
    found = list(dict.fromkeys(METHODS[lane.drafter].label if lane.backend == LOCAL else lane.name for lane in lanes))
    return " and ".join(found) if len(found) < MANY else f"{len(found)} drafters"


def label(lane: Lane) -> str:
    """Return a short, unambiguous key for the lane, such as "composite 10, 64 nodes, confidence 0.4"."""
    if lane.backend != LOCAL:
        return lane.name
    return ", ".join([f"{lane.drafter} {lane.lookahead}", *_drafts(lane), *_verdicts(lane)])


def names(lanes: Iterable[Lane]) -> dict[str, str]:
    """Return the displayed name of each lane, by its label, such as "Prompt lookup + tree (10 ahead)". It has the
    lane's other settings where two names would be equal."""
    of = {label(lane): lane for lane in lanes}
    short = {key: _name(lane, ()) for key, lane in of.items()}
    shared = Counter(short.values())
    return {key: name if shared[name] == 1 else _name(of[key], _drafts(of[key])) for key, name in short.items()}


def _name(lane: Lane, more: Sequence[str]) -> str:
    if lane.backend != LOCAL:
        return lane.name
    if lane.drafter == "none":
        return METHODS["none"].label
    return f"{METHODS[lane.drafter].label} ({', '.join([f'{lane.lookahead} ahead', *more, *_verdicts(lane)])})"


def _drafts(lane: Lane) -> list[str]:
    """Return the settings of its drafts other than the lookahead."""
    tree = [f"{lane.nodes} nodes"] if METHODS[lane.drafter].tree else []
    threshold = f" {lane.confidence_threshold:g}" if lane.policy == "confidence" else ""
    policy = [] if lane.policy == "constant" else [f"{lane.policy}{threshold}"]
    return [*tree, *policy, *([] if verified_by(lane) == "token" else [lane.verification])]


def _verdicts(lane: Lane) -> list[str]:
    """Return the settings by which verdicts are not the target's own."""
    rule = [] if lane.rule == "exact" else [f"{LOSSY}: {lane.rule}"]
    return [*rule, *([f"{SYNTHETIC}: {_rates(lane.forced_rates)} accepted"] if lane.forced_rates else [])]
