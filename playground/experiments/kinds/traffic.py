"""The Traffic experiment: does speculation pay on the conversations of a log?

A log is JSON or JSON lines. An entry has `messages` (OpenAI's chat completions, perhaps with `tools`, and with the
answer in `choices`, under `response` or next to them), or `conversations` (ShareGPT). The messages may be under
`request` or, as in files of OpenAI's Batch API, under `body`. Each assistant turn becomes a question with its real
history. Before anything is decoded, the acceptance of drafters that read tokens or hidden states is estimated over the
logged answers; the decoded turns then show how far the estimate is off.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from playground import results
from playground.backends.base import Backend
from playground.conversation import Message, messages_of, read_tools, unwrapped
from playground.errors import PlaygroundError, check
from playground.experiments import suite
from playground.experiments.events import Progress, Watch
from playground.experiments.kinds.kind import Kind, OfPrompts, titled
from playground.experiments.kinds.options import (
    ANSWER,
    AnswerOptions,
    Decoders,
    DraftersOptions,
    OrderOptions,
    RunsOptions,
    ServersOptions,
    TreeOptions,
    option,
)
from playground.experiments.questions import OnError, Question, spread
from playground.lane import Lane, Request, label, together
from playground.metrics.drafts import Counts, add_counts
from playground.results import STANDARD, Estimated, SuiteResult, TrafficResult
from playground.settings import PRESET

FORMS = (
    "A log is JSON or JSON lines: entries with `messages` as OpenAI's chat completions have them, or with "
    "`conversations` as ShareGPT has them."
)
NAMES = {
    "user": ("human", "user"),
    "assistant": ("gpt", "assistant", "chatgpt", "bing", "bard"),
    "system": ("system",),
    "tool": ("tool", "observation"),
}  # ShareGPT's, by the role
SHAREGPT = {name: role for role, names in NAMES.items() for name in names}
MOST_TURNS = 4  # later ones are one category


@dataclass(frozen=True)
class Turn:
    """An assistant turn: its request, and the logged answer."""

    question: Question
    answer: Message


@dataclass(frozen=True)
class Log:
    """A log. `problems`: a sentence for each entry that was skipped."""

    turns: tuple[Turn, ...]
    conversations: int
    problems: tuple[str, ...]


def read_log(source: str, settings: Mapping[str, Any], on_error: OnError = "skip") -> Log:
    """Reads a log.

    Args:
        source: a file, or the log itself.
        settings: the other fields of each `Request`.
        on_error: whether a broken entry ends the reading or is skipped.

    Raises:
        PlaygroundError: it cannot be read, holds no assistant's turn, or an entry is broken.
    """
    name, text = _text(source)
    turns: list[Turn] = []
    conversations, problems = 0, []
    for where, entry in _entries(text):
        try:
            check(entry is not None, "this is not JSON.")
            found = _turns(entry, settings, conversations)
            check(bool(found), "it has no answer of the assistant to a question.")
            turns += found
            conversations += 1
        except PlaygroundError as error:
            problem = f"{name}, {where}: {error}"
            check(on_error == "skip", f"{problem} {FORMS}")
            problems.append(problem)
    if not turns:
        raise PlaygroundError(f"{name} holds no assistant's turn. {(problems or [''])[0]} {FORMS}".replace("  ", " "))
    return Log(tuple(turns), conversations, tuple(problems))


def _text(source: str) -> tuple[str, str]:
    if source.lstrip().startswith(("{", "[")):
        return "The log", source
    path = Path(source).expanduser()
    try:
        return path.name, path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PlaygroundError(f"The log {path.name} cannot be read ({error}). {FORMS}") from None


def _entries(text: str) -> Iterable[tuple[str, Any]]:
    """Yields each entry's JSON with its position; None if it is no JSON."""
    whole = _parsed(text)
    if isinstance(whole, list) and not (whole and isinstance(whole[0], dict) and "role" in whole[0]):
        return [(f"entry {number}", entry) for number, entry in enumerate(whole, start=1)]
    if whole is not None:
        return [("entry 1", {"messages": whole} if isinstance(whole, list) else whole)]
    lines = enumerate(text.split("\n"), start=1)
    return [(f"line {number}", _parsed(line)) for number, line in lines if line.strip()]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _turns(entry: Any, settings: Mapping[str, Any], conversation: int) -> list[Turn]:
    entry = {"messages": entry} if isinstance(entry, list) else entry
    check(isinstance(entry, dict), "this is neither an object nor a list of messages.")
    request = unwrapped(entry)
    messages = messages_of(_sharegpt(entry["conversations"]) if "conversations" in entry else _openai(request, entry))
    tools = json.dumps(request["tools"]) if request.get("tools") else ""
    read_tools(tools)
    turns: list[Turn] = []
    for at, answer in enumerate(messages):
        if answer.role != "assistant" or not answer.text.strip() or at == 0 or messages[at - 1].role == "assistant":
            continue
        asked = Request.of(messages[:at], **{**settings, "tools": settings.get("tools") or tools})
        number = len(turns) + 1
        category = f"turn {number}" if number < MOST_TURNS else f"turn {MOST_TURNS} and later"
        turns.append(Turn(Question(category, asked, conversation=conversation), answer))
    return turns


