"""Every target proves that it can be run here: what its passes say of a text must not depend on how the text is fed.

A model can fail at that in transformers itself: by positions or masks that it ignores, by a state that a pass over
several tokens continues wrongly. Nothing but running it shows this. So once a model is loaded, a text of random tokens
is fed token by token, at once, as a draft and as a small draft tree, and the logits are compared.

What it cannot see: a fault that needs a longer text than these TEXT + 6 tokens, such as at the end of a sliding window
or of LongRoPE's short factors; and one that is smaller than rounding in the model's arithmetic.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version

import torch

from playground.decoding.runners.base import Runner
from playground.decoding.runners.factory import Runners
from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError
from playground.models.device import ran_out_of_memory
from playground.models.load import LoadedModel
from playground.models.quantised import precision

TEXT = 16  # tokens before those that are compared
# The most that two ways of feeding may differ, as a share of what different texts differ by. Measured: up to 7e-6 on
# healthy models in float32, and 0.03 in bfloat16; from 1e-4 and 0.1 on where a model is wrong.
FINE, COARSE = 3e-5, 0.15
EXACT = ("float32", "float16 weights, float32")  # formats whose rounding is that of float32


@dataclass(frozen=True)
class Proof:
    """What was found wrong, in words that follow "it"; "" where nothing was.

    Attributes:
        steps: with feeding token by token, which is standard decoding.
        chain: with passes over several tokens, which verify a draft.
        tree: with passes over a draft tree. Not tried where the runner takes no trees.
    """

    steps: str = ""
    chain: str = ""
    tree: str = ""


def check(loaded: LoadedModel, runners: Runners, drafter: str) -> None:
    """Tries the model on the first call; the result is kept with it.

    Raises:
        PlaygroundError: decoding with this drafter would not give what the model says. `drafter`: a method's name.
    """
    how = runners.describe(loaded)
    if how not in loaded.proofs:
        limit = FINE if precision(loaded.model) in EXACT and loaded.model.device.type == "cpu" else COARSE
        loaded.proofs[how] = prove(lambda: runners(loaded), limit)
    proof: Proof = loaded.proofs[how]
    who = f"{loaded.name} ({type(loaded.model).__name__})"
    upstream = f"That is how transformers {version('transformers')} runs it."
    if proof.steps:
        raise PlaygroundError(f"{who} cannot be decoded here: {proof.steps}. {upstream} Choose another model.")
    if proof.chain and drafter != "none":
        raise PlaygroundError(
            f"Drafts cannot be verified with {who}: {proof.chain}. {upstream} Choose another model, or the "
            "drafter none."
        )
    if proof.tree and METHODS[drafter].tree:
        raise PlaygroundError(
            f"Draft trees cannot be verified with {who}: {proof.tree}. {upstream} Choose a drafter that drafts a "
            "chain, such as mtp or ngram."
        )


@torch.inference_mode()
def prove(new: Callable[[], Runner], limit: float) -> Proof:
    """Runs 9 short passes, and one or two more where the model is recurrent.

    Args:
        new: gives a runner with an empty cache. One is used at a time.
        limit: FINE or COARSE.

    Raises:
        PlaygroundError: the logits are not numbers, or the device ran out of memory.
    """
    runner = new()
    draw, size = random.Random(0), min(TEXT, runner.context_limit - 6)
    text = draw.choices(range(runner.vocab_size), k=size)
    a, b, c, x, y, w = draw.sample(range(runner.vocab_size), 6)
    found = {"steps": "", "chain": "", "tree": ""}

    with _recorded(found, "steps"):
        runner.forward(text, keep=1)
        runner.commit(size)
        steps = []
        for n, token in enumerate((a, b, c), 1):
            steps.append(runner.forward([token], keep=1))
            runner.commit(size + n)
        one_by_one = torch.cat(steps)
        if one_by_one.isnan().any():
            raise runner.not_numbers()
        at_once = new().forward([*text, a, b, x, c, w], keep=5)
        found["steps"] = _disagreement(one_by_one[:2], at_once[:2], limit, "fed token by token, it", "fed at once")
    if found["steps"]:
        return Proof(**found)

    # A draft of which one token is accepted, then another: a chain, or a tree of which the second branch is accepted.
    verifying = "in a pass over several tokens, it", "fed token by token"
    runner = new()
    with _recorded(found, "chain"):
        runner.forward(text, keep=1)
        runner.commit(size)
        rows = runner.forward([a, b, c], keep=3)
        runner.commit(size, [0])
        if not runner.takes_trees:
            rows, one_by_one = torch.cat([rows, runner.forward([b, c], keep=2)]), one_by_one[[0, 1, 2, 1, 2]]
        found["chain"] = _disagreement(rows, one_by_one, limit, *verifying)
    if runner.takes_trees and not found["chain"]:
        with _recorded(found, "tree"):
            first = runner.forward([b, c, x, y, c], keep=5, tree=[-1, -1, 0, 1])
            runner.commit(size + 2, [1, 3])
            rows = torch.cat([first[[0, 1, 2, 4]], runner.forward([w], keep=1)])
            wanted = torch.cat([one_by_one[1:3], at_once[2:]])
            found["tree"] = _disagreement(rows, wanted, limit, "in a pass over a draft tree, it", "without the tree")
    return Proof(**found)


def _disagreement(logits: torch.Tensor, wanted: torch.Tensor, limit: float, one: str, other: str) -> str:
    """Both (texts, vocabulary). "" where they agree."""
    p, q = (
        rows.log_softmax(dim=-1).clamp(min=-100) for rows in (logits, wanted)
    )  # some models rule tokens out by -inf
    apart = _rms(p - q)
    between = _rms(q[1:] - q[:-1])  # the rows are of different texts
    if apart <= limit * between:
        return ""
    share = f"{apart / between:.2g} times" if between else "infinitely more than"
    return f"{one} gives other probabilities than {other}; they differ by {share} what those of different texts do"


def _rms(rows: torch.Tensor) -> float:
    return float(rows.square().mean().sqrt())


@contextmanager
def _recorded(found: dict[str, str], what: str) -> Iterator[None]:
    """Puts into words whatever a pass raises: an architecture can fail in any way."""
    try:
        yield
    except PlaygroundError:
        raise
    except Exception as error:
        if ran_out_of_memory(error):
            raise PlaygroundError(
                "The memory of the device ran out when the model was tried. Choose a smaller pair, or free some memory."
            ) from None
        message = " ".join(str(error).split())[:120]
        found[what] = f"it ends in an error inside transformers ({type(error).__name__}: {message})"
