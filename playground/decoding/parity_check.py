"""A check of every target and every assistant: a model's logits must not depend on how the text is fed.

A model can fail at that in transformers itself: by positions or masks that it ignores, or by a state that a pass over
several tokens continues wrongly. Only running it shows this. So once a model is loaded, a text of random tokens is fed
token by token, at once, as a draft and as a small draft tree; to an assistant, as drafting feeds it. The logits are
compared.

The check cannot find a fault that needs a longer text than these TEXT + 6 tokens, such as at the end of a sliding
window or of LongRoPE's short factors, nor one that is smaller than rounding in the model's arithmetic.
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
from playground.errors import PlaygroundError, on_one_line
from playground.models.device import ran_out_of_memory
from playground.models.load import LoadedModel
from playground.models.quantised import precision

TEXT = 16  # tokens before those that are compared
# The most that two ways of feeding may differ, as a share of what different texts differ by. Measured: up to 7e-6 on
# healthy models in float32, and 0.03 in bfloat16; from 1e-4 and 0.1 on where a model is wrong.
FINE, COARSE = 3e-5, 0.15
EXACT = (
    "float32",
    "float16 weights, float32",
    "bfloat16 weights, float32",
)  # formats whose rounding is that of float32


@dataclass(frozen=True)
class Proof:
    """The faults that were found, each as a clause; "" where there is none.

    Attributes:
        steps: the fault of feeding token by token, which is standard decoding.
        chain: the fault of passes over several tokens, which verify a draft.
        tree: the fault of passes over a draft tree. Not tried where the runner takes no trees.
    """

    steps: str = ""
    chain: str = ""
    tree: str = ""


def check(loaded: LoadedModel, runners: Runners, drafter: str) -> None:
    """Checks a target on the first call; the result is stored with it. `drafter`: a method's name.

    Raises:
        PlaygroundError: decoding with this drafter would not give the model's own output.
    """
    how = f"compiled: {runners.compiled}"
    if how not in loaded.proofs:
        loaded.proofs[how] = prove(lambda: runners(loaded), _limit(loaded, runners))
    proof: Proof = loaded.proofs[how]
    who, upstream = _named(loaded)
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


def check_assistant(loaded: LoadedModel, runners: Runners) -> None:
    """Checks a model that drafts token by token on the first call; the result is stored with it.

    Raises:
        PlaygroundError: the model's drafts would not be its own choices.
    """
    how = f"compiled: {runners.compiled}, as an assistant"
    if how not in loaded.proofs:
        loaded.proofs[how] = prove_assistant(lambda: runners(loaded, "assistant"), _limit(loaded, runners))
    if wrong := loaded.proofs[how]:
        who, upstream = _named(loaded)
        raise PlaygroundError(
            f"{who} cannot draft here: {wrong}. {upstream} Choose another draft model, or a drafter that needs none, "
            "such as ngram."
        )


def _limit(loaded: LoadedModel, runners: Runners) -> float:
    exact = precision(loaded.model) in EXACT and loaded.model.device.type == "cpu"
    return FINE if exact or runners.native(loaded) else COARSE


def _named(loaded: LoadedModel) -> tuple[str, str]:
    """Returns the model's name with its class, and a sentence that names the version of transformers."""
    upstream = f"That is how transformers {version('transformers')} runs it."
    return f"{loaded.name} ({type(loaded.model).__name__})", upstream


