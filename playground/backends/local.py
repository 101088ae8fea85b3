"""The backend in this process: the decode loop over models of one pair."""

from __future__ import annotations

import datetime
import gc
import itertools
import json
import platform
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch
import transformers

from playground import __version__
from playground.conversation import THINKING, Message, read_arguments
from playground.decoding import estimate, parity_check, prefix_cache, scoring, template, trials
from playground.decoding.contract import NOT_OBEYED, OBEYED, contract_of, entries
from playground.decoding.drafters.build import build_drafter
from playground.decoding.drafters.composite import after_forced
from playground.decoding.grammar import grammar_for
from playground.decoding.lookahead import Lookahead, lookahead_for
from playground.decoding.loop import decode
from playground.decoding.lossy import Forced, rule_of
from playground.decoding.pass_cost import bandwidth, cost_of, one_token_pass
from playground.decoding.runners.base import Runner
from playground.decoding.runners.eager import EagerRunner, seam
from playground.decoding.runners.factory import Runners, wants_compiled
from playground.decoding.runners.graphs import capturing_until
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer, StopStrings, encode, encode_answer, markers, shown_until
from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError, check
from playground.lane import Lane, Request, standard_lane
from playground.metrics.drafts import Counts
from playground.metrics.lossless import NearTie, Placed
from playground.models.cpu.threads import choose_threads, threads_of
from playground.models.device import COST, device_name, is_spread, ran_out_of_memory
from playground.models.load import LoadedModel
from playground.models.networks import checkup
from playground.models.networks.readings import read_as
from playground.models.networks.repairs import as_stored
from playground.models.quantised import precision
from playground.models.sizing import experts, weights_bytes
from playground.models.store import LoadedPair
from playground.presets import NATIVE, Pair
from playground.progress import Progress
from playground.results import Finding, Trials
from playground.trace import Environment, Finish, Memory, Reused, Round

WARM_UP_ROUNDS = 4
NATIVE_TURN, TURN = 4, 8  # rounds of a turn; torch's first ones take longer after another lane's than the CPU engine's


