"""ZeroGPU: a Space whose own process has no GPU.

A function that `spaces.GPU` decorates runs in a forked process, which has a GPU for the requested time. In the source
of `spaces` 0.51:

- Models are put on the device before the page opens, on the main thread, the only one in which `spaces` emulates a
  GPU. So the pairs are a fixed list.
- The decorated generator is called in the context of the event handler, which determines whose quota the run uses.
- Its arguments and yielded values are pickled. Of an exception, only the name of its class arrives.
- The process notices after its next yield that the generator was closed.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from transformers import PreTrainedTokenizerBase

from playground.backends.base import Backend
from playground.errors import PlaygroundError, check
from playground.experiments.events import Event, Watch
from playground.experiments.session import Run
from playground.experiments.work import Work
from playground.lane import LOCAL
from playground.models.fit import Fit
from playground.models.store import LoadedPair, ModelStore
from playground.presets import BESIDE, Pair
from playground.progress import Progress

logger = logging.getLogger(__name__)

PAIRS = ("starter", "smollm2-1.7b", "qwen3-4b-dflash")  # small enough to be moved to the GPU for every new process
START_S = 10  # until the weights are there, with a margin
LANE_S = 2  # to warm a lane up
TOKEN_S = 0.04  # a pass of some 40 layers, launched kernel by kernel
HZ = 5  # batches a second; between two the process notices that its run is to stop
MOST_S = 80  # counted 1.5-fold on the usual hardware: the two minutes a day of a visitor without an account

READY = Fit("ready", 0, 0, 0, "It is in memory.")
ALONE = "To run other models, duplicate the Space and give the copy a GPU of its own, or run the playground yourself."
OVER = (
    "The {seconds} s of GPU time that this run asked for are over. What was decoded stays. Ask for fewer tokens, or "
    "compare fewer drafters."
)
QUOTA = re.compile(r"your (Pro |free )?ZeroGPU quota \((\d+)s requested vs\. (\d+)s left\)\. Try again in ([\d:]+)")
SAID = {  # by the title of the error that `spaces` raises; {} is its message, a sentence
    "ZeroGPU quota exceeded": "Hugging Face grants no more GPU time now: {} Sign in for more time a day, ask for fewer "
    "tokens, or duplicate the Space and give the copy a GPU of its own.",
    "ZeroGPU illegal duration": "{} Ask for fewer tokens, or compare fewer drafters.",
    "ZeroGPU pending credits exceeded": "{} Wait until your other runs have ended.",
    "ZeroGPU queue timeout": "No GPU became free within a minute. Press Run again.",
    "ZeroGPU client error": "ZeroGPU gave no GPU: {} Load the page again, then press Run.",
}
ABORTED = "GPU task aborted"  # the message for a process that ended before its generator
KILLED = "ZeroGPU ended the run before it was done. Ask for fewer tokens, or press Run again."


def active() -> bool:
    """Returns whether this is a ZeroGPU Space, by the variable that `spaces` itself reads."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def seconds(work: Work) -> int:
    """Returns the GPU time to request: an estimate from the lanes and their tokens."""
    return round(min(MOST_S, START_S + LANE_S * len(work.lanes) + TOKEN_S * work.tokens))


class Held(ModelStore):
    """The models of several pairs, with all of their drafters, put on the device at once. It must be made on the main
    thread.

    Attributes:
        pairs: those of PAIRS that could be loaded.
        problems: a sentence for each of the others.
        current: the pair that this process requested last, which the page calls ready.

    Raises:
        PlaygroundError: none could be loaded.
    """

    def __init__(self, pairs: Mapping[str, Pair]) -> None:
        super().__init__()
        os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # transformers would fill the device from threads
        self.pairs: dict[str, Pair] = {}
        self.problems: list[str] = []
        self._loaded: dict[tuple[str, str], LoadedPair] = {}  # by pair and drafter
        self._stores: list[ModelStore] = []
        for pair in (pairs[name] for name in PAIRS if name in pairs):
            store = ModelStore()
            try:
                loaded = {drafter: store.get(pair, drafter=drafter, progress=_log) for drafter in _drafters(pair)}
            except PlaygroundError as problem:
                self.problems.append(f"{pair.title} is left out. {problem}")
                continue
            self.pairs[pair.name] = pair
            self._loaded |= {(pair.name, drafter): models for drafter, models in loaded.items()}
            self._stores.append(store)
        if not self.pairs:
            raise PlaygroundError(" ".join(["No model could be loaded.", *self.problems]))

    def get(self, pair: Pair, *, drafter: str, **_: Any) -> LoadedPair:
        """Returns a pair's models, like `ModelStore.get`, in the format in which they were loaded.

        Raises:
            PlaygroundError: the drafter is not one of the pair's.
        """
        check(
            (pair.name, drafter) in self._loaded,
            f"{pair.title} has no {drafter} in memory. Choose one of {', '.join(_drafters(pair))}.",
        )
        self.current = pair
        return self._loaded[pair.name, drafter]

    def fit(self, pair: Pair, device: str = "auto") -> Fit:
        """Returns READY, because there is no device here whose memory could be checked."""
        return READY

    def sampling_defaults(self, name: str) -> dict[str, float]:
        """Returns a target's own sampling settings, like `ModelStore.sampling_defaults`."""
        return next((found for store in self._stores if (found := store.sampling_defaults(name))), {})

    def tokenizer(self, name: str) -> PreTrainedTokenizerBase | None:
        """Returns a target's tokenizer, like `ModelStore.tokenizer`."""
        return next((found for store in self._stores if (found := store.tokenizer(name))), None)


