"""Tries to mend a drafter that drafts badly, and measures what it knows without the target's states.

Counted are first draft tokens alone: after each of many positions of the target's own answers, is the drafter's choice
the target's? A repair is chosen at every other position, and judged at the positions between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.decoding import estimate
from playground.decoding.runners.eager import EagerRunner
from playground.metrics.drafts import Counts, clearly_better
from playground.models.load import LoadedModel
from playground.models.networks.dflash import DFlash
from playground.models.networks.eagle3 import Eagle3Head
from playground.models.networks.heads import ParallelHeads
from playground.models.networks.readings import undo
from playground.models.networks.repairs import Repair, repairs
from playground.results import Scored, Trials

STEPS = 4  # repairs that may be needed together
STARTS = 128  # the most positions of an answer at which drafts begin
SCREENED = 2  # answers on which repairs are chosen
TIMES = 1.3  # how many times as many first tokens a repair must get right


@dataclass(frozen=True)
class _Text:
    """An answer that the target wrote. `chosen`: the target's token at each of `starts`. `hidden`: its states by layer,
    (positions, width)."""

    ids: list[int]
    starts: list[int]
    chosen: list[int]
    hidden: Mapping[int, Tensor]


@torch.inference_mode()
def tried(
    target: LoadedModel,
    module: nn.Module,
    answers: Sequence[tuple[Sequence[int], Sequence[int]]],
    stopped: Callable[[], bool],
) -> Trials | None:
    """Tries the repairs of a drafter, loaded `as_stored`. `answers`: prompts and the target's greedy answers, as ids.
    None where there is too little text, or it was stopped."""
    texts = [_read(target, module, *answer) for answer in answers if len(answer[1]) > 2]
    if not texts:
        return None
    plain = _judged(module, texts)
    reads = not isinstance(module, PreTrainedModel)
    control = _judged(module, texts, elsewhere=True) if reads else None
    steps = list[Repair]()
    before, changed = plain, []
    try:
        while len(steps) < STEPS and not stopped() and (step := _best(module, target, texts)):
            without = _without(module, step, texts)
            changed += step.apply(module)
            after = _judged(module, texts)
            shown = _raised(after, before) and (without is None or clearly_better(after, without))
            refines = steps and step.reading.keys() == steps[-1].reading.keys() == {"layers"}
            if not shown and not (refines and after.accepted > before.accepted):
                break
            steps, before = [*steps, step], after
    finally:
        undo(changed)
    last = {tuple(step.reading) or step.said: step for step in steps}  # a later reading of the same field replaces one
    said, reading = (
        ", then ".join(it.said for it in last.values()),
        {k: v for it in steps for k, v in it.reading.items()},
    )
    return Trials(
        Scored("", {}, plain),
        Scored("the target's states of other positions", {}, control) if control else None,
        Scored(said, {} if any(not step.reading for step in steps) else reading, before) if steps else None,
    )


def _without(module: nn.Module, step: Repair, texts: Sequence[_Text]) -> Counts | None:
    """Judges the drafter with the tensors erased that a repair rearranges: a wrong order does harm and another may do
    less, but only the right one does good. None for a repair of no tensors."""
    erased = step.erased(module)
    try:
        return _judged(module, texts) if erased else None
    finally:
        undo(erased)


def _raised(after: Counts, before: Counts) -> bool:
    return clearly_better(after, before) and after.accepted[0] >= TIMES * before.accepted[0]


def _best(module: nn.Module, target: LoadedModel, texts: Sequence[_Text]) -> Repair | None:
    """Returns the repair under which the drafter is right most often where repairs are chosen, if that is more than
    without one."""
    some = texts[:SCREENED]
    best, most = None, _right(module, some, 0)
    for repair in repairs(module, target):
        changed = repair.apply(module)
        try:
            right = _right(module, some, 0)
        finally:
            undo(changed)
        if right > most:
            best, most = repair, right
    return best


def _judged(module: nn.Module, texts: Sequence[_Text], elsewhere: bool = False) -> Counts:
    n = sum(len(text.starts[1::2]) for text in texts)
    right = _right(module, texts, 1, elsewhere)
    return Counts((n,), (right,), (n,), (right,), n, n)


def _right(module: nn.Module, texts: Sequence[_Text], first: int, elsewhere: bool = False) -> int:
    right = 0
    for text in texts:
        drafts = _first_tokens(module, text, text.starts[first::2], elsewhere)
        right += sum(draft[:1] == [id_] for draft, id_ in zip(drafts, text.chosen[first::2], strict=True))
    return right


def _first_tokens(module: nn.Module, text: _Text, starts: Sequence[int], elsewhere: bool) -> estimate.Drafts:
    if isinstance(module, PreTrainedModel):
        return estimate.of_assistant(
            module, module.config.get_text_config(decoder=True).vocab_size, text.ids, starts, 1
        )
    layers: Sequence[int] = module.layers  # type: ignore[assignment]
    hidden = torch.cat([text.hidden[layer] for layer in layers], dim=-1)
    if elsewhere:
        hidden = hidden.roll(len(hidden) // 2, 0)
    make = {ParallelHeads: estimate.of_heads, DFlash: estimate.of_block}
    draft = next((it for kind, it in make.items() if isinstance(module, kind)), estimate.of_layer)
    return draft(module, text.ids, hidden, starts, 1)  # type: ignore[operator]


def _read(target: LoadedModel, module: nn.Module, prompt: Sequence[int], answer: Sequence[int]) -> _Text:
    ids, runner = [*prompt, *answer], EagerRunner(target.model)
    every = [*range(target.model.config.get_text_config(decoder=True).num_hidden_layers), -1]
    layers = every if isinstance(module, Eagle3Head | DFlash) else getattr(module, "layers", ())  # others may be tried
    if layers:
        runner.watch(layers)
    choices = runner.forward(ids, keep=len(answer) + 1).argmax(-1).tolist()  # from the answer's first position on
    hidden = dict(zip(layers, runner.hidden.chunk(len(layers), dim=-1), strict=True)) if layers else {}
    starts = list(range(len(prompt) + 1, len(ids)))
    starts = starts if len(starts) <= STARTS else [starts[i * len(starts) // STARTS] for i in range(STARTS)]
    return _Text(ids, starts, [choices[start - len(prompt)] for start in starts], hidden)