class LocalBackend:
    """Runs lanes of one pair with the models of a store.

    Args:
        store: a `ModelStore`, shared with other backends.
        dtype: see `resolve_dtype`; "auto" is the pair's.
        device: see `resolve_device`.
        by_turns: see `Backend`.
    """

    def __init__(
        self, store: Any, pair: Pair, dtype: str = "auto", device: str = "auto", *, by_turns: bool = True
    ) -> None:
        self.by_turns = by_turns
        self._store, self._pair = store, pair
        self._format = {"dtype": dtype, "device": device}
        self._runners: Runners | None = None
        self._answers: dict[Request, tuple[int, ...]] = {}  # the last one only
        self._warmed: list[Lane] = []  # lanes since the number of threads was chosen

    def load(self, lane: Lane, progress: Callable[[Progress], None]) -> None:
        models = self._store.get(self._pair_of(lane), drafter=lane.drafter, progress=progress, **self._format)
        bandwidth(models.target.model.device).measure()  # before any lane decodes

    def run(self, lane: Lane, request: Request) -> LocalRun:
        """Prepares a run.

        Raises:
            PlaygroundError: the prompt does not fit the context, the tokenizer is another model's, the drafter cannot
                draft for this target, transformers does not run the target correctly, or the grammar or the target's
                generation_config.json is broken.
        """
        models = self.models(lane)
        answer = self._answer(models, lane, request) if lane.forced_rates else ()
        try:
            return LocalRun(models, lane, request, self.runners(models), answer)
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
        raise _out_of_memory(models, request, self.runners(models))

    def _answer(self, models: LoadedPair, lane: Lane, request: Request) -> tuple[int, ...]:
        """Returns the answer of standard decoding, for lanes with forced acceptance; stored for the next of them."""
        if request not in self._answers:
            plain = replace(lane, drafter="none", forced_rates=())
            run = LocalRun(models, plain, request, self.runners(models))
            written = [token.id for round_ in run.rounds for token in round_.tokens]
            self._answers = {request: tuple(id_ for id_ in written if id_ is not None)}
        return self._answers[request]

    def warm_up(self, lane: Lane, request: Request, stopped: Callable[[], bool]) -> None:
        with capturing_until(stopped):
            self._begin(lane, request, stopped)
            if not self._warmed or lane in self._warmed:  # not between two lanes that are compared
                self._warmed.clear()
                # Chosen after the first rounds: before them caches are cold, and the browser renders the press of Run.
                if self._choose_threads(self.models(lane)):
                    self._begin(lane, request, stopped)
            self._warmed.append(lane)

    def _begin(self, lane: Lane, request: Request, stopped: Callable[[], bool]) -> None:
        """Decodes the first rounds of the whole request: the first prefill of a length is slower and must not count for
        one lane only, and a static cache is made for the length of the answer."""
        run = self.run(lane, request)
        with closing(run.rounds):  # keeps the conversation's caches for the timed run
            for _ in itertools.islice(run.rounds, WARM_UP_ROUNDS):
                if stopped():
                    break

    def describe(self, lane: Lane) -> Environment:
        models = self.models(lane)
        device = models.target.model.device
        drafting = models.drafting if lane.drafter != "none" else None
        runners = self.runners(models)
        how = runners.describe(models.target)
        package, moved = METHODS[lane.drafter].package, bandwidth(device)
        shapes = {"target": models.target.shape, "drafter": drafting.shape if drafting else None}
        return Environment(
            versions={
                "playground": __version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                **({package: version(package)} if package else {}),
            },
            platform=platform.platform(),
            device=device.type,
            device_name=device_name(device),
            dtype=precision(models.target.model),
            threads=threads_of(runners.native(models.target)),
            weights=(models.target.weights, *([drafting.weights] if drafting else [])),
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            pass_times=models.target.pass_times.get(how, ()),
            notes=(COST,) if is_spread(models.target.model) else (),
            bandwidth=moved.best,
            bandwidth_spread=moved.spread,
            runner=how,
            obeyed=entries(models.target.model.generation_config, OBEYED),
            not_obeyed=entries(models.target.model.generation_config, NOT_OBEYED),
            shapes={name: it for name, it in shapes.items() if it},
            compile_s=runners.seconds(*(model for model in (models.target, drafting) if model)),
        )

    def runners(self, models: LoadedPair) -> Runners:
        """Returns the factory of the runners of all lanes."""
        if self._runners is None:
            self._runners = Runners(wants_compiled(self._pair.compiled, models.target.model.device))
        return self._runners

    def _choose_threads(self, models: LoadedPair) -> bool:
        """Chooses the number of threads. It does so whenever a lane is warmed up again, because other programs may use
        the cores by now. Returns whether the number changed."""
        if models.target.model.device.type != "cpu":
            return False
        runners = self.runners(models)
        changed = choose_threads(one_token_pass(runners(models.target)), native=runners.native(models.target))
        if changed:
            models.target.pass_times.clear()  # they were measured with another number of threads
            prefix_cache.forget(models.target)  # drafters that chose their trees by those times
        return changed

    def placed(
        self,
        lane: Lane,
        request: Request,
        prompt_ids: Sequence[int],
        answer: Sequence[int],
        drafted: Sequence[Sequence[int]],
    ) -> list[Placed]:
        """Places each token of a sampled answer in the distribution that it should follow; see `scoring`."""
        target = self.models(lane).target
        runner, sampler = EagerRunner(target.model), _sampler(request, target, prompt_ids)
        return scoring.placed(runner, sampler, prompt_ids, answer, drafted, grammar_for(request, target))

    def near_tie(
        self,
        lane: Lane,
        request: Request,
        prompt_ids: Sequence[int],
        answer: Sequence[int],
        other: int,
        elsewhere: Mapping[int, float] | None = None,
    ) -> NearTie:
        """Returns how close the choice was between the last token of a greedy answer and another one; see `scoring`."""
        target = self.models(lane).target
        model, grammar = target.model, grammar_for(request, target)
        runners, sampler = (EagerRunner(model), EagerRunner(model)), _sampler(request, target, prompt_ids)
        return scoring.near_tie(runners, model.dtype, sampler, prompt_ids, answer, other, grammar, elsewhere)

    def estimated(self, lane: Lane, request: Request, answer: Message) -> Counts | None:
        """Counts the lane's drafts over a logged answer; None if they cannot be made at all positions at once. See
        `decoding.estimate`.

        Raises:
            PlaygroundError: the conversation does not fit the context, or the chat template refuses it.
        """
        models = self.models(lane)
        if not estimate.possible(models, lane):
            return None
        prompt_ids = encode(models.target.tokenizer, request)
        answer_ids = encode_answer(models.target.tokenizer, request, prompt_ids, answer)
        check(
            len(prompt_ids) + len(answer_ids) <= EagerRunner(models.target.model).context_limit,
            f"The conversation does not fit the context of {models.target.name}.",
        )
        return estimate.counts(models, lane, _sampler(request, models.target, prompt_ids), prompt_ids, answer_ids)

    def under_readings(
        self, lane: Lane, request: Request, prompt_ids: Sequence[int], answer: Sequence[int]
    ) -> tuple[dict[str, tuple[Mapping[str, Any], Counts]], Counter[int]] | None:
        """Counts the lane's drafts over an answer under each way to read the drafter's weights; None if they cannot be
        made at all positions at once. See `decoding.estimate`.

        Raises:
            PlaygroundError: the drafter is refused.
        """
        models = self.models(lane)
        if not estimate.possible(models, lane):
            return None
        return estimate.under_readings(models, lane, _sampler(request, models.target, prompt_ids), prompt_ids, answer)

    def turned(self, request: Request) -> Request | None:
        """Returns a request with the chat template's switch for thinking turned; None where the template has none, or
        the request sets it.

        Raises:
            PlaygroundError: the template cannot be read, or refuses the messages.
        """
        tokenizer, given = self.models(standard_lane(self._pair)).target.tokenizer, read_arguments(request.template)
        if not request.chat_template or not tokenizer.chat_template or given.keys() & THINKING:
            return None
        switches = [name for name in template.names(tokenizer, tools=bool(request.tools)) if name in THINKING]
        for switch, value in itertools.product(switches, (False, True)):
            other = replace(request, template=json.dumps({**given, switch: value}))
            if encode(tokenizer, other) != encode(tokenizer, request):
                return other
        return None

    def check_files(self, lane: Lane) -> list[Finding]:
        """Compares the files of the lane's drafter with the target; see `models.networks.checkup`.

        Raises:
            PlaygroundError: they cannot be fetched.
        """
        pair, target = self._pair_of(lane), self.models(standard_lane(self._pair)).target
        kind = pair.drafts_by(lane.drafter)
        if kind is None or METHODS[kind].weights == "layers" or pair.weights[kind] == NATIVE:
            return []
        return checkup.check_files(str(pair.weights[kind]), METHODS[kind], target, lambda step: None)

    def tried(
        self, lane: Lane, answers: Sequence[tuple[Sequence[int], Sequence[int]]], stopped: Callable[[], bool]
    ) -> Trials | None:
        """Tries to mend the lane's drafter, by the target's greedy answers; None where it cannot be tried. See
        `decoding.trials`.

        Raises:
            PlaygroundError: the drafter is refused.
        """
        models, kind = self.models(lane), self._pair.drafts_by(lane.drafter)
        if kind is None or METHODS[kind].weights == "layers" or not estimate.possible(models, lane):
            return None
        if models.pair.weights[kind] == NATIVE:
            return None
        module = as_stored(str(models.pair.weights[kind]), METHODS[kind], models.target, lambda step: None)
        read_as(module, models.pair.readings.get(kind, {}))
        return trials.tried(models.target, module, answers, stopped)

    def models(self, lane: Lane) -> LoadedPair:
        """Returns the lane's models, from memory."""
        return self._store.get(self._pair_of(lane), drafter=lane.drafter, progress=lambda step: None, **self._format)

    def _pair_of(self, lane: Lane) -> Pair:
        return replace(self._pair, adapter=lane.adapter or "")

    def close(self) -> None:
        """Does nothing: the store holds the models for the next run."""


