"""A kind of experiment, and the base of kinds whose lanes answer prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playground.backends.base import Backend
from playground.backends.connect import connected
from playground.errors import Stopped
from playground.experiments import suite
from playground.experiments.events import ResultReady, Watch
from playground.experiments.journal import read
from playground.experiments.kinds.options import Decoders, Options, ServersOptions
from playground.experiments.questions import Question
from playground.experiments.work import Experiment
from playground.lane import Lane, standard_lane, together
from playground.presets import Pair
from playground.results import Result, SuiteResult


@dataclass(frozen=True)
class Kind:
    """One kind of experiment.

    Args:
        name: the name of its command, endpoint and entries in the history, and of its page if it has one of its own.
        label: the text of links to its page.
        does: what it finds out, in a sentence.
        intro: why one runs it, on a page of its own.
        hint: the text of such a page while it is empty.
        exits: what the terminal's exit codes 0 and 1 mean.
        options: a dataclass of `Option`s.
        work: makes the experiment and its title from the options and the `Decoders` (None without a pair).
        experiment: the class of the experiment, which the history stores as JSON.
        pair: whether a pair decodes, unless `ServersOptions` name servers; without one, servers alone do.
        alone: whether a server can decode without a baseline, or with the pair's target for one.
        varies: the setting of the lanes whose values are compared; "" for none.
        room: the room of the page that links to it; "" for one that is reached from a result.
        shared: the address of the page that it shares with other kinds; "" for a page of its own.
    """

    name: str
    label: str
    does: str
    exits: str
    options: type[Options]
    work: Callable[[Any, Any], tuple[Experiment, str]]
    experiment: type[Experiment]
    intro: str = ""
    hint: str = ""
    pair: bool = True
    alone: bool = False
    varies: Callable[[Any], str] = lambda options: ""
    room: str = "Best drafter"
    shared: str = ""

    @property
    def page(self) -> str:
        """The address of its page."""
        return self.shared or self.name

    def decoders(self, options: Options, pair: Callable[[], Pair], named: bool) -> Decoders | None:
        """Returns what decodes, as the options say; None for a kind without a pair.

        Args:
            pair: returns the pair; not called where servers decode without it.
            named: whether it was named for a server that is compared with its target.

        Raises:
            PlaygroundError: a server is missing or does not answer; or those of `pair`.
        """
        if not self.pair:
            return None
        if not isinstance(options, ServersOptions) or not options.served:
            return Decoders.of(pair())
        *baselines, lane = options.lanes(self.varies(options), alone=self.alone)
        return Decoders(
            f"{lane.target} in {lane.backend}",
            pair() if self.alone and named else None,
            baseline=baselines[0] if baselines else None,
            server=lane,
        )


@dataclass(frozen=True, kw_only=True)
class OfPrompts:
    """Base of experiments in which `lanes` answer the questions, `runs` times each, in an order that `seed` determines.
    The lanes are those of a pair; or, without a pair, of servers, with a `baseline`. A subclass has the lanes."""

    pair: Pair | None
    questions: tuple[Question, ...]
    runs: int = 1
    seed: int = 0
    record: str = ""
    baseline: Lane | None = None

    if TYPE_CHECKING:  # otherwise it would be the default of a field

        @property
        def lanes(self) -> Sequence[Lane]: ...

    def run(self, baseline: Lane, backends: Mapping[str, Backend], watch: Watch) -> Result | None:
        """Runs the experiment, by default as a suite; returns None, or raises Stopped, if it was stopped before there
        was a result."""
        return self.run_suite(baseline, backends, watch)

    def __call__(self, backends: Mapping[str, Backend], watch: Watch) -> None:
        baseline = self.baseline
        if baseline is None:
            assert self.pair, "without a pair there is a server's lane"
            baseline = standard_lane(self.pair)
        with suppress(Stopped):
            result = self.run(baseline, {**backends, **connected([baseline, *self.lanes])}, watch)
            if result:
                watch.emit(ResultReady(result))

    def run_suite(
        self,
        baseline: Lane,
        backends: Mapping[str, Backend],
        watch: Watch,
        questions: Sequence[Question] = (),
        *,
        skip: bool = False,
    ) -> SuiteResult | None:
        """Runs the lanes over the questions, or over these in their place. `skip`: see `suite.run`."""
        return suite.run(
            baseline, self.lanes, questions or self.questions, backends, watch,
            runs=self.runs, seed=self.seed, skip=skip, record=self.record,
        )  # fmt: skip

    def so_far(self) -> Result | None:
        """Returns the result of what the journal holds; None without a finished question."""
        return from_journal(self.record)

    @property
    def tokens(self) -> int:
        return self.runs * (1 + len(self.lanes)) * self.answer_tokens

    @property
    def answer_tokens(self) -> int:
        """The most new tokens that one lane decodes for all prompts."""
        return sum((1 + len(question.more)) * question.request.max_new_tokens for question in self.questions)


def titled(prompts: str, models: str, lanes: Sequence[Lane], tokens: int) -> str:
    """Returns the title of an experiment in the history. `prompts`, `models`: their names. `tokens`: the most new
    tokens."""
    named = prompts if "." in prompts else f"{prompts[:1].upper()}{prompts[1:]}"  # a file's name does not change
    return f"{named} on {models}: {together(lanes)}, {tokens} tokens"


def from_journal(path: str, questions: int | None = None) -> SuiteResult | None:
    """Returns the result of a suite's journal, or of its first `questions`; None without a finished question."""
    if not Path(path).is_file():
        return None
    header, results = read(Path(path))
    return suite.suite_result(
        header, [result for result in results if questions is None or result.question < questions]
    )