class ZeroGpu:
    """Runs work in processes that have a GPU.

    Args:
        pairs: those whose models are in memory.
        backend_for: returns the backend that runs a pair's lanes, in the forked process.
    """

    def __init__(self, pairs: Mapping[str, Pair], backend_for: Callable[[Pair], Backend]) -> None:
        import spaces

        self._pairs, self._backend_for = pairs, backend_for
        self._decode = spaces.GPU(duration=lambda name, work, wanted: seconds(work))(self._forked)

    def __call__(self, pair: Pair, work: Work, watch: Watch) -> None:
        """Runs the work in a forked process. It must be called in the context of an event handler. The process is
        stopped by deleting a folder: a closed generator could not return the result of what was decoded until then.

        Raises:
            PlaygroundError: the pair's models are not in memory, its lanes are to be compiled, there is no GPU for this
                visitor now, its time is over, or the work raised one.
        """
        check(pair.name in self._pairs, f"This Space runs only the pairs of its list, as ZeroGPU requires. {ALONE}")
        check(
            pair.compiled != "on",
            "On ZeroGPU lanes are not compiled: each run would compile again, on your GPU time. Set it to auto or off.",
        )
        wanted = tempfile.TemporaryDirectory(prefix="zerogpu-")
        try:
            with wanted, closing(self._decode(pair.name, work, Path(wanted.name))) as batches:
                for batch in batches:
                    if isinstance(batch, PlaygroundError):
                        raise batch
                    for event in batch:
                        watch.emit(event)
                    if watch.stopped():
                        wanted.cleanup()
        except gr.Error as error:
            raise _in_words(error, work) from None

    def _forked(self, name: str, work: Work, wanted: Path) -> Iterator[list[Event] | PlaygroundError]:
        """Runs the work in the forked process. Yields the events as they come, and an error at the end. The run stops
        once the folder `wanted` is deleted, and before the process is killed."""
        run = Run(partial(work, {LOCAL: self._backend_for(self._pairs[name])}))
        run.begin()
        end = time.monotonic() + seconds(work) - START_S
        try:
            for batch in run.batches():
                over = time.monotonic() > end
                if over or not wanted.exists():
                    run.stop()
                yield batch
                run.wait(1 / HZ)
        except PlaygroundError as problem:
            yield PlaygroundError(str(problem))
        else:
            if over:
                yield PlaygroundError(OVER.format(seconds=seconds(work)))
        finally:
            run.stop()
            run.wait()  # the process may be given the next run


def _in_words(error: gr.Error, work: Work) -> Exception:
    """Converts what `spaces` raised for this work to a PlaygroundError, unless the error is ours."""
    said = str(error.message).strip().rstrip(".")
    if found := QUOTA.search(said):
        account, requested, left, wait = found.groups()
        return PlaygroundError(_of_quota(account, requested, left, wait, work))
    if error.title in SAID:
        return PlaygroundError(SAID[error.title].format(f"{said}."))
    if said == ABORTED:
        return PlaygroundError(KILLED)
    return RuntimeError(f"{said} in the process with the GPU")


def _of_quota(account: str | None, requested: str, left: str, wait: str, work: Work) -> str:
    """Says what a visitor's quota leaves, and what to do. `account`: None for a visitor who is not signed in."""
    counted = int(requested) / seconds(work)  # the hardware's factor
    free_s = int(left) / counted - START_S - LANE_S * len(work.lanes)
    share = free_s / (TOKEN_S * work.tokens)
    fits = f"A run with {share:.0%} of these tokens fits. " if 0.05 < share < 1 else ""
    sign_in = "" if account else "Sign in to Hugging Face for more time a day, "
    wait = f"{'w' if sign_in else 'W'}ait {wait} hours"
    return (
        f"{left} s of your GPU time at Hugging Face are left, and this run asks for {requested} s. {fits}"
        f"{sign_in}{wait}, or duplicate the Space and give the copy a GPU of its own."
    )


def _drafters(pair: Pair) -> list[str]:
    return [*pair.drafters, *BESIDE]


def _log(step: Progress) -> None:
    logger.info(step.label)