class LocalRun:
    """A run of one lane on one request. The KV caches belong to this run alone, except for a conversation's."""

    totals = None

    def __init__(
        self, models: LoadedPair, lane: Lane, request: Request, runners: Runners, answer: Sequence[int] = ()
    ) -> None:
        """`answer`: standard decoding's answer, for a lane with forced acceptance."""
        self._models, self._lane, self._request, self._runners = models, lane, request, runners
        prompt_ids = encode(models.target.tokenizer, request)
        drafted = lane.nodes if METHODS[lane.drafter].tree else lane.lookahead
        self._drafting = models.drafting if lane.drafter != "none" else None
        loaded = [model for model in (models.target, self._drafting) if model]
        runners.expect(len(prompt_ids), request.max_new_tokens, drafted, *loaded)
        parity_check.check(models.target, runners, lane.drafter)
        self._key = lane, runners.describe(models.target)
        most = prefix_cache.reusable(models.target.tokenizer, request, prompt_ids)
        cached, held = prefix_cache.take(models.target, self._key, self._drafting, prompt_ids, most)
        self._target = cached.target if cached else runners(models.target)
        self._room = _room(models.target, self._target, prompt_ids)
        contract = contract_of(models.target)
        sampler = Sampler(request, self._target.device, prompt_ids, contract, runners.sampling(models.target))
        self._grammar = grammar_for(request, models.target)
        self._plain_drafter = cached.drafter if cached else build_drafter(models, lane, self._target, runners)
        standard = lane.drafter == "none"
        self._drafter = self._plain_drafter if standard else after_forced(self._grammar, self._plain_drafter)
        self.reused = Reused(held, cached.bytes if cached else 0)
        self._rule = rule_of(lane)
        if lane.forced_rates:
            check(not request.constraint, "Forced acceptance takes no grammar. Leave one of the two out.")
            self._drafter = drawn = Forced(self._drafter, lane.forced_rates, len(prompt_ids), answer, request.turn_seed)
            self._rule = drawn.decide
        stops = (*request.stops, *contract.stops)
        self._stops = StopStrings(stops, models.target.tokenizer, prompt_ids) if stops else None
        self._rounds: list[Round] = []
        self.prompt_ids = tuple(prompt_ids)
        self.markers = markers(models.target.tokenizer)
        self.turn = NATIVE_TURN if runners.native(models.target) else TURN
        self.rounds: Generator[Round, None, None] = self._decoded(sampler)

    @property
    def finish(self) -> Finish:
        tokens = [token.id for round_ in self._rounds for token in round_.tokens]
        if self._stops and self._stops.end is not None:
            return "stop string"
        if tokens and tokens[-1] in self._models.target.eos_ids:
            return "eos"
        if len(tokens) == self._request.max_new_tokens:
            return "length"
        return "context" if len(tokens) == self._room else "stopped"

    @property
    def amended(self) -> tuple[Round, ...] | None:
        """The rounds without the stop string; a part of it may have been shown before it was complete."""
        if self._stops is None or self._stops.end is None:
            return None
        return shown_until(self._rounds, self._stops.end)

    def memory(self) -> Memory:
        target = self._models.target.model
        drafting = self._models.drafting if self._lane.drafter != "none" else None
        return Memory(
            target_weights=weights_bytes(target),
            target_cache=self._target.cache_bytes,
            drafter_weights=weights_bytes(drafting.module, shared_with=target) if drafting else 0,
            drafter_cache=self._drafter.cache_bytes,
            experts=experts(target),
        )

    def _decoded(self, sampler: Sampler) -> Generator[Round, None, None]:
        """Decodes the rounds.

        Raises:
            PlaygroundError: the device ran out of memory.
        """
        rounds = decode(
            self._target,
            self._drafter,
            self._lookahead(),
            sampler,
            Detokenizer(self._models.target.tokenizer, self.prompt_ids),
            self.prompt_ids,
            min(self._room, self._request.max_new_tokens),
            self._models.target.eos_ids,
            self._rule,
            seam(self._models.target.model.config),
            self._grammar,
            self._stops,
        )
        ids = list(self.prompt_ids)
        try:
            for round_ in rounds:
                self._rounds.append(round_)
                ids += [token.id for token in round_.tokens if token.id is not None]
                yield round_
            self._keep(ids)
            return
        except GeneratorExit:
            self._keep(ids)
            raise
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
        del rounds, self._target, self._drafter, self._plain_drafter, self._rule
        raise _out_of_memory(self._models, self._request, self._runners)

    def _lookahead(self) -> Lookahead:
        measured = self._lane.policy == "auto" and self._lane.drafter != "none"
        cost = cost_of(self._models.target, self._runners, self._target) if measured else float
        return lookahead_for(self._lane, self._target.device, cost)

    def _keep(self, ids: list[int]) -> None:
        """Stores the caches for the conversation's next turn."""
        if self._request.prefix_cache:
            cached = prefix_cache.CachedPrefix(
                ids[: self._target.length], self._target, self._plain_drafter, self._drafting
            )
            prefix_cache.store(self._models.target, self._key, cached)


