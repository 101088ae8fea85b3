"""The journal of an experiment on disk while it runs, as JSON lines.

The first line says what is run, and each further line holds one question that has ended, with its traces. Lines are
only appended, so a crash or a full disk loses nothing that was finished, and the same suite resumes where it ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from playground import validation
from playground.errors import PlaygroundError, check
from playground.experiments.questions import Question
from playground.export import SCHEMA_VERSION, trace_to_json
from playground.lane import Lane
from playground.results import QuestionResult
from playground.trace import Environment, Trace

KIND = "suite-record"
HEAD = f'{{"kind": "{KIND}"'.encode()  # the first bytes of a suite's journal


@dataclass(frozen=True)
class Header:
    """The suite that is run. `environment`: where the baseline ran when the record was begun."""

    baseline: Lane
    lanes: tuple[Lane, ...]
    questions: tuple[Question, ...]
    runs: int
    seed: int
    environment: Environment


class Journal:
    """A journal to write. The file does not change before `begin`. A subclass is of another kind of experiment."""

    kind: ClassVar[str] = KIND
    what: ClassVar[str] = "suite"
    header: ClassVar[type] = Header
    row: ClassVar[type] = QuestionResult

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, header: Any) -> tuple[Any, ...]:
        """Creates the file, or continues one of the same run on the same machine. Returns the rows that it holds.

        Raises:
            PlaygroundError: it holds another run, or cannot be read or written.
        """
        try:
            data = self.path.read_bytes() if self.path.exists() else b""
            head = HEAD.replace(KIND.encode(), self.kind.encode())
            if b"\n" not in data and head.startswith(data[: len(head)]):  # new, or its header was never finished
                self.path.open("wb").close()
                self._write({"kind": self.kind, "schema_version": SCHEMA_VERSION, **asdict(header)})
                return ()
        except OSError as error:
            raise self._unwritten(error) from error
        found, results, whole = read_as(self.path, type(self))
        check(
            self.comparable(found) == self.comparable(header),
            f"{self.path} holds the rows of another {self.what}: other lanes, prompts or settings, or another machine. "
            "Name another file, or delete this one.",
        )
        try:
            with self.path.open("r+b") as file:  # removes what a crash left of the last line
                file.truncate(whole)
        except OSError as error:
            raise self._unwritten(error) from error
        return results

    def append(self, result: Any) -> None:
        """Appends a row.

        Raises:
            PlaygroundError: the file cannot be written.
        """
        self._write(asdict(result))

    @staticmethod
    def comparable(header: Any) -> Any:
        """Returns a header without what differs from run to run on one machine."""
        return replace(header, environment=alike(header.environment))

    def _write(self, line: dict[str, Any]) -> None:
        try:
            text = json.dumps(validation.mended(line), allow_nan=False)
        except ValueError:
            raise PlaygroundError(f"{self.path}: a result with a number that is not finite is not written.") from None
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> PlaygroundError:
        return PlaygroundError(
            f"{self.path} cannot be written ({error.strerror or error}). The prompts that it already holds are safe: "
            "make room, or choose another place, and run the same again to go on."
        )


def read(path: Path) -> tuple[Header, tuple[QuestionResult, ...]]:
    """Reads a journal. An unfinished last line is ignored.

    Raises:
        PlaygroundError: the file cannot be read, or is no journal.
    """
    header, results, _ = read_as(path, Journal)
    return header, results


def alike(environment: Environment) -> Environment:
    """Returns an environment without what differs from run to run on one machine."""
    return replace(environment, created="", pass_times=(), threads=None, bandwidth=None, bandwidth_spread=None)


def read_as(path: Path, of: type[Journal]) -> tuple[Any, tuple[Any, ...], int]:
    """Reads a journal of any kind: its header, its rows, and the number of bytes of its complete lines."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PlaygroundError(f"{path} cannot be read ({error.strerror or error}).") from error
    whole = data.rfind(b"\n") + 1
    lines = [_parsed(path, number, line) for number, line in enumerate(data[:whole].splitlines(), start=1)]
    first = lines[0] if lines else {}
    known = first.get("kind") == of.kind
    check(known, f"{path} is not a record of a {of.what}: its first line does not say what was run.")
    check(
        first.get("schema_version") == SCHEMA_VERSION,
        f"{path} has schema version {first.get('schema_version')!r}; this playground reads {SCHEMA_VERSION}.",
    )
    header: Any = validation.read(of.header, first, f"{path}, line 1", extra="ignore")
    results: list[Any] = [
        validation.read(of.row, line, f"{path}, line {number}", extra="ignore")
        for number, line in enumerate(lines[1:], start=2)
    ]
    return header, tuple(results), whole


def append_traces(path: str, traces: Iterable[Trace]) -> None:
    """Appends traces to a file, one per line."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(trace_to_json(trace)) + "\n" for trace in traces)


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except ValueError as error:
        raise PlaygroundError(f"{path}, line {number} is damaged ({error}).") from None
    check(isinstance(parsed, dict), f"{path}, line {number} is damaged: it should be keys with values.")
    return validation.mended(parsed) if b"\\ud" in line else parsed  # earlier releases wrote unpaired surrogates