def _openai(request: Mapping[str, Any], entry: Mapping[str, Any]) -> list[Any]:
    messages = request.get("messages")
    check(isinstance(messages, list), "it has neither `messages` nor `conversations`.")
    assert isinstance(messages, list)
    response = entry.get("response") if isinstance(entry.get("response"), dict) else entry
    assert response is not None
    choices = (response["body"] if isinstance(response.get("body"), dict) else response).get("choices")
    answers = [it["message"] for it in choices[:1] if isinstance(it, dict) and "message" in it] if choices else []
    return [*messages, *answers]


def _sharegpt(turns: Any) -> list[dict[str, Any]]:
    check(isinstance(turns, list), "`conversations` should be a list.")
    for number, turn in enumerate(turns, start=1):
        known = isinstance(turn, dict) and turn.get("from") in SHAREGPT and isinstance(turn.get("value"), str)
        check(known, f"turn {number} of `conversations` should have `from` (human or gpt) and `value`.")
    return [{"role": SHAREGPT[turn["from"]], "content": turn["value"]} for turn in turns]


class TrafficOptions(ServersOptions, OrderOptions, RunsOptions, AnswerOptions, TreeOptions, DraftersOptions):
    log: str = option("", "Log", "conversations as JSON or JSON lines: messages, or ShareGPT's form", positional=True)
    sample: int = option(0, "Sample", "assistant turns to decode, spread evenly; 0 for all", folded=True)
    estimate: bool = option(True, "Estimate first", "acceptance over the logged answers, without decoding", folded=True)
    texts: bool = option(True, "Texts", "whether the report may show what was asked", folded=True)
    on_error: Literal["stop", "skip"] = option(
        "skip", "Broken lines", "what a broken line of the log does", choices={"stop": "Stop", "skip": "Skip"},
        folded=True,
    )  # fmt: skip
    runs: int = option(1, "Runs", "runs of each turn in each lane", low=1, high=100, folded=True)

    def read(self) -> Log:
        """Reads the log.

        Raises:
            PlaygroundError: the log cannot be read, holds no turn, or has a broken line that is not to be skipped.
        """
        check(bool(self.log.strip()), f"Give a log of conversations. {FORMS}")
        settings: dict[str, Any] = {name: getattr(self, name) for name in ANSWER}
        return read_log(self.log, settings, self.on_error)

    def broken_lines(self) -> list[str]:
        return list(self.read().problems)