def _out_of_memory(models: LoadedPair, request: Request, runners: Runners) -> PlaygroundError:
    """Frees all caches of the models, and returns the error to raise. Must be called where nothing refers to the run's
    runners, so outside of a handler: an error holds the frames that hold them."""
    runners.clear(*(model for model in (models.target, models.drafting) if model))
    prefix_cache.forget(models.target)
    gc.collect()
    torch.cuda.empty_cache()
    prompt = len(encode(models.target.tokenizer, request))
    return PlaygroundError(
        f"The device ran out of memory with a prompt of {prompt:,} tokens and up to {request.max_new_tokens:,} new "
        "ones. Ask for fewer tokens, shorten the prompt or choose a smaller pair."
    )


def _sampler(request: Request, target: LoadedModel, prompt_ids: Sequence[int]) -> Sampler:
    return Sampler(request, target.model.device, prompt_ids, contract_of(target))


def _room(target: LoadedModel, runner: Runner, prompt_ids: Sequence[int]) -> int:
    """Returns the number of new tokens that fit into the target's context after the prompt.

    Raises:
        PlaygroundError: none fits, or the prompt has token ids that the target does not know.
    """
    limit, known = runner.context_limit, runner.vocab_size
    if max(prompt_ids) >= known:
        raise PlaygroundError(
            f"The tokenizer of {target.name} gives this prompt the token {max(prompt_ids):,}, but the model knows only "
            f"{known:,}. They do not belong together: save the tokenizer that the model was trained with beside it."
        )
    if len(prompt_ids) >= limit:
        raise PlaygroundError(
            f"The prompt has {len(prompt_ids):,} tokens, and the context of {target.name} holds {limit:,}. "
            "Shorten the prompt to leave room for an answer."
        )
    return limit - len(prompt_ids)