@torch.inference_mode()
def prove(new: Callable[[], Runner], limit: float) -> Proof:
    """Runs 9 short passes, and one or two more where the model is recurrent.

    Args:
        new: returns a runner with an empty cache. One is used at a time.
        limit: FINE or COARSE.

    Raises:
        PlaygroundError: the logits contain NaN.
    """
    runner = new()
    text, (a, b, c, x, y, w) = _tokens(runner)
    size = len(text)
    faults = {"steps": "", "chain": "", "tree": ""}

    with _recorded(faults, "steps"):
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
        faults["steps"] = _disagreement(one_by_one[:2], at_once[:2], limit, "fed token by token, it", "fed at once")
    if faults["steps"]:
        return Proof(**faults)

    # A draft of which one token is accepted, then another: a chain, or a tree of which the second branch is accepted.
    verifying = "in a pass over several tokens, it", "fed token by token"
    runner = new()
    with _recorded(faults, "chain"):
        runner.forward(text, keep=1)
        runner.commit(size)
        rows = runner.forward([a, b, c], keep=3)
        runner.commit(size, [0])
        if not runner.takes_trees:
            rows, one_by_one = torch.cat([rows, runner.forward([b, c], keep=2)]), one_by_one[[0, 1, 2, 1, 2]]
        faults["chain"] = _disagreement(rows, one_by_one, limit, *verifying)
    if runner.takes_trees and not faults["chain"]:
        with _recorded(faults, "tree"):
            first = runner.forward([b, c, x, y, c], keep=5, tree=[-1, -1, 0, 1])
            runner.commit(size + 2, [1, 3])
            rows = torch.cat([first[[0, 1, 2, 4]], runner.forward([w], keep=1)])
            wanted = torch.cat([one_by_one[1:3], at_once[2:]])
            faults["tree"] = _disagreement(rows, wanted, limit, "in a pass over a draft tree, it", "without the tree")
    return Proof(**faults)


@torch.inference_mode()
def prove_assistant(new: Callable[[], Runner], limit: float) -> str:
    """Runs 8 short passes as drafting does, and two more where the model is recurrent: single tokens, several of them
    before a roll-back. Arguments and errors are those of `prove`.

    Returns:
        The fault that was found, as a clause; "" for none.
    """
    runner = new()
    text, (a, b, c, x, y, w) = _tokens(runner)
    faults = {"drafts": ""}
    with _recorded(faults, "drafts"):
        runner.forward(text, keep=1)
        rows = []
        for length, (right, *wrong) in enumerate(((a, x), (b, y, w), (c,)), len(text) + 1):
            rows.append(runner.forward([right], keep=1))
            for token in wrong:
                runner.forward([token], keep=1)
            runner.commit(length)
        at_once = new().forward([*text, a, b, c], keep=3)
        if at_once.isnan().any():
            raise runner.not_numbers()
        words = "after drafts that were rejected, it", "fed the text alone"
        faults["drafts"] = _disagreement(torch.cat(rows), at_once, limit, *words)
    return faults["drafts"]


def _tokens(runner: Runner) -> tuple[list[int], list[int]]:
    """Returns a random text, and six different tokens."""
    draw = random.Random(0)
    text = draw.choices(range(runner.vocab_size), k=min(TEXT, runner.context_limit - 6))
    return text, draw.sample(range(runner.vocab_size), 6)


def _disagreement(logits: torch.Tensor, wanted: torch.Tensor, limit: float, one: str, other: str) -> str:
    """Describes how two sets of (texts, vocabulary) logits disagree; "" where they agree."""
    p, q = (
        rows.log_softmax(dim=-1).clamp(min=-100) for rows in (logits, wanted)
    )  # some models rule tokens out by -inf
    apart = _rms(p - q)
    between = _rms(q[1:] - q[:-1])  # the rows belong to different texts
    if apart <= limit * between:
        return ""
    share = f"{apart / between:.2g} times" if between else "infinitely more than"
    return f"{one} gives other probabilities than {other}; they differ by {share} what those of different texts do"


def _rms(rows: torch.Tensor) -> float:
    return float(rows.square().mean().sqrt())


@contextmanager
def _recorded(faults: dict[str, str], what: str) -> Iterator[None]:
    """Puts into words whatever a pass raises: an architecture can fail in any way."""
    try:
        yield
    except PlaygroundError:
        raise
    except Exception as error:
        if ran_out_of_memory(error):
            raise
        faults[what] = f"it ends in an error inside transformers ({type(error).__name__}: {on_one_line(error, 120)})"
