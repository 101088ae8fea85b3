"""The Python API: a comparison as one call. `playground.compare` is this module's; docs/python.md shows its use."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from playground.errors import check
from playground.lane import LOCAL, lanes_of, read_request
from playground.presets import DTYPES, OWN, Pair, load_pairs
from playground.presets import pair_of as named_pair
from playground.settings import ANSWER, DRAFTING, SETTINGS

if TYPE_CHECKING:  # torch would slow every import of this module down
    from playground.models.store import ModelStore
    from playground.trace import Comparison


def compare(
    prompt: str = "",
    *,
    pair: str | None = None,
    target: str | None = None,
    assistant: str | None = None,
    drafter: str | None = None,
    repeat: int = 0,
    dtype: str = "auto",
    device: str = "auto",
    compiled: str = "auto",
    messages: Any = "",
    **settings: Any,
) -> Comparison:
    """Runs one prompt with standard and with speculative decoding in this process, as the command `compare` does.

    What is not on this machine is downloaded without a question. The models stay in memory for the next call. Nothing
    is printed, and nothing is kept in the history.

    Args:
        prompt: what the user says; "" where `messages` end with the message to answer.
        pair: the name of a preset. Without it and `target`: the starter, or on a CUDA GPU the largest that fits.
        target: a hub id or a folder, instead of `pair`.
        assistant: with `target`: the draft model or trained drafter, as a hub id or a folder; for early-exit the number
            of layers.
        drafter: how to draft, such as "mtp"; None for the pair's own.
        repeat: how many times more all lanes run, interleaved, so that the speed-up has a narrower interval.
        dtype: the format of weights and arithmetic, such as "float32"; "auto" for the pair's.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        compiled: "on" for CUDA graphs over a static cache, "off", or "auto" for the pair's.
        messages: the conversation before the prompt: a list of messages with roles, or its JSON.
        settings: the settings of the drafts and of the answer, such as `lookahead` and `max_new_tokens`, by the names
            of the terminal's options. A JSON schema and tools may be objects. None is the pair's value.

    Returns:
        The comparison with the traces of both lanes; the baseline is named "Standard".

    Raises:
        PlaygroundError: a setting is unknown or not accepted, there is no such pair, a model cannot be had, the request
            does not fit, or no memory is left.
    """
    from playground.backends.local import LocalBackend
    from playground.experiments.compare import run
    from playground.experiments.events import Watch

    unknown = settings.keys() - {*DRAFTING, *ANSWER}
    check(
        not unknown, f"There is no setting {min(unknown, default='')!r}. There are: {', '.join((*DRAFTING, *ANSWER))}."
    )
    check(dtype in DTYPES, f"There is no dtype {dtype!r}. Choose one of {', '.join(DTYPES)}.")
    values = {name: _read(name, value) for name, value in settings.items() if value is not None}
    request = read_request(
        prompt, _read("messages", messages), {name: value for name, value in values.items() if name in ANSWER}
    )
    chosen = pair_of(pair, target, assistant, drafter, compiled=_read("compiled", compiled))
    lanes = lanes_of(chosen, {**values, "drafter": drafter})
    local = LocalBackend(_store(), chosen, dtype, device)
    comparison = run(lanes, request, {LOCAL: local}, Watch(), repeats=repeat)
    assert comparison, "nobody stops it"
    return comparison


def _read(name: str, value: Any) -> Any:
    """Return the checked value of a setting; an object becomes JSON where the setting is JSON as text."""
    return SETTINGS[name].read(json.dumps(value) if SETTINGS[name].file and not isinstance(value, str) else value)


@functools.cache
def _store() -> ModelStore:
    from playground.models.store import ModelStore

    return ModelStore()


def pair_of(pair: str | None, target: str | None, assistant: str | None, drafter: str | None, **how: Any) -> Pair:
    """Return the preset of this name, or the pair of the user's own models; without either, the default pair of this
    machine. The arguments are those of `compare`; `how`: further ones of `presets.pair_of`.

    Raises:
        PlaygroundError: both were given, there is no such pair, or the models make no pair.
    """
    from playground.models.fit import default_pair

    typed = target is not None or bool(assistant)
    check(
        not typed or (target is not None and not pair),
        "Give either a pair, or a target model with or without an assistant.",
    )
    pairs, _ = load_pairs()
    name = OWN if typed else default_pair(pairs).name if pair is None else pair
    return named_pair(pairs, name, target or "", assistant, drafter, **how)
