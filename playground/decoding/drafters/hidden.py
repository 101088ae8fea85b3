"""Parts of drafters that read hidden states: the states, the reduced vocabulary, and the choice of a token."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import torch
import torch.nn.functional as F

from playground.decoding.drafters.base import Branches, Captured, Chosen, Grow
from playground.decoding.runners.base import Runner
from playground.decoding.sampling import Sampler, Tensors, noise_of
from playground.decoding.transfer import to_device
from playground.models.attention import context_of
from playground.models.networks.dflash import DFlash
from playground.models.networks.heads import SharedHead


class HiddenBranches(Branches):
    """The base of networks that read the target's hidden states, which are collected pass by pass.

    Args:
        target: the decode loop's runner, which is set to collect hidden states.
        layers: target layers whose hidden states are read, in the form of `Runner.watch`.
    """

    def __init__(self, target: Runner, layers: Sequence[int] = (-1,)) -> None:
        target.watch(layers)
        self._target = target
        self._collected: list[torch.Tensor] = []

    def _hidden(self) -> torch.Tensor | None:
        """Returns the hidden states of the accepted sequence that were collected since the last call, (positions,
        layers x width); None before the target's first pass."""
        collected, self._collected = self._collected, []
        return torch.cat(collected) if collected else None

    def commit(self) -> None:
        self._collected.append(self._target.hidden)

    def rewind(self, length: int) -> int:
        """Implements `Drafter.rewind` for networks that read the last hidden state alone."""
        self._collected.clear()
        return length


class BlockBranches(HiddenBranches):
    """The base of networks that draft a block of slots in one pass. The cache entries of the sequence last across
    rounds; those of a block are dropped when its draft is done."""

    def __init__(self, network: DFlash, target: Runner) -> None:
        super().__init__(target, network.layers)
        self.draft_ids, self.deepest, self.context = network.draft_ids, network.drafts, context_of(network.config)
        self._block = target.block(network)

    @property
    def cache_bytes(self) -> int:
        return self._block.cache_bytes

    def end(self) -> None:
        self._block.end()

    def rewind(self, length: int) -> int:
        super().rewind(length)
        return self._block.rewind(length)


LEAST = 256  # columns added to a network's own; there are twice as many whenever the text needs more


class TextVocabulary:
    """The draft vocabulary of a trained network, extended by the tokens of the sequence: texts repeat their tokens,
    above all the rare ones that names consist of. It has few sizes, so that what is captured serves a text of any
    length: the columns that are left are of tokens that the text lacks, and their logits are -inf.

    `further`: int64, on the host, the columns added to the network's own, as `SharedHead.further` takes them."""

    further: torch.Tensor
    _draft_ids: torch.Tensor
    _columns: tuple[torch.Tensor, torch.Tensor] | None  # None until logits are computed

    def __init__(self, network: SharedHead) -> None:
        self._network = network
        self._own = network.draft_ids.tolist()
        self.clear()

    def clear(self) -> None:
        """Forgets the tokens of the sequence."""
        self._known, self._added = set(self._own), list[int]()
        self._read = 0  # tokens of the sequence that were read
        self._lay_out()

    def read(self, ids: Sequence[int]) -> torch.Tensor:
        """Returns the token ids of the columns after `ids`, (draft vocabulary,). `ids` extends the previous call's."""
        new = [id_ for id_ in dict.fromkeys(ids[self._read :]) if id_ not in self._known]
        self._read = len(ids)
        if new:
            self._known.update(new)
            self._added += new
            self._lay_out()
        return self._draft_ids

    def _lay_out(self) -> None:
        own, vocab_size, count = self._network.draft_ids, self._network.vocab_size, len(self._added)
        size = min(max(LEAST, 1 << (count - 1).bit_length()), vocab_size - len(own))
        unused = (id_ for id_ in range(vocab_size - 1, -1, -1) if id_ not in self._known)  # rare ones come first
        self.further, self._columns = torch.tensor([count, *self._added, *islice(unused, size - count)]), None
        self._draft_ids = torch.cat([own, to_device(self.further[1:], own.device)])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the logits of (…, width) hidden states, (…, draft vocabulary), for the ids that `read` returned
        last."""
        return self.extended(self._network.logits(hidden), hidden)

    def extended(self, logits: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Appends the logits of the further columns to the network's own, (…, network's vocabulary), for (…, width)
        hidden states; returns (…, draft vocabulary)."""
        if self._columns is None:
            self._columns = self._network.further(to_device(self.further, hidden.device))
        return torch.cat([logits, F.linear(hidden, *self._columns)], dim=-1)


