"""Real models whose answers are remembered, so that many thousand runs of one text cost little; and what they must
follow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import nn
from transformers import PreTrainedModel

from playground.conversation import Message
from playground.decoding import loop
from playground.decoding.contract import Contract
from playground.decoding.drafters.base import Branches, Draft, Drafter, shared
from playground.decoding.drafters.branches import ChainDrafter
from playground.decoding.drafters.composite import after_forced
from playground.decoding.drafters.tree import TreeDrafter
from playground.decoding.grammar import Grammar
from playground.decoding.lookahead import Confidence
from playground.decoding.runners.eager import EagerRunner
from playground.decoding.sampling import Sampler
from playground.decoding.verify import Rule, Verdict, decide
from playground.lane import Request
from playground.trace import DraftToken, TargetToken
from tests.decoding.fakes import FakeModel, Law
from tests.decoding.real import branches_over

PROMPT, LENGTH = [0, 1, 0, 2, 0, 1], 3
QUICK, LONG = 300, 2_000  # runs; test_law.py shows that even the quick number catches wrong rules
SETTINGS = (
    dict(temperature=0.7, top_p=0.9),
    dict(temperature=1.5, top_k=3, repetition_penalty=1.3, presence_penalty=0.6, frequency_penalty=-0.4),
    dict(temperature=1.0, top_k=3, top_p=0.8),
    dict(temperature=1.0, top_p=0.95, min_p=0.4),
)
NewDrafter = Callable[[FakeModel], Drafter]


def cases(settings: Sequence[Mapping[str, Any]] = SETTINGS) -> list[Any]:
    """For `parametrize(("sampling", "draws"), …)`: a quick test of the setting with a penalty, which changes p most,
    and a long test of each."""
    hardest = next(setting for setting in settings if "repetition_penalty" in setting)
    quick = pytest.param(hardest, QUICK, id=f"{hardest}-quick")
    long = [pytest.param(setting, LONG, id=f"{setting}-long", marks=pytest.mark.slow) for setting in settings]
    return [quick, *long]


def agrees(counts: list[int], p: torch.Tensor) -> bool:
    """Whether the counts could be draws from p (chi-square at 0.001). Outcomes that are expected less than five times
    are counted together, or the test would not hold; those of probability 0 must never come out."""
    expected = (p.double() / p.double().sum() * sum(counts)).tolist()
    pairs = list(zip(counts, expected, strict=True))
    if any(count for count, mean in pairs if mean == 0):
        return False
    rare = [sum(column) for column in zip(*(pair for pair in pairs if 0 < pair[1] < 5), strict=True)]
    cells = [*(pair for pair in pairs if pair[1] >= 5), *[rare] * bool(rare)]
    return len(cells) < 2 or chisquare(*zip(*cells, strict=True)).pvalue > 0.001


@cache
def law_of(model: PreTrainedModel) -> Law:
    """Text -> logits after it, by a pass over the whole text, once for each text."""
    known: dict[tuple[int, ...], torch.Tensor] = {}

    def law(ids: Sequence[int]) -> torch.Tensor:
        if tuple(ids) not in known:
            with torch.inference_mode():
                known[tuple(ids)] = model(torch.tensor([list(ids)])).logits[0, -1].float()
        return known[tuple(ids)]

    return law


class RememberedBranches(Branches):
    """What `make` grows, from the first token of the text on, once for each text and branch. Nothing after the prompt
    alone: before the target's first pass there is nothing to draft from."""

    cache_bytes = 0

    def __init__(self, model: PreTrainedModel, make: Callable[[EagerRunner], Branches], prompt: Sequence[int]) -> None:
        self._model, self._make, self._prompt = model, make, prompt
        grown = make(EagerRunner(model))
        self.deepest, self.context = grown.deepest, grown.context
        self._known: dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = {}
        self.confidence: torch.Tensor | None = None

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        self._text = list(ids)
        self._paths: list[tuple[int, ...]] = [()]
        return None if len(ids) == len(self._prompt) else self._logits()

    def grow(self, ids: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
        self._paths = [(*self._paths[row], int(id_)) for id_, row in zip(ids, rows, strict=True)]
        return self._logits()

    def _logits(self) -> torch.Tensor:
        logits, draft_ids, confidence = zip(*(self._after(path) for path in self._paths), strict=True)
        self.draft_ids = draft_ids[0]
        self.confidence = None if confidence[0] is None else torch.cat(confidence)
        return torch.stack(logits)

    def _after(self, path: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        key = (*self._text, -1, *path)
        if key not in self._known:
            target = EagerRunner(self._model)
            branches = self._make(target)
            target.forward(self._text[:-1], keep=1)
            target.commit(len(self._text) - 1)
            branches.commit()
            with torch.inference_mode():
                logits = branches.root(self._text)
                for id_ in path:
                    logits = branches.grow([id_], [0])
            self._known[key] = logits[0].float(), branches.draft_ids, branches.confidence
        return self._known[key]

    def end(self) -> None:
        pass

    def commit(self) -> None:
        pass

    def rewind(self, length: int) -> int:
        return length


def branches(network: nn.Module, model: PreTrainedModel, prompt: Sequence[int] = PROMPT) -> RememberedBranches:
    """What the network grows, as the project would have it grow."""
    return RememberedBranches(model, partial(branches_over, network), prompt)


def chain(grown: RememberedBranches, vocab_size: int) -> NewDrafter:
    return lambda target: ChainDrafter(grown, vocab_size, ())


def tree(grown: RememberedBranches, vocab_size: int) -> NewDrafter:
    return lambda target: TreeDrafter(grown, 5, ())


class RememberedDrafts(Drafter):
    """What a fresh drafter proposes after a text, asked once for each text and lookahead. For drafters that choose."""

    def __init__(self, make: Callable[[], Drafter]) -> None:
        self._make = make
        self._known: dict[tuple[tuple[int, ...], int], Draft] = {}

    def propose(self, ids: Sequence[int], k: int, stop_below: float, sampler: Sampler) -> Draft:
        key = tuple(ids), k
        if key not in self._known:
            self._known[key] = self._make().propose(ids, k, stop_below, sampler)
        return self._known[key]

    def commit(self, length: int) -> None:
        pass


class Language:
    """Some texts, each a tuple of token ids, and the token that ends them. `start` gives the same as a grammar, as the
    engine follows it."""

    def __init__(self, texts: Collection[tuple[int, ...]], eos: int, start: Callable[[], Grammar]) -> None:
        self._texts, self.eos, self.start = texts, eos, start

    def allows(self, text: tuple[int, ...]) -> bool:
        """Whether this is the beginning of one of them, or one with its end."""
        if text[-1] == self.eos:
            return text[:-1] in self._texts
        return any(whole[: len(text)] == text for whole in self._texts)


def continuations(
    law: Law,
    sampler: Sampler,
    prompt: Sequence[int],
    language: Language | None = None,
    length: int = LENGTH,
    ends: Callable[[tuple[int, ...]], bool] = lambda text: False,
) -> dict[tuple[int, ...], float]:
    """All outputs of so many tokens that can come after the prompt, and how likely each is. Those of a language may end
    earlier, and a token that leaves it has the score -inf. `ends`: whether an output ends here."""
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer = {}
        for text, chance in chances.items():
            if ends(text) or (language and text[-1:] == (language.eos,)):
                longer[text] = chance
                continue
            before = [*prompt, *text]
            logits = law(before)[None]
            scores = sampler.scores(logits, lambda row, before=before: before).clone()
            if language:
                refused = [id_ for id_ in range(scores.shape[1]) if not language.allows((*text, id_))]
                scores[0, refused] = -torch.inf
                if scores.isneginf().all():  # then the language alone decides
                    scores = logits.clone()
                    scores[0, refused] = -torch.inf
            p = sampler.probabilities(scores)[0]
            longer |= {(*text, id_): chance * float(p[id_]) for id_ in p.nonzero()[:, 0].tolist()}
        chances = longer
    return chances


def follows_the_law(
    law: Law,
    vocab_size: int,
    new_drafter: NewDrafter,
    prompt: Sequence[int] = PROMPT,
    draws: int = QUICK,
    seed: int = 3,
    stop_below: float = 0.0,
    language: Language | None = None,
    rule: Rule = decide,
    contract: Contract | None = None,
    then: Sequence[Mapping[str, float]] = (),
    forgotten: int = 0,
    length: int = LENGTH,
    **sampling: float,
) -> bool:
    """Whether what runs after the prompt write agrees with the exact probability of each of all continuations, by a
    chi-square test.

    Args:
        stop_below: the threshold of their lookahead.
        then: the settings of later turns, which go on with the caches of those before and have the same seed. The
            answers of all turns together are compared.
        forgotten: how many tokens of the earlier answers a template leaves out of a later turn's prompt.
        length: of each answer.
    """
    turns = [sampling, *then]

    def new_sampler(text: Sequence[int], seed: int, later: bool = False, **settings: float) -> Sampler:
        return Sampler(_request(seed, later, **settings), torch.device("cpu"), text, contract)

    def shortened(said: Sequence[int]) -> list[int]:
        return [*prompt, *said[forgotten:]]

    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for settings in turns:
        before, chances = chances, {}
        for said, chance in before.items():
            text = shortened(said)
            following = continuations(law, new_sampler(text, 0, **settings), text, language, length)
            chances |= {(*said, *its): chance * of_it for its, of_it in following.items()}
    eos_ids = (language.eos,) if language else ()
    counts = dict.fromkeys(chances, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "annotate", _bare)
        for run in range(draws):
            target = FakeModel(law, vocab_size)
            drafter, answers = new_drafter(target), ()
            for turn, settings in enumerate(turns):
                text = shortened(answers)
                if target.length:
                    target.commit(drafter.rewind(min(shared(target.text, text), len(text) - 1)))
                sampler = new_sampler(text, seed * draws + run, turn > 0, **settings)
                grammar = language.start() if language else Grammar()
                rounds = loop.decode(
                    target, after_forced(grammar, drafter), Confidence(2, stop_below), sampler, NoText(), text, length,
                    eos_ids, rule, grammar=grammar,
                )  # fmt: skip
                answers += tuple(token.id for round_ in rounds for token in round_.tokens)
            if answers not in counts:
                return False
            counts[answers] += 1
    return agrees(list(counts.values()), torch.tensor(list(chances.values())))


@cache
def _request(seed: int, later: bool, **settings: float) -> Request:
    asked = Request("x", seed=seed, max_new_tokens=LENGTH, **settings)
    return asked.next_turn(Message("assistant", "x"), "x") if later else asked


def _bare(
    draft: Draft, verdict: Verdict, scores: torch.Tensor, sampler: Sampler, detokenizer: NoText, with_own: bool
) -> tuple[tuple[DraftToken, ...], TargetToken | None, None]:
    """The tokens of a round, without what the trace shows of them: it takes a fifth of a run, and changes no token."""
    kept = tuple(DraftToken(draft.ids[i], "", False, 1.0, None, None, "accepted") for i in verdict.path)
    return kept, TargetToken(verdict.token, "", False, None, None, "plain") if with_own else None, None


class NoText:
    """A detokenizer for runs whose text nobody reads."""

    special_ids = frozenset()

    def branch(self, ids: Sequence[int], parents: Sequence[int], last: int) -> list[str]:
        return [""] * len(ids)

    def commit(self, ids: Sequence[int]) -> list[str]:
        return [""] * len(ids)
