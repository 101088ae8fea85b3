"""Segments of an output: thinking, tool call, code, answer; and the figures of each.

A segment begins and ends at a model's own special tokens, by their ids: a text that only looks like a marker is text.
The prompt's end says in which one the output begins, since templates may open or close the thinking themselves. Code is
the text between fences (CommonMark 0.31, section 4.5) in an answer of any model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from playground.conversation import Message
from playground.metrics.lane import acceptance_rate, added, mean_accepted_length
from playground.trace import Trace, once

Segment = Literal["thinking", "tool call", "code", "answer"]
SEGMENTS: tuple[Segment, ...] = ("thinking", "tool call", "code", "answer")

# Qwen 3 and later, DeepSeek, GLM; Gemma 4; DeepSeek up to V3.1, and from V3.2 on, where calls end the message.
BEGINS: Mapping[str, Segment] = {
    "<think>": "thinking",
    "<tool_call>": "tool call",
    "<|channel>": "thinking",
    "<|tool_call>": "tool call",
    "<｜tool▁calls▁begin｜>": "tool call",
    "｜DSML｜": "tool call",
}
ENDS = {"</think>", "</tool_call>", "<channel|>", "<tool_call|>", "<｜tool▁calls▁end｜>", "<|end|>", "<|call|>"}
# gpt-oss: <|start|>assistant<|channel|>analysis<|message|>…<|end|>. The header names the segment.
HEADS, HEAD_END = {"<|start|>", "<|channel|>"}, "<|message|>"
TURNS = {"<|im_start|>", "<｜User｜>", "<｜Assistant｜>", "<|user|>", "<|assistant|>", "<|observation|>", "<|turn>"}
MARKERS = (*BEGINS, *sorted(ENDS), *sorted(HEADS), HEAD_END, *sorted(TURNS))
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


@once
def segments(trace: Trace) -> Sequence[Segment]:
    """Return the segment of each token of the output. A marker belongs to the segment that it begins or ends. Without
    the markers' ids, as from a server, only fences are found."""
    return [segment or "answer" for segment in _read(trace).found]


def answered(trace: Trace) -> Message:
    """Return the output as the assistant's message of a conversation, with the thinking separate and without markers.
    With a template that prints neither, the next turn has the words that the model wrote."""
    state = _read(trace)
    said = [
        (segment, token.text)
        for at, (segment, token) in enumerate(zip(state.found, trace.tokens, strict=True))
        if not token.special and at not in state.in_header
    ]
    thinking = "".join(text for segment, text in said if segment == "thinking")
    content = "".join(text for segment, text in said if segment != "thinking")
    if not thinking:
        return Message("assistant", content)
    for marker in BEGINS.keys() | ENDS:  # for a tokenizer in which they are not special
        thinking = thinking.removeprefix(marker).removesuffix(marker)
    return Message("assistant", content.lstrip("\n"), thinking.strip("\n"))


def _read(trace: Trace) -> _State:
    """Read the output. A grammar holds from the first token on, so that under one nothing begins as thinking."""
    state = _State(dict(trace.markers))
    for id_ in trace.prompt_ids or ():
        state.read(id_, "")
    state.found.clear()
    state.in_header.clear()
    if trace.request.constraint:
        state.kind = "answer"
    for token in trace.tokens:
        state.read(token.id, token.text)
    return state


@dataclass(frozen=True)
class SegmentFigures:
    """The rounds that began in one segment. `seconds` and `timed` leave out a run's first round, the prefill: decoding
    time, and the tokens that came out in it."""

    segment: Segment
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    seconds: float
    timed: int

    @property
    def acceptance_rate(self) -> float | None:
        return acceptance_rate(self.accepted, self.drafted)

    @property
    def mean_accepted_length(self) -> float | None:
        return mean_accepted_length(self.tokens, self.rounds)

    @property
    def tokens_per_s(self) -> float | None:
        return self.timed / self.seconds if self.seconds else None


@once
def by_segment(trace: Trace) -> Sequence[SegmentFigures]:
    """Return the figures of each segment that a round began in; none where a server does not report the rounds."""
    if trace.totals:
        return []
    of_tokens, found, at, last_s = segments(trace), list[SegmentFigures](), 0, None
    for round_ in trace.rounds:
        tokens = len(round_.tokens)
        took = 0.0 if last_s is None else round_.end_s - last_s
        timed = 0 if last_s is None else tokens
        found.append(SegmentFigures(of_tokens[at], tokens, 1, len(round_.drafted), len(round_.accepted), took, timed))
        at, last_s = at + tokens, round_.end_s
    return add_segments([found])


def add_segments(several: Iterable[Sequence[SegmentFigures]]) -> list[SegmentFigures]:
    """Add up the figures of several runs."""
    sums: dict[Segment, list[SegmentFigures]] = {}
    for each in (figures for run in several for figures in run):
        sums.setdefault(each.segment, []).append(each)
    return [added(SegmentFigures, sums[name], segment=name) for name in SEGMENTS if name in sums]


@dataclass
class _State:
    """A reader of tokens, one by one. `found`: the segment of each; None in a header that has not ended. `in_header`:
    the positions of the tokens of headers, ended or not."""

    names: Mapping[int, str]
    found: list[Segment | None] = field(default_factory=list)
    in_header: set[int] = field(default_factory=set)
    kind: Segment = "answer"
    header: str | None = None
    fence: str = ""  # the opening fence of code that has not ended
    line: str = ""
    line_at: int = 0  # the first token of the line
    opening: bool = False  # whether the line opens the code

    def read(self, id_: int | None, text: str) -> None:
        """Read the next token."""
        marker = self.names.get(id_, "") if id_ is not None else ""
        if marker in TURNS:
            self.kind, self.header = "answer", None
        elif marker in HEADS:
            self.header = self.header or ""
        elif self.header is not None:
            self._read_header(marker, text)
            return
        elif marker in BEGINS:
            self.kind = BEGINS[marker]
        elif marker in ENDS:
            self.found.append(self.kind)
            self.kind = "answer"
            return
        if self.header is not None:
            self._found_header()
        elif self.kind == "answer":
            self._read_answer(text)
        else:
            self.found.append(self.kind)

    def _read_header(self, marker: str, text: str) -> None:
        assert self.header is not None
        self.header += text
        self._found_header()
        if marker == HEAD_END:
            self.kind = "thinking" if "analysis" in self.header else "tool call" if "to=" in self.header else "answer"
            self.found = [segment or self.kind for segment in self.found]
            self.header = None

    def _found_header(self) -> None:
        self.in_header.add(len(self.found))
        self.found.append(None)

    def _read_answer(self, text: str) -> None:
        """Read a token of the answer, which is code between fences, these included."""
        self.found.append("code" if self.fence else "answer")
        for part in text.splitlines(keepends=True):
            self.line_at = self.line_at if self.line else len(self.found) - 1
            self.line += part
            marks = FENCE.match(self.line)
            if marks and (not self.fence or self.opening):
                self.fence, self.opening = marks[1], True
                self.found[self.line_at :] = ["code"] * (len(self.found) - self.line_at)
            if part.endswith(("\n", "\r")):
                closes = marks and marks[1].startswith(self.fence) and self.line.strip() == marks[1]
                if closes and not self.opening:
                    self.fence = ""
                self.line, self.opening = "", False