class Several(NamedTuple):
    """n times tokens that were drawn without replacement, still on the device. `read`: (n, tokens, 2), each id, in the
    order of the draws, with the q that it had before the first one, 0 if there was none; `candidates`: (n, draft
    vocabulary); `probabilities`: (n, vocabulary). `Draft` explains the fields."""

    read: torch.Tensor
    candidates: torch.Tensor
    probabilities: torch.Tensor


class DraftChoice:
    """Chooses the tokens of one draft from logits over a draft vocabulary, with the request's own settings.

    Args:
        vocab_size: the target's.
        sampler: the request's, which also samples the target's tokens.
    """

    def __init__(self, vocab_size: int, sampler: Sampler) -> None:
        self._vocab_size = vocab_size
        self._sampler = sampler

    def __call__(self, ids: Sequence[int], logits: torch.Tensor, draft_ids: torch.Tensor, place: int = 0) -> Chosen:
        """Chooses one token for each of n positions, one after the other.

        Args:
            ids: the sequence before the first token. Only its length counts, unless the sampler `reads_text`, where n
                is 1.
            logits: (n, draft vocabulary).
            draft_ids: (draft vocabulary,), their token ids.
            place: of the first token in the draft. What is chosen elsewhere in the draft is not overwritten.

        Returns:
            The tokens. Tokens outside the draft vocabulary have q = 0 in the distributions that they were sampled from.
        """
        sampler, n = self._sampler, len(logits)
        noise = [] if sampler.greedy else [sampler.numbers(n)]
        if sampler.only_refuses(range(len(ids), len(ids) + n)):
            return Chosen(*sampler.run(("logits", place), self.of_logits, logits, draft_ids, *noise, *self.refused))
        scores = torch.cat([self._scores(ids, row[None], draft_ids) for row in logits])
        return Chosen(*sampler.run(("scores", place), self._of_scores, scores, draft_ids, *noise))

    def chain(self, n: int, captured: Captured) -> Chosen:
        """Chooses n tokens, each from the logits after those before it, where the sampler at most refuses tokens."""
        numbers = torch.cat([self._sampler.numbers(1) for _ in range(n)])
        return Chosen(*captured(("chain", *self.key), self._chain, [1] * (n - 1), numbers, *self.refused))

    def _chain(self, grow: Grow, logits: torch.Tensor, draft_ids: torch.Tensor, *given: torch.Tensor) -> Tensors:
        numbers, *refused = given
        chosen: list[Tensors] = []
        for noise in numbers.view(-1, 2):
            logits = grow(chosen[-1][0], None) if chosen else logits
            chosen.append(self.of_logits(logits, draft_ids, noise, *refused))
        return tuple(map(torch.cat, zip(*chosen, strict=True)))

    @property
    def key(self) -> tuple[Hashable, ...]:
        """The values that captured work over logits depends on in addition to its arguments."""
        return self._vocab_size, self._sampler.settings

    @property
    def refused(self) -> list[torch.Tensor]:
        """The refused tokens, for captured work."""
        return [] if self._sampler.refused is None else [self._sampler.refused]

    def of_logits(self, logits: torch.Tensor, draft_ids: torch.Tensor, *given: torch.Tensor) -> Tensors:
        """Returns the fields of `Chosen` where the sampler at most refuses tokens. `given`: the sampler's numbers,
        which a greedy one may leave out; then the refused tokens, if there are any."""
        refused = None if self._sampler.refused is None else given[-1]
        if self._sampler.greedy:  # no need to spread them over the whole vocabulary
            logits = without(logits, refused, draft_ids)
            q, column = logits.float().softmax(dim=-1).max(dim=-1)
            ids = draft_ids.index_select(0, column)
            return ids, torch.stack([ids.float(), q], dim=1), logits
        return self._of_scores(self._allowed(logits, draft_ids, refused), draft_ids, given[0])

    def _of_scores(self, scores: torch.Tensor, draft_ids: torch.Tensor, *noise: torch.Tensor) -> Tensors:
        """Returns the fields of `Chosen` for (n, vocabulary) scores."""
        candidates = scores.index_select(1, draft_ids)
        if self._sampler.greedy:
            q, ids = scores.softmax(dim=-1).max(dim=-1)
            return ids, torch.stack([ids.float(), q], dim=1), candidates
        of = self._sampler.distributions(scores)  # candidates alone suffice: this is q by definition
        ids = noise_of(*noise).choose(of)
        probabilities = of.spread(self._vocab_size)
        q = probabilities.gather(1, ids[:, None])
        return ids, torch.cat([ids[:, None].float(), q], dim=1), candidates, probabilities

    def several(
        self,
        texts: Sequence[Sequence[int]],
        logits: torch.Tensor,
        draft_ids: torch.Tensor,
        n: int,
        numbers: torch.Tensor,
        depth: int,
    ) -> Several:
        """Draws at most n different tokens without replacement after each of several texts of one length.

        Args:
            logits: (texts, draft vocabulary).
            numbers: those of `Sampler.numbers`, then the place of each text among the samples.
            depth: of the tokens in the draft. What is drawn elsewhere in it is not overwritten.
        """
        sampler, key = self._sampler, ("several", n, depth)
        if sampler.only_refuses(range(len(texts[0]), len(texts[0]) + 1)):
            work = partial(self.several_of_logits, n)
            return Several(*sampler.run(key, work, logits, draft_ids, numbers, *self.refused))
        scores = torch.cat([self._scores(ids, row[None], draft_ids) for ids, row in zip(texts, logits, strict=True)])
        return Several(*sampler.run((key, "scores"), partial(self._several, n), scores, draft_ids, numbers))

    def several_of_logits(
        self, n: int, logits: torch.Tensor, draft_ids: torch.Tensor, numbers: torch.Tensor, *refused: torch.Tensor
    ) -> Tensors:
        """Returns the fields of `Several` where the sampler at most refuses tokens."""
        return self._several(n, self._allowed(logits, draft_ids, *refused), draft_ids, numbers)

    def _several(self, n: int, scores: torch.Tensor, draft_ids: torch.Tensor, numbers: torch.Tensor) -> Tensors:
        of = self._sampler.distributions(scores)
        ids, q = noise_of(numbers).several(of, n, numbers[2:])
        read = torch.stack([ids.float(), q], dim=-1)
        return read, scores.index_select(1, draft_ids), of.spread(self._vocab_size)

    def _allowed(
        self, logits: torch.Tensor, draft_ids: torch.Tensor, refused: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns scores where the sampler at most refuses tokens; shapes are those of `_scores`."""
        scores = self._spread(logits, draft_ids)
        return scores if refused is None else _unless_all(scores.masked_fill(refused, float("-inf")), scores)

    def _scores(self, ids: Sequence[int], logits: torch.Tensor, draft_ids: torch.Tensor) -> torch.Tensor:
        """Returns the scores of (1, draft vocabulary) logits over the target's vocabulary, (1, vocabulary) float32;
        -inf outside the draft vocabulary."""
        whole = self._spread(logits, draft_ids)
        scores = self._sampler.scores(whole, lambda row: ids)
        return whole if scores is whole else _unless_all(scores, whole)

    def _spread(self, logits: torch.Tensor, draft_ids: torch.Tensor) -> torch.Tensor:
        whole = logits.new_full((len(logits), self._vocab_size), float("-inf"), dtype=torch.float32)
        return whole.index_copy_(1, draft_ids, logits.float())


def _unless_all(scores: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Returns the scores, and those before processing in rows where all tokens are refused: a reduced vocabulary may be
    refused altogether."""
    return torch.where(scores.isneginf().all(dim=-1, keepdim=True), whole, scores)


def without(logits: torch.Tensor, refused: torch.Tensor | None, draft_ids: torch.Tensor) -> torch.Tensor:
    """Returns (…, draft vocabulary) logits with those of refused tokens at the dtype's minimum. They are not -inf: a
    reduced vocabulary may have no others. `refused`: (vocabulary,) bool, from `Sampler.refused`."""
    if refused is None:
        return logits
    return logits.masked_fill(refused.index_select(0, draft_ids), torch.finfo(logits.dtype).min)