@dataclass(frozen=True, kw_only=True)
class Traffic(OfPrompts):
    """The work of a Traffic experiment. `turns`: all turns of the log. `questions`: the turns that are decoded."""

    lanes: tuple[Lane, ...]
    turns: tuple[Turn, ...]
    conversations: int
    skipped: tuple[str, ...] = ()
    estimate: bool = True
    texts: bool = True

    def run(self, baseline: Lane, backends: Mapping[str, Backend], watch: Watch) -> TrafficResult | None:
        """Estimates acceptance, then decodes the questions like `suite.run`; None if it was stopped before a turn was
        decoded."""
        counts = self._estimates(backends, watch) if self.estimate else {}
        found = self.run_suite(baseline, backends, watch, skip=True)
        if found is None:
            return None
        suite.check_ran(found)
        turns = len(self.turns) or len(self.questions)
        return traffic_result(found, counts, turns, self.conversations, self.skipped, texts=self.texts)

    def _estimates(self, backends: Mapping[str, Backend], watch: Watch) -> dict[str, Counts]:
        """Estimates each lane that decodes greedily in this process and whose drafts can be made at all positions at
        once."""
        from playground.backends.local import LocalBackend  # imports torch

        estimates: dict[str, Counts] = {}
        for number, lane in enumerate(self.lanes):
            backend = backends[lane.backend]
            if not isinstance(backend, LocalBackend) or not self.turns[0].question.request.greedy:
                continue
            try:
                backend.load(lane, watch.progress)
            except PlaygroundError:
                continue  # the suite leaves it out, and says why
            of_turns = []
            for at, turn in enumerate(self.turns):
                part = (number + at / len(self.turns)) / len(self.lanes)
                watch.progress(Progress(f"Estimating {together([lane])} on turn {at + 1} of {len(self.turns)}", part))
                try:
                    counts = backend.estimated(lane, turn.question.request, turn.answer)
                except PlaygroundError:
                    continue  # too long, or refused by the template; decoding it reports that
                if counts is None:
                    break
                of_turns.append(counts)
            if of_turns:
                estimates[label(lane)] = add_counts(of_turns)
        return estimates


def traffic_result(
    decoded: SuiteResult,
    counts: Mapping[str, Counts],
    turns: int,
    conversations: int,
    skipped: Sequence[str],
    *,
    texts: bool,
) -> TrafficResult:
    """Returns the result of a log: its suite by depth, the verdict, and the estimates by the lanes' labels."""
    names = list(dict.fromkeys(row.lane for row in decoded.rows))
    best = next(it for it in results.rank(decoded.rows) if it.lane != STANDARD)
    estimates = [
        Estimated(name, it, it.tokens_per_pass, decoded.of(name).mean_accepted_length if name in names else None)
        for name, it in counts.items()
    ]
    return TrafficResult(
        suite=decoded if texts else _without_texts(decoded),
        conversations=conversations,
        turns=turns,
        best=best.lane,
        speedup=best.speedup,
        interval=best.interval,
        depths=results.depths_of(decoded),
        estimates=tuple(estimates),
        skipped=tuple(skipped if texts else (sentence.partition(": ")[0] for sentence in skipped)),
    )


def _without_texts(found: SuiteResult) -> SuiteResult:
    blank = replace(found.request, prompt="…", history=(), system="", tools="")
    return replace(found, request=blank, prompts=(), traces=())


def _work(options: TrafficOptions, on: Decoders) -> tuple[Traffic, str]:
    log = options.read()
    settings = {name: getattr(options, name) for name in PRESET if name != "lookahead"}
    lanes = on.lanes(options.drafters, **settings)
    questions = [turn.question for turn in spread(log.turns, options.sample or len(log.turns))]
    work = Traffic(
        pair=on.pair, lanes=lanes, questions=tuple(questions),
        turns=log.turns if options.estimate else (), conversations=log.conversations, skipped=log.problems,
        estimate=options.estimate, texts=options.texts, runs=options.runs, seed=options.order_seed,
        baseline=on.baseline,
    )  # fmt: skip
    name = "a log" if options.log.lstrip().startswith(("{", "[")) else Path(options.log).name
    return work, titled(name, on.title, lanes, options.max_new_tokens)


KIND = Kind(
    name="traffic",
    label="Your own logs",
    does="Generates every assistant turn of a log of conversations again, and says whether speculation pays on them.",
    exits="0: all turns ran; 1: some failed, or a line was skipped",
    options=TrafficOptions,
    work=_work,
    experiment=Traffic,
    shared="best",
)
