"""Sampling: from logits to scores, probabilities and sampled tokens, by transformers' own logits processors.

Sorting a whole vocabulary for top-p costs more than all else together, so a distribution is first made over the
likeliest tokens. Where the limits fall beyond them, it is made again in full.

Random numbers are computed on the device and depend on a seed, the prompt, a position and a token id alone. A generator
would give its numbers in the order of the calls. Here the number of a token at a position is always the same, so that
all positions of a draft can be sampled at once and those beyond the accepted ones change nothing later. The numbers are
those of SplitMix64 (Steele et al. 2014, "Fast Splittable Pseudorandom Number Generators"), a mixed counter: a position
has one such sequence, whose start is mixed from the position and a seed that is made from the request's and the prompt.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor
from transformers import LogitsProcessor, MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from playground.decoding.contract import Contract
from playground.decoding.processors import Refused, TextOf, processed, processors_of
from playground.decoding.runners.graphs import Graphs
from playground.decoding.transfer import pinned, to_device
from playground.lane import Request


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


STEP = _signed(0x9E3779B97F4A7C15)
FIRST, SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def seed_after(prompt_ids: Sequence[int], seed: int) -> int:
    """Returns a seed of 64 bits, signed, made from another one and the whole prompt. A position alone would not do: a
    chat template may leave out a part of earlier turns, so that two turns of a conversation have the same positions."""
    numbers = array("q", (seed, *prompt_ids))
    return int.from_bytes(blake2b(numbers, digest_size=8).digest(), "little", signed=True)


def exponential(seed: int | Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """Returns exponentially distributed numbers of mean 1.

    Args:
        seed: a number, or an int64 tensor of no dimensions on the device.
        positions: (n,) integers.
        ids: (n, c) or (1, c) token ids.

    Returns:
        (n, c) float32.
    """
    words = _words(seed, positions, ids)
    words &= (1 << 63) - 1
    uniform = words.float().add_(1).mul_(2.0**-63)  # above 0; small numbers have full precision
    return uniform.neg_().log1p_().neg_()


def uniform(seed: int | Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """Returns uniformly distributed numbers in [0, 1). Arguments and shape are those of `exponential`."""
    return ((_words(seed, positions, ids) >> 40) & ((1 << 24) - 1)).float() * 2.0**-24


def _words(seed: int | Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """Returns (n, c) random words of 64 bits."""
    starts = _mixed(_mixed(positions * STEP + seed) + seed)
    return _mixed(ids * STEP + starts[:, None])


def _mixed(words: Tensor) -> Tensor:
    """Mixes words in place and returns them. Shifts of signed words copy the sign, which the masks remove."""
    words ^= (words >> 30) & ((1 << 34) - 1)
    words *= FIRST
    words ^= (words >> 27) & ((1 << 37) - 1)
    words *= SECOND
    words ^= (words >> 31) & ((1 << 33) - 1)
    return words


Tensors = tuple[Tensor, ...]
CANDIDATES = 1024  # the likeliest tokens of a row, which are tried first


@dataclass(frozen=True)
class Distributions:
    """n distributions over token ids.

    Attributes:
        p: (n, candidates), probabilities.
        ids: (n, candidates) or (1, candidates), their token ids. All others have probability 0.
        complete: (n,) bool, true where the candidates include all tokens that the sampling settings allow. None if that
            holds for all rows.
    """

    p: torch.Tensor
    ids: torch.Tensor
    complete: torch.Tensor | None = None

    def spread(self, vocab_size: int) -> torch.Tensor:
        """Returns the probabilities over the whole vocabulary, (n, vocabulary)."""
        if self.ids.shape[0] != len(self.p):
            return self.p
        return self.p.new_zeros(len(self.p), vocab_size).scatter_(-1, self.ids, self.p)


class Noise:
    """The random numbers of a seed, for choices in their order.

    Args:
        seed, start: numbers; or tensors of no dimensions on the device, for work that is captured once and replayed
            with others.
        start: how many samples without a position were made before.
    """

    def __init__(self, seed: int | Tensor, start: int | Tensor, device: torch.device) -> None:
        self._seed, self._start, self._device = seed, start, device
        self._drawn = 0  # samples without a position

    def choose(self, of: Distributions, positions: Tensor | None = None) -> Tensor:
        """Samples a token id from each of n distributions, which need not be normalised; returns (n,), on the device.

        Args:
            positions: (n,), the tokens' positions in the text. A position has one outcome for a distribution. Without
                positions every sample is a new one.
        """
        if positions is None:
            positions = self._new(len(of.p))
        # The largest of p / e, with e exponential, is token x with probability p(x). As `torch.multinomial` does it,
        # without its checks, which end a GPU's work where they fail.
        at = (of.p / exponential(self._seed, positions, of.ids)).argmax(dim=-1, keepdim=True)
        return of.ids.expand_as(of.p).gather(-1, at)[:, 0]

    def several(self, of: Distributions, n: int, places: Tensor) -> tuple[Tensor, Tensor]:
        """Draws at most n different token ids, one after the other, from each of the distributions without replacement.
        `places`: (distributions,), the place of each among the samples.

        Returns:
            Their ids, and the probability that each had before the first draw, (distributions, n); 0 for those that are
            none, since the distribution has fewer.
        """
        race = of.p / exponential(self._seed, -1 - places - self._start, of.ids)  # its order is that of the draws
        best, at = race.topk(min(n, race.shape[1]), dim=-1)
        return of.ids.expand_as(of.p).gather(-1, at), torch.where(best > 0, of.p.gather(-1, at), 0.0)

    def uniform(self, n: int) -> Tensor:
        """Returns (n,) new numbers, uniformly distributed in [0, 1), on the device."""
        return uniform(self._seed, self._new(1), torch.arange(n, device=self._device)[None])[0]

    def _new(self, n: int) -> Tensor:
        """Returns (n,) positions that no token has and that were not returned before: negative ones."""
        before = self._drawn
        self._drawn += n
        return torch.arange(-1 - before, -1 - self._drawn, -1, device=self._device) - self._start


class Sampler(Noise):
    """The sampling settings of a request. Target and drafter share them, so that q is computed like p.

    Scores are logits after the processors (`processors.py`), which apply to greedy decoding too. Probabilities are the
    softmax of the scores after the warpers (temperature, top-k, top-p, min-p, in transformers' order). The request's
    seed and the prompt decide all samples: the target's own by their position in the text, others by their order. So
    lanes that answer one prompt share them, and the turns of a conversation share no random number.

    Args:
        prompt_ids: the prompt.
        contract: the target's decoding contract.
        graphs: captures what is computed again in each round; None captures nothing.

    Attributes:
        greedy: whether tokens are chosen by argmax.
        settings: the sampling settings, on which distributions depend in addition to the scores.
        refused: (vocabulary,) bool, true for tokens that are refused everywhere; None if there are none.
    """

    def __init__(
        self,
        request: Request,
        device: torch.device,
        prompt_ids: Sequence[int] = (),
        contract: Contract | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        super().__init__(seed_after(prompt_ids, request.turn_seed), 0, device)
        self.greedy = request.greedy
        self._graphs = graphs or Graphs("", None)
        self.settings = request.temperature, request.top_k, request.top_p, request.min_p
        self._top_k, self._top_p, self._min_p = request.top_k, request.top_p, request.min_p
        self._processors = processors_of(request, prompt_ids)
        if contract is not None:
            self._processors = contract.around(self._processors, prompt_ids, request.max_new_tokens, device)
        self.refused = next((it.change.ids for it in self._processors if isinstance(it.change, Refused)), None)
        # Plain lists: transformers' own list inspects each processor's signature at each call, for every draft token.
        self._heat: list[LogitsProcessor] = []
        self._limits: list[LogitsProcessor] = []
        if not self.greedy:
            if request.temperature != 1:
                self._heat.append(TemperatureLogitsWarper(request.temperature))
            if request.top_k:
                self._limits.append(TopKLogitsWarper(request.top_k))
            if request.top_p < 1:
                self._limits.append(TopPLogitsWarper(request.top_p))
            if request.min_p:
                self._limits.append(MinPLogitsWarper(request.min_p))

    def only_refuses(self, lengths: range) -> bool:
        """Returns whether scores equal logits, except for refused tokens, after texts of these lengths."""
        at = (it.at for it in self._processors if not isinstance(it.change, Refused))
        return not any(each.start < lengths.stop and lengths.start < each.stop for each in at)

    @property
    def reads_text(self) -> bool:
        """True where scores depend on the tokens of the text, and not only on its length."""
        return any(it.reads == "tokens" for it in self._processors)

    def scores(self, logits: torch.Tensor, text_of: TextOf) -> torch.Tensor:
        """Turns logits into scores.

        Args:
            logits: (n, vocabulary).
            text_of: row -> the token ids that the row follows. Only their number counts, unless `reads_text`.

        Returns:
            (n, vocabulary) scores.
        """
        return processed(self._processors, logits, text_of)

    def probabilities(self, scores: torch.Tensor) -> torch.Tensor:
        """Turns (n, vocabulary) scores into the distributions that tokens are sampled from, of the same shape."""
        for warper in (*self._heat, *self._limits):
            scores = warper(None, scores)
        return scores.softmax(dim=-1)

    def distributions(self, scores: torch.Tensor) -> Distributions:
        """Turns (n, vocabulary) scores into distributions over the likeliest candidates, without sorting the
        vocabulary. They may be incomplete."""
        vocab_size = scores.shape[1]
        if not self._limits:
            return whole(self.probabilities(scores))
        for warper in self._heat:
            scores = warper(None, scores)
        best, ids = _ordered(*scores.topk(min(vocab_size, max(CANDIDATES, 2 * self._top_k)), dim=-1))
        last = best[:, -1]
        kept = ~best.isneginf()
        everything = scores
        if 0 < self._top_k < vocab_size:  # scores that equal the last of them are included
            kept = kept & (best >= best[:, self._top_k - 1 : self._top_k])
            everything = best.masked_fill(~kept, float("-inf"))
        if self._top_p < 1:
            p = (best - everything.logsumexp(dim=-1, keepdim=True)).exp()
            kept = kept & (p.cumsum(dim=-1) - p < self._top_p)
        if self._min_p:
            kept = kept & ((best - best[:, :1]).exp() >= self._min_p)
        best = best.masked_fill(~kept, float("-inf"))
        complete = None
        if best.shape[1] < vocab_size:  # scores beyond the last candidate could equal it
            complete = last < best.masked_fill(~kept, float("inf")).amin(dim=-1)
        return Distributions(best.softmax(dim=-1), ids, complete)

    def completed(self, of: Distributions, scores: torch.Tensor) -> torch.Tensor:
        """Returns the (n, vocabulary) probabilities of `of`, which is `distributions(scores)`. Reads which rows are
        incomplete, and computes those again."""
        assert of.complete is not None
        rows = to_device([i for i, complete in enumerate(of.complete.tolist()) if not complete], scores.device)
        missing = self.probabilities(scores.index_select(0, rows))
        return of.spread(scores.shape[1]).index_copy_(0, rows, missing)

    def all_of(self, of: Distributions, scores: torch.Tensor) -> torch.Tensor:
        """Returns the (n, vocabulary) probabilities of `of`, which is `distributions(scores)`, complete or not."""
        if of.complete is None or bool(of.complete.all()):
            return of.spread(scores.shape[1])
        return self.completed(of, scores)

    def run(self, key: Hashable, function: Callable[..., Tensors], *given: Tensor) -> Tensors:
        """Returns `function(*given)`, with all tensors on the device; replayed where it was captured, see
        `Graphs.call`."""
        given = tuple(pinned(tensor, self._device) for tensor in given)
        return self._graphs.call((key, self.settings), function, self._device, *given)

    def prepare(self) -> None:
        """Captures what the last round computed. Must be called where nothing is timed."""
        self._graphs.fulfil()

    def numbers(self, samples: int, *more: int) -> Tensor:
        """Returns the seed, the start of `samples` new samples, and more numbers, as an int64 tensor on the host. From
        the first two `noise_of` makes the random numbers in captured work."""
        start = self._start + self._drawn
        self._drawn += samples
        return torch.tensor([self._seed, start, *more])

    def choices(self, scores: torch.Tensor, positions: Sequence[int]) -> Callable[[int], int]:
        """Samples a token after each row of (n, vocabulary) scores.

        Returns:
            Row -> token id. All are read in one transfer, except for rows whose distribution is incomplete.

        Raises:
            FloatingPointError: the scores contain NaN.
        """
        (read,) = self.run("choices", self._choices, scores, self.numbers(0, *positions))
        n = len(positions)
        *chosen, damaged = read.tolist()
        if damaged:
            raise FloatingPointError
        complete = chosen[n:] or [True] * n

        def choice(row: int) -> int:
            if complete[row]:
                return chosen[row]
            at = torch.full((1,), positions[row], device=scores.device)
            return int(self.choose(whole(self.probabilities(scores[row : row + 1])), at))

        return choice

    def _choices(self, scores: Tensor, numbers: Tensor) -> tuple[Tensor]:
        quick = self.distributions(scores)
        chosen = noise_of(numbers).choose(quick, numbers[2:])
        complete = [] if quick.complete is None else [quick.complete]
        return (torch.cat([chosen, *complete, quick.p[:, :1].isnan().any()[None]]),)

    def draw(self, probabilities: torch.Tensor) -> int:
        """Draws a new sample from a (vocabulary,) distribution, and reads it.

        Raises:
            FloatingPointError: the probabilities contain NaN.
        """
        chosen = self.choose(whole(probabilities[None]))
        token, damaged = torch.cat([chosen, probabilities.isnan().any()[None]]).tolist()
        if damaged:
            raise FloatingPointError
        return token


def noise_of(numbers: Tensor) -> Noise:
    """Returns the random numbers that `Sampler.numbers` names, given on the device."""
    return Noise(numbers[0], numbers[1], numbers.device)


def whole(probabilities: torch.Tensor) -> Distributions:
    """Returns (n, vocabulary) probabilities as complete distributions."""
    return Distributions(probabilities, torch.arange(probabilities.shape[1], device=probabilities.device)[None])


def _ordered(scores: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorts rows from the highest score down, equal scores from the highest id down: `topk` does not define their
    order."""
    ids, order = ids.sort(dim=-1, descending=True)
    scores, order = scores.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return scores, ids.gather(-1, order)
