"""A load test on disk: a line that says what is sent, then a line for each request of a level that has ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from playground.experiments import record
from playground.experiments.questions import Question
from playground.lane import Lane
from playground.metrics.load import Answered
from playground.trace import Environment


@dataclass(frozen=True)
class Header:
    """What is sent. `environments`: of the lanes, in their order."""

    lanes: tuple[Lane, ...]
    questions: tuple[Question, ...]
    requests: int
    seed: int
    environments: tuple[Environment, ...]


class Record(record.Record):
    """A record to write, or to go on with: more levels may be asked of the same test."""

    kind: ClassVar[str] = "load-record"
    what: ClassVar[str] = "load test"
    header: ClassVar[type] = Header
    row: ClassVar[type] = Answered

    def extend(self, rows: Iterable[Answered]) -> None:
        for row in rows:
            self.append(row)

    @staticmethod
    def comparable(header: Any) -> Any:
        return replace(header, environments=tuple(map(record.alike, header.environments)))


def read(path: Path) -> tuple[Header, tuple[Answered, ...]]:
    """What a load test's record holds.

    Raises:
        PlaygroundError: the file cannot be read, or is no such record.
    """
    header, rows, _ = record.read_as(path, Record)
    return header, rows
