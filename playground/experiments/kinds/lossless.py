"""The Lossless experiment: is the output the target's own?

Greedy outputs are compared with standard decoding's, token for token; sampled tokens are tested against the
distribution that the target gives them in a separate pass. Of a server they are tested against tokens that it, or a
server without speculation, draws alone, one a request, which cannot be drafted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from playground import metrics
from playground.backends.base import Backend
from playground.backends.server import BEST, Alone, ServerBackend
from playground.errors import check
from playground.experiments import suite
from playground.experiments.events import Progress, Watch
from playground.experiments.kinds.kind import Kind, OfPrompts, from_journal, titled
from playground.experiments.kinds.options import (
    Decoders,
    DraftersOptions,
    DraftingOptions,
    PromptOptions,
    ServersOptions,
    WholeAnswerOptions,
    option,
)
from playground.experiments.questions import Question
from playground.lane import (
    JOINT,
    LOCAL,
    LOSSY_RULES,
    Lane,
    Request,
    Rule,
    fits,
    label,
    lossy,
    samples_drafts,
    standard_lane,
    verified_by,
)
from playground.presets import Pair
from playground.results import STANDARD, Differing, LaneCheck, LosslessResult, QuestionResult, SuiteResult
from playground.settings import PRESET, SAMPLING, SETTINGS, default
from playground.trace import DraftToken, Reason, Trace

if TYPE_CHECKING:  # torch would slow every command down
    from playground.backends.local import LocalBackend

ANSWERS = 0.75  # share of the progress; the rest is the check against the target
Turn = tuple[int, int]  # the index of a question and of its turn
Traces = Mapping[Turn, Trace]
Tie = Callable[[Trace, list[int], int], metrics.NearTie | None]
# How a server samples: not at temperature 1 and with top-k and top-p, so that it has to apply all of them, and that the
# log-probabilities of the likeliest tokens say all.
SAMPLED = {"temperature": 0.7, "top_k": BEST, "top_p": 0.9}
REPEATED = "Write this text again word for word, and after it once more with a few words changed:\n\n{}"
MOST = 8  # answers of a server, as a multiple of those that would do if all of their tokens had been drafted
WORDS = 4  # tokens of an answer whose texts are compared where a server gives no log-probabilities


class LosslessOptions(ServersOptions, WholeAnswerOptions, DraftingOptions, PromptOptions, DraftersOptions):
    draws: int = option(
        2048,
        "Draws",
        "tokens to sample with each lane; of a server, those to test",
        low=1,
        folded=True,
        group="what is tested",
    )
    rules: tuple[Rule, ...] = option(
        (), "Wrong on purpose", "adds deliberately lossy lanes, which the check should fail",
        choices=LOSSY_RULES, flag="rule", folded=True, group="what is tested",
    )  # fmt: skip
    sampled_at: float = option(
        0.0, "Temperature", "temperature of the sampled answers; 0 takes 1, and 0.7 of a server", high=10,
        places=("terminal",), flag="temperature", group="what is tested",
    )  # fmt: skip
    server: str = option(
        "", "Server", "its address, to check it in place of the drafters, such as http://127.0.0.1:8082",
        group="servers",
    )  # fmt: skip
    baseline_server: str = option(
        "", "Standard server", "address of one with the same model, without speculation", group="servers", folded=True
    )
    model: str = option("", "Model's name", "if a server has several models", group="servers", folded=True)
    by_target: bool = option(
        False, "Compare with the model above", "of a server: with its target, here, and not with what it draws alone",
        places=("page", "endpoint"), group="servers", folded=True,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Lossless(OfPrompts):
    """The work of a Lossless experiment. `lanes`: with distinct labels; or that of a server, whose `baseline` is
    another server, the pair's target, or the lane itself: then it is compared with the tokens that the same server
    gives alone. `temperature`: of the sampled answers; 0 for the usual one. `draws`: the most tokens to sample with
    each lane; of a server, to sample where it verified a draft."""

    lanes: tuple[Lane, ...]
    temperature: float = 0.0
    draws: int = 2048

    @property
    def tokens(self) -> int:
        return (1 + len(self.lanes)) * (self.answer_tokens + self.draws)

    def run(self, baseline: Lane, backends: Mapping[str, Backend], watch: Watch) -> LosslessResult:
        """Runs greedy and sampled questions like `suite.run`, then checks the answers.

        Raises:
            Stopped: it was stopped.
            PlaygroundError: see `suite.run`; or no question could be run.
        """
        server = backends[self.lanes[0].backend]
        answers = None
        if isinstance(server, ServerBackend):
            standard = backends[baseline.backend]
            judge = standard if isinstance(standard, ServerBackend) else server
            answers = _Answers(server, judge, self.lanes[0], self.pair, backends)
        lanes = () if baseline in self.lanes else self.lanes
        scored = answers is not None and answers.scored(self.questions[0].request)
        check(
            answers is None or scored or bool(lanes),
            f"{self.lanes[0].backend} gives no log-probabilities of token ids, so its output can only be compared with "
            "that of the same model without speculation. Name a server of it, too (--baseline-server).",
        )
        if answers and lanes:
            answers.check_prompt(baseline, self.questions[0].request)
        every, first = self._every_question(answers is not None, scored)

        def called(number: int, total: int) -> str:
            if number < first:
                return f"Prompt {number + 1} of {first}"
            return f"Sampled answer {number + 1 - first} of {'at most ' if scored else ''}{total - first}"

        def enough(done: Collection[QuestionResult]) -> bool:
            if answers is None or not scored:
                return False
            traces = (trace for each in done if each.question >= first for trace in each.traces)
            return sum(answers.tested(trace) for trace in traces if trace.lane == self.lanes[0]) >= self.draws

        answering, checking = watch.parts((ANSWERS, 1 - ANSWERS))
        result = suite.run(
            baseline, lanes, every, backends, answering, record=self.record, enough=enough, called=called
        )
        result = suite.whole(result, watch)
        names = [*dict.fromkeys(row.lane for row in result.rows)]
        greedy = {name: _traces(result, name, range(first)) for name in names}
        sampled = {name: _traces(result, name, range(first, len(every))) for name in names}
        for what, traces in (("greedy", greedy), ("sampled", sampled)):
            reason = result.failures[0].reason if result.failures else ""
            check(all(traces.values()), f"Not one {what} answer came to its end. {reason}")
        if answers:
            checks = answers.checks(greedy, sampled, scored, checking)
        else:
            checks = _checks(greedy, sampled, backends, checking)
        return LosslessResult(
            environment=result.environment,
            request=every[-1].request,
            lanes=self.lanes,
            checks=tuple(checks),
            prompts=result.prompts[:first],
            failures=result.failures,
            baseline=baseline if answers else None,
        )

    def so_far(self) -> SuiteResult | None:
        """Returns the greedy answers on record, which show whether they are identical. Differences are checked at the
        end."""
        return from_journal(self.record, len(self.questions))

    def _every_question(self, served: bool, scored: bool) -> tuple[list[Question], int]:
        """Returns the greedy questions and then the sampled ones, each with its own seed, and how many are greedy.

        In this process the sampled ones give `draws` tokens if all answers are long, and top-p and the like are off, so
        that every token can be sampled; a server samples as in SAMPLED. Of a server every question is also asked as in
        REPEATED, and there are more of them than may be needed. Where it gives no log-probabilities, the answers are of
        a few words.
        """
        greedy = {name: default(name) for name in SAMPLING if not SETTINGS[name].greedy}
        whole = [replace(each, request=replace(each.request, **greedy)) for each in self.questions]
        how: dict[str, Any] = {"temperature": self.temperature or 1.0}
        if served:
            how = SAMPLED | {"temperature": self.temperature or SAMPLED["temperature"]}
        if served and not scored:
            how["max_new_tokens"] = WORDS
        sampled = -(-self.draws // how.get("max_new_tokens", whole[0].request.max_new_tokens))
        if scored:
            sampled *= MOST
            whole += [
                replace(it, request=replace(it.request, prompt=REPEATED.format(it.request.prompt)))
                for it in whole
                if it.request.prompt
            ]
        return whole + [
            Question(each.category, replace(each.request, **how, seed=seed))
            for seed, each in zip(range(sampled), itertools.cycle(whole), strict=False)
        ], len(whole)


def _traces(result: SuiteResult, lane: str, questions: range) -> Traces:
    rows = zip(result.rows, result.traces, strict=True)
    return {(row.question, row.turn): trace for row, trace in rows if row.lane == lane and row.question in questions}


def _checks(
    greedy: Mapping[str, Traces], sampled: Mapping[str, Traces], backends: Mapping[str, Backend], watch: Watch
) -> list[LaneCheck]:
    """Checks the answers of lanes of this process, by the name of the lane.

    Raises:
        Stopped: it was stopped.
    """
    backend, checks = cast("LocalBackend", backends[LOCAL]), []
    for number, name in enumerate(greedy):
        what = f"Checking lane {number + 1} of {len(greedy)} against the target: {name}"
        watch.progress(Progress(what, number / len(greedy)))
        checks.append(_check(name, greedy[STANDARD], greedy[name], sampled[name], backend))
    return checks


def _check(
    lane: str,
    standard: Traces,
    answers: Traces,
    sampled: Traces,
    backend: LocalBackend,
) -> LaneCheck:

    def tie(base: Trace, answer: list[int], other: int) -> metrics.NearTie:
        return backend.near_tie(base.lane, base.request, _ids(base.prompt_ids), answer, other)

    found = [_differing(*at, standard[at], trace, tie) for at, trace in answers.items()]
    differing = tuple(each for each in found if each)
    places: list[Sequence[DraftToken]] = []
    tokens: list[metrics.Placed] = []
    reasons: list[Reason | None] = []
    joint = any(verified_by(trace.lane) in JOINT for trace in sampled.values())
    samples = any(samples_drafts(trace.lane) for trace in sampled.values())
    for trace in sampled.values():
        judged = metrics.judged(trace.rounds, joint=joint)
        why = metrics.reasons(trace.rounds)
        drafted = [_ids([token.id for token in each]) for each in judged]
        ids = _ids(trace.token_ids)
        scored = backend.placed(trace.lane, trace.request, _ids(trace.prompt_ids), ids, drafted)
        # What has more of q than of p has nothing left after its rejection; of a draft as a whole it may have.
        again = [not joint and why[at] == "correction" and id_ in drafted[at] for at, id_ in enumerate(ids)]
        tokens += [replace(each, excluded=it) for each, it in zip(scored, again, strict=True)]
        places += judged
        reasons += why
    tested = tokens if lane == STANDARD or joint else list(itertools.compress(tokens, places))
    corrected = [each.left for each, why in zip(tokens, reasons, strict=True) if why == "correction" and each.left]
    return LaneCheck(
        lane=lane,
        outputs=len(answers),
        identical=len(answers) - len(differing),
        differing=differing,
        sampled=len(tokens),
        law=metrics.law_test(tested, metrics.NEVER),
        acceptance=metrics.acceptance_test(places, tokens, samples),
        bonus=metrics.law_test([each for each, why in zip(tokens, reasons, strict=True) if why == "bonus"]),
        corrected=None if samples else metrics.law_test(corrected),
    )


def _differing(question: int, turn: int, standard: Trace, other: Trace, tie_of: Tie) -> Differing | None:
    first = metrics.first_difference(standard, other)
    if first is None:
        return None
    text = lambda trace: trace.tokens[first.index].text if first.index < len(trace.tokens) else ""  # noqa: E731
    ours, theirs = first.token_ids
    tie, ended = None, first.index in (len(standard.tokens), len(other.tokens))
    answer = [id_ for id_ in standard.token_ids[: first.index + 1] if id_ is not None]
    if ours is not None and theirs is not None and len(answer) == first.index + 1:
        tie = tie_of(standard, answer, theirs)
    return Differing(question, turn, first.index, text(standard), text(other), tie, judged=ended or tie is not None)


class _Place(NamedTuple):
    """A token of an answer: its index, the ids before it, its id, and whether it is a bonus token."""

    at: int
    before: list[int]
    id: int
    bonus: bool


@dataclass
class _Answers:
    """The answers of a server's lane, checked by what a server says of one token alone.

    `judge`: that server: the baseline if it is a server, else the same one. `pair`: the target in this process, if it
    is named: it judges near-ties. `backends`: by the name in `Lane.backend`.
    """

    server: ServerBackend
    judge: ServerBackend
    lane: Lane
    pair: Pair | None
    backends: Mapping[str, Backend]

    def scored(self, request: Request) -> bool:
        """Returns whether the judge gives log-probabilities of token ids."""
        ids = self.server.encode(request)
        found = self.judge.alone(ids, request) if ids else None
        return found is not None and bool(found.best)

    def tested(self, trace: Trace) -> int:
        """Returns the number of an answer's tokens in whose place a draft was verified; of a server that drafts
        nothing, of all."""
        return sum(not place.bonus for place in self._places(trace))

    def checks(
        self, greedy: Mapping[str, Traces], sampled: Mapping[str, Traces], has_logprobs: bool, watch: Watch
    ) -> list[LaneCheck]:
        """Checks the lane's answers.

        Args:
            greedy, sampled: by the name of the lane; those of STANDARD alone where the lane is compared with itself.
            has_logprobs: what `scored` returned.

        Raises:
            Stopped: it was stopped.
        """
        name = label(self.lane) if label(self.lane) in greedy else STANDARD
        total, done = len(sampled[name]) + len(greedy[name]), 0

        def step(trace: Trace) -> Trace:
            nonlocal done
            watch.progress(Progress(f"Asking {self.judge.kind} for one token at a time", done / total))
            done += 1
            return trace

        test = None
        if has_logprobs:
            asked = next(iter(sampled[name].values())).request
            test = metrics.server_test(*self._scored(map(step, sampled[name].values())), asked.temperature, asked.top_p)
            against, draws = test.against, sum(len(trace.tokens) for trace in sampled[name].values())
        else:
            texts: dict[str, tuple[list[str], list[str]]] = {}
            for at, trace in sampled[name].items():
                ours, theirs = texts.setdefault(trace.request.question, ([], []))
                ours.append(trace.text)
                theirs.append(sampled[STANDARD][at].text)
            against, draws = metrics.two_sample_test([*texts.values()]), len(sampled[name])
        trusted = test is not None and test.logprobs != "wrong"
        tie = partial(self._near_tie, trusted)
        if name == STANDARD:
            found = [self._alone_differs(*at, step(trace), tie) for at, trace in greedy[name].items()]
        else:
            found = [_differing(*at, greedy[STANDARD][at], trace, tie) for at, trace in greedy[name].items()]
        differing = tuple(each for each in found if each)
        drafts = has_logprobs and self.lane.drafter != "none"
        checked = LaneCheck(
            lane=label(self.lane),
            outputs=len(greedy[name]),
            identical=len(greedy[name]) - len(differing),
            differing=differing,
            sampled=draws,
            law=test.law if test else None,
            acceptance=None,
            drafted=sum(map(self.tested, greedy[name].values())) if drafts else None,
            logprobs=test.logprobs if test else "none",
            control=test.control if test else None,
            against=against,
            bonus=test.bonus if test else None,
        )
        return [checked]

    def _scored(self, traces: Iterable[Trace]) -> tuple[list[metrics.Scored], list[metrics.Scored]]:
        """Returns the tokens in whose place a draft was verified and the bonus tokens, each with one that the judge
        draws alone in its place."""
        verified, bonus = list[metrics.Scored](), list[metrics.Scored]()
        for trace in traces:
            for place in self._places(trace):
                seed = trace.request.seed * 100_003 + place.at + 1
                drawn = self._alone(place.before, replace(trace.request, seed=seed))
                ids = [known for known, _ in drawn.best[:BEST]]
                token, alone = (ids.index(it) if it in ids else BEST for it in (place.id, drawn.id))
                scored = metrics.Scored(tuple(logprob for _, logprob in drawn.best[:BEST]), token, alone)
                (bonus if place.bonus else verified).append(scored)
        return verified, bonus

    def _places(self, trace: Trace) -> Iterator[_Place]:
        """Yields each token in whose place a draft was verified, and each bonus token; of a server that drafts nothing,
        all tokens. It ends before an id that the server did not report."""
        ids, known = _ids(trace.prompt_ids), itertools.takewhile(lambda id_: id_ is not None, trace.token_ids)
        judged, reasons = metrics.judged(trace.rounds), metrics.reasons(trace.rounds)
        for at, id_ in enumerate(_ids([*known])):
            bonus = reasons[at] == "bonus"
            if judged[at] or bonus or trace.lane.drafter == "none":
                yield _Place(at, [*ids], id_, bonus)
            ids.append(id_)

    def _alone(self, ids: Sequence[int], request: Request, *, fresh: bool = False) -> Alone:
        return cast(Alone, self.judge.alone(ids, request, fresh=fresh))  # `scored` said that it gives them

    def _alone_differs(self, question: int, turn: int, trace: Trace, tie_of: Tie) -> Differing | None:
        """Compares a greedy answer with the tokens that the server chooses alone, each after the answer before it."""
        for at, before, id_, _ in self._places(trace):
            alone = self._alone(before, trace.request)
            if alone.id != id_:
                tie = tie_of(trace, [*_ids(trace.token_ids)[:at], alone.id], id_)
                return Differing(question, turn, at, alone.text, trace.tokens[at].text, tie, judged=tie is not None)
        return None

    def _near_tie(self, trusted: bool, standard: Trace, answer: list[int], other: int) -> metrics.NearTie | None:
        """Compares the last token of the answer with another one: by the target in this process if it is named, else by
        two passes of the judge that differ by rounding alone. None without either.

        Args:
            trusted: whether the judge's log-probabilities are those of its tokens.
        """
        ids, request = [*_ids(standard.prompt_ids), *answer[:-1]], standard.request
        cached = dict(self._alone(ids, request).best) if trusted else None
        if self.pair is None:
            fresh = dict(self._alone(ids, request, fresh=True).best) if trusted else {}
            return metrics.near_tie_of(cached, fresh, answer[-1], other) if cached else None
        lane, backend = standard_lane(self.pair), cast("LocalBackend", self.backends[LOCAL])
        backend.load(lane, lambda step: None)
        return backend.near_tie(lane, request, _ids(standard.prompt_ids), answer, other, cached)

    def check_prompt(self, baseline: Lane, request: Request) -> None:
        """Checks that the baseline reads a prompt as the same tokens.

        Raises:
            PlaygroundError: it does not, or it cannot be loaded.
        """
        backend = self.backends[baseline.backend]
        backend.load(baseline, lambda step: None)
        theirs, ours = (it.prompt_ids for it in (backend.run(baseline, request), self.server.run(self.lane, request)))
        check(
            theirs == ours or theirs is None or ours is None,
            f"{self.lane.backend} reads the first prompt as {len(ours or ())} tokens, which are not the "
            f"{len(theirs or ())} of {baseline.target}: another model, vocabulary or chat template, so that their "
            "outputs cannot be compared. --no-chat-template sends the text as it is.",
        )


def _ids(ids: Sequence[int | None] | None) -> list[int]:
    """Returns the token ids of a lane in this process, where all are known."""
    return [id_ for id_ in ids or () if id_ is not None]


def _work(options: LosslessOptions, on: Decoders) -> tuple[Lossless, str]:
    name, questions = options.read()
    if on.server:
        return _of_server(options, on, on.server, questions), titled(
            name, on.title, [on.server], options.max_new_tokens
        )
    assert on.pair, "without a server a pair decodes"
    exact = on.lanes(options.drafters, **{name: getattr(options, name) for name in PRESET})
    wrong = [lossy(lane, rule) for lane in exact for rule in options.rules if fits(lane, rule)]
    work = Lossless(
        pair=on.pair, lanes=(*exact, *wrong), questions=questions, temperature=options.sampled_at, draws=options.draws
    )
    return work, titled(name, on.title, exact, options.max_new_tokens)


def _of_server(options: LosslessOptions, on: Decoders, server: Lane, questions: tuple[Question, ...]) -> Lossless:
    check(not options.rules, "A rule that is wrong on purpose is of this process. Leave it out, or the server.")
    plain = not any(each.request.constraint or each.request.penalised for each in questions)
    check(plain, "A server is checked without grammars and penalties, which look back at the answer. Leave them out.")
    return Lossless(
        pair=on.pair,
        baseline=on.baseline or (None if on.pair else server),
        lanes=(server,),
        questions=questions,
        temperature=options.sampled_at,
        draws=options.draws,
    )


KIND = Kind(
    name="lossless",
    label="Is the output the same?",
    does="Checks whether the output of each drafter is the target's own, greedy and sampled.",
    intro="Speculative decoding promises the model's own output. This checks the promise for your models, or for a "
    "server: greedy outputs token for token, sampled ones by a test of their distribution.",
    hint="Press Run. To see the check fail, add a rule that is wrong on purpose under Advanced. To check a server, "
    "give its address.",
    exits="0: no lane was found to be lossy; 1: one was",
    options=LosslessOptions,
    work=_work,
    experiment=Lossless,
    alone=True,
    room="",
)
