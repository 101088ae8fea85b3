"""The interface of a backend: the engine in this process (local.py), or a server."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol

from playground.lane import Lane, Request
from playground.progress import Progress
from playground.trace import Environment, Finish, Memory, Reused, Round, Totals


class LaneRun(Protocol):
    """A run of one lane on one request."""

    @property
    def prompt_ids(self) -> tuple[int, ...] | None:
        """The token ids of the target's prompt; None if the backend does not report them."""

    @property
    def markers(self) -> tuple[tuple[int, str], ...]:
        """The special tokens of `Trace.markers`; none where the tokenizer is not known."""

    @property
    def rounds(self) -> Generator[Round, None, None]:
        """Decodes as it is iterated; closing it ends the run."""

    @property
    def amended(self) -> tuple[Round, ...] | None:
        """The rounds once more, read after the last: with what a server reports only at the end, or without the stop
        string that ended the answer. None if nothing changed."""

    @property
    def finish(self) -> Finish:
        """Why the run ended; "stopped" as long as it has not ended by itself."""

    @property
    def reused(self) -> Reused | None:
        """The tokens that were reused from the cache of earlier turns; read after the run."""

    @property
    def totals(self) -> Totals | None:
        """The counts of `Trace.totals`; read after the run."""

    @property
    def turn(self) -> int:
        """The most rounds of a turn, where lanes take turns."""

    def memory(self) -> Memory | None:
        """Returns the memory that the lane holds now; None if the backend does not report it."""


class Backend(Protocol):
    """Runs lanes, one at a time or by turns.

    Attributes:
        by_turns: whether its lanes run by turns where several are compared, since their clocks stand still between two
            rounds.
    """

    by_turns: bool

    def load(self, lane: Lane, progress: Callable[[Progress], None]) -> None:
        """Loads everything that the lane needs. It may take minutes; an exception from `progress` ends it.

        Raises:
            PlaygroundError: a model or a server is not available, or does not fit the lane.
        """

    def run(self, lane: Lane, request: Request) -> LaneRun:
        """Prepares a run; nothing is decoded yet.

        Raises:
            PlaygroundError: the request does not fit this target.
        """

    def warm_up(self, lane: Lane, request: Request, stopped: Callable[[], bool]) -> None:
        """Decodes a few rounds of the request, so that the timed run finds a warm device. Ends early once it is
        `stopped`."""

    def describe(self, lane: Lane) -> Environment:
        """Returns the environment in which the lane runs; called after a run."""

    def close(self) -> None:
        """Releases what the backend holds."""
