"""A comparison: the same request through standard decoding and through an assisted lane, one after the other.

Page, terminal and endpoint all call `run`; they differ in what they do with its events.
"""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence

import torch

from playground.decoding.cached import CachedModel
from playground.decoding.drafters.build import build_drafter
from playground.decoding.lookahead import lookahead_for
from playground.decoding.loop import decode
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer, encode
from playground.errors import PlaygroundError, Stopped
from playground.experiments.environment import describe
from playground.experiments.events import Event, Finished, LaneFinished, LaneStarted, Progress, RoundDone
from playground.lane import Lane, Request
from playground.models.footprint import weights_bytes
from playground.models.load import LoadedModel
from playground.models.store import LoadedPair, ModelStore
from playground.presets import Pair
from playground.trace import Comparison, Finish, Memory, Round, Trace

WARM_UP_TOKENS = 64
WARM_UP_ROUNDS = 4


def run(
    store: ModelStore,
    pair: Pair,
    assisted: Lane,
    request: Request,
    *,
    stop: threading.Event,
    emit: Callable[[Event], None],
    dtype: str = "auto",
    device: str = "auto",
) -> Comparison | None:
    """Loads what is missing, warms up, and runs both lanes, telling `emit` what happens. After `stop` is set it ends
    within one round, or while models are fetched and loaded with the next word of progress: a lane that was not reached
    has no rounds, and None is returned where none was reached.

    Raises:
        PlaygroundError: models that cannot be had or do not fit together, a prompt that does not fit, no memory left.
    """

    def tell(step: Progress) -> None:
        if stop.is_set():
            raise Stopped
        emit(step)

    try:
        models = store.get(pair, drafter=assisted.drafter, dtype=dtype, device=device, progress=tell)
    except Stopped:
        return None
    prompt_ids = encode(models.target.tokenizer, request)
    room = room_for(models.target, prompt_ids)
    lanes = (Lane(name="Standard", target=pair.target), assisted)
    traces = []
    out_of_memory = False
    try:
        emit(Progress("Warming up"))
        for lane in lanes:
            _warm_up(models, lane, request, prompt_ids[-WARM_UP_TOKENS:], min(room, WARM_UP_ROUNDS * 4), stop)
        for index, lane in enumerate(lanes):
            if stop.is_set():
                break
            emit(LaneStarted(index, lane))
            trace = _decoded(models, lane, request, prompt_ids, room, stop, lambda r, i=index: emit(RoundDone(i, r)))
            traces.append(trace)
            emit(LaneFinished(index, trace))
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        out_of_memory = True
    if out_of_memory:  # raised out here, so that the error does not hold on to the frames that hold the caches
        gc.collect()
        torch.cuda.empty_cache()
        raise PlaygroundError(
            f"The device ran out of memory with a prompt of {len(prompt_ids):,} tokens and up to "
            f"{request.max_new_tokens:,} new ones. Ask for fewer tokens, shorten the prompt or choose a smaller pair."
        )
    if not traces:
        return None
    missed = lanes[len(traces) :]
    traces += [Trace(lane, request, describe(models, lane), tuple(prompt_ids), (), "stopped") for lane in missed]
    comparison = Comparison(tuple(traces))
    emit(Finished(comparison))
    return comparison


def room_for(target: LoadedModel, prompt_ids: Sequence[int]) -> int:
    """How many new tokens the target's context holds behind the prompt.

    Raises:
        PlaygroundError: none, or the prompt has tokens that the target does not know.
    """
    cached = CachedModel(target.model)
    limit, known = cached.context_limit, cached.vocab_size
    if max(prompt_ids) >= known:
        raise PlaygroundError(
            f"The tokenizer of {target.name} gives this prompt the token {max(prompt_ids):,}, and the model knows "
            f"{known:,}. The two do not belong together: save the tokenizer that the model was trained with beside it."
        )
    if len(prompt_ids) >= limit:
        raise PlaygroundError(
            f"The prompt has {len(prompt_ids):,} tokens and the context of {target.name} holds {limit:,}. "
            "Shorten the prompt so that it leaves room for an answer."
        )
    return limit - len(prompt_ids)


def _warm_up(
    models: LoadedPair,
    lane: Lane,
    request: Request,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    stop: threading.Event,
) -> None:
    """By itself, so that its caches are gone before the lanes run."""
    rounds = itertools.islice(LaneRun(models, lane, request, prompt_ids, max_new_tokens).rounds, WARM_UP_ROUNDS)
    while not stop.is_set() and next(rounds, None):
        pass


def _decoded(
    models: LoadedPair,
    lane: Lane,
    request: Request,
    prompt_ids: Sequence[int],
    room: int,
    stop: threading.Event,
    tell: Callable[[Round], None],
) -> Trace:
    run = LaneRun(models, lane, request, prompt_ids, min(room, request.max_new_tokens))
    rounds = []
    for round_ in run.rounds:
        rounds.append(round_)
        tell(round_)
        if stop.is_set():
            break
    finish = _finish(rounds, request, models.target.eos_ids, room)
    return Trace(lane, request, describe(models, lane), tuple(prompt_ids), tuple(rounds), finish, run.memory())


class LaneRun:
    """One lane on one request: `rounds` decodes as it is asked for more. The caches are those of this run alone."""

    def __init__(
        self, models: LoadedPair, lane: Lane, request: Request, prompt_ids: Sequence[int], max_new_tokens: int
    ) -> None:
        """Raises:
        PlaygroundError: the target cannot be drafted for in this way.
        """
        self._models, self._lane = models, lane
        self._target = CachedModel(models.target.model)
        sampler = Sampler(request, models.target.model.device)
        self._drafter = build_drafter(models, lane, self._target, sampler)
        self.rounds: Iterator[Round] = decode(
            self._target,
            self._drafter,
            lookahead_for(lane, models.target.model.device),
            sampler,
            Detokenizer(models.target.tokenizer, prompt_ids),
            prompt_ids,
            max_new_tokens,
            models.target.eos_ids,
        )

    def memory(self) -> Memory:
        """What the lane holds now."""
        target, drafting = self._models.target.model, self._models.drafting
        drafts = drafting is not None and self._lane.drafter != "none"
        return Memory(
            target_weights=weights_bytes(target),
            target_cache=self._target.cache_bytes,
            drafter_weights=weights_bytes(drafting.module, beside=target) if drafts else 0,
            drafter_cache=self._drafter.cache_bytes,
        )


def _finish(rounds: Sequence[Round], request: Request, ends: frozenset[int], room: int) -> Finish:
    """Why a lane ended."""
    tokens = [token.id for round_ in rounds for token in round_.tokens]
    if tokens[-1] in ends:
        return "eos"
    if len(tokens) == request.max_new_tokens:
        return "length"
    return "context" if len(tokens) == room else "stopped"
