"""Policies for the number of tokens to draft next, the γ of the papers. Every run has a policy of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate

import torch

from playground.decoding.drafters.base import Draft
from playground.lane import Lane
from playground.models.device import free_bytes


class Lookahead:
    """A policy; the base of all others, whose lookahead never changes.

    Attributes:
        tokens: γ, the number of tokens to draft next.
        stop_below: the drafter stops after a token whose q is lower, or before one whose confidence is.
        capped: whether memory allowed fewer tokens than the policy wanted.
    """

    stop_below = 0.0
    capped = False

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def worth(self, draft: Draft) -> Draft:
        """Returns the part of a draft that is worth its verification."""
        return draft

    def update(self, draft: Draft, path: Sequence[int], draft_s: float, target_s: float) -> None:
        """Learns from a round; by default nothing.

        Args:
            path: the indices of the accepted tokens.
            draft_s: seconds spent drafting.
            target_s: seconds spent in the target: verifying, then rolling both caches back.
        """
        return None


class Heuristic(Lookahead):
    """transformers' `num_assistant_tokens_schedule="heuristic"`: two more tokens after a draft that was accepted in
    full, one fewer (but at least one) after any other."""

    def update(self, draft: Draft, path: Sequence[int], draft_s: float, target_s: float) -> None:
        if draft.ids:
            self.tokens = self.tokens + 2 if len(path) == draft.depth else max(1, self.tokens - 1)


class Confidence(Lookahead):
    """A constant lookahead that ends early, after a token whose q is below a threshold: transformers'
    `assistant_confidence_threshold`. A lookup has q = 1 for all its tokens. A drafter with a confidence head ends
    before the first token whose confidence is below the threshold."""

    def __init__(self, tokens: int, threshold: float) -> None:
        super().__init__(tokens)
        self.stop_below = threshold


KEEP, KEEP_RATE = 0.97, 0.9  # of each sum, from a round to the next


class Mean:
    """The quotient of two sums that decay from round to round, so that late rounds count more."""

    def __init__(self, total: float, weight: float, keep: float = KEEP) -> None:
        self.total, self.weight, self._keep = total, weight, keep

    def add(self, total: float, weight: float) -> None:
        self.total = self._keep * self.total + total
        self.weight = self._keep * self.weight + weight

    @property
    def value(self) -> float:
        return self.total / self.weight


class Measured(Lookahead):
    """Drafts and verifies what pays, by what passes and drafts cost here and by what this run has accepted.

    A round that gives E tokens and costs C plain passes is worth E - R C, where R is the run's tokens per plain pass of
    late: the choice that is worth most gives the most tokens per second (Dinkelbach 1967, fractional programming). So a
    draft is cut to the tokens that are worth their verification, a drafter stops where a further token is less likely
    than its price, and while drafting does not pay, the lane decodes plainly.

    The costs of passes were measured when the model was loaded, on another text and perhaps on a busy machine. So this
    run's plain rounds are compared with the others, and wide passes cost more or less from then on (`_steep`). What a
    level of a scored draft costs is a guess at first, so that the first drafts are no deeper than most drafters pay.

    Args:
        most: the most tokens of a draft; of a tree, its depth.
        cost: returns the cost of a target pass over a number of tokens, in passes over one token.
    """

    PRIOR = 2.0  # tokens for which the drafter's own probabilities are believed
    COPIED = 0.7  # how much of them, where the drafter is a lookup
    RENEWED = 1 - KEEP  # the share of the prior that each round adds, as much as it loses by decay
    LOSS, REST, LONGEST = 0.7, 16, 64  # plain passes lost before a pause; its rounds, twice as many each time
    GUESS = 0.2  # plain rounds that the first pass counts for, whatever its width
    LEVEL, LEVELS = 0.25, 2.0  # the guess, in plain passes; the levels that it counts for
    OUTLIER = 3.0  # times what is usual: the most that a draft or pass is taken to cost, as others use the machine too

    def __init__(self, most: int, cost: Callable[[int], float]) -> None:
        super().__init__(most)
        self._most, self._cost = most, cost
        self._step = (cost(5) - 1) / 4  # the price of one more token in a narrow pass
        # Accepted tokens for each that the draft promised: of lookups, and of drafts that a model scored.
        self._believed = self.COPIED * self.PRIOR, self.PRIOR
        self._trust = tuple(Mean(believed, self.PRIOR) for believed in self._believed)
        self._rate = Mean(1.0, 1.0, KEEP_RATE)  # R, tokens per plain pass
        self._plain: Mean | None = None  # seconds of a plain pass
        self._level = Mean(self.LEVEL * self.LEVELS, self.LEVELS)  # plain passes of one more level of a scored draft
        self._wide = Mean(self.PRIOR, self.PRIOR)  # what wide passes cost beyond a plain one, over what was measured
        self._drafted = 0  # the depth of the draft that is verified
        self._promised = 0.0  # the tokens expected of it
        self._balance, self._pause, self._waits = 0.0, self.REST, 0
        self._prefilled, self._rested = False, True
        self._set_threshold()

    def worth(self, draft: Draft) -> Draft:
        self._drafted = draft.depth
        if draft.probabilities is not None:  # whether a sampled token is verified must not depend on the token
            return draft
        chances = [1.0]
        trust = self._trust[draft.candidates is not None].value
        for parent, q in zip(draft.parents, _chances(draft), strict=True):
            chances.append(chances[parent + 1] * min(1.0, trust * q))
        best = sorted(range(len(draft.ids)), key=lambda i: -chances[i + 1])  # each comes after its parent
        rate = max(1.0, self._rate.value)
        n = worthwhile((chances[i + 1] for i in best), lambda tokens: rate * self._price(tokens))
        self._promised = sum(chances[i + 1] for i in best[:n])
        return draft.only(sorted(best[:n]))

    def update(self, draft: Draft, path: Sequence[int], draft_s: float, target_s: float) -> None:
        if not self._prefilled:  # the time of the first round is that of the prompt
            self._prefilled = True
            return
        plain_s = self._measure(len(draft.ids) + 1, target_s)
        cost = self._price(len(draft.ids) + 1)
        if draft.probabilities is None:
            self._learn(draft, path)
        if self.tokens:
            spent = self._drafting(draft, draft_s / plain_s)
            promised = self._promised if draft.probabilities is None else len(path)
            gained = (len(path) + promised) / 2 - (cost - 1) - spent  # so that luck alone neither ends nor prolongs it
            self._balance = min(self._balance + gained, self.LOSS)
            cost += spent
            self._pause = self.REST if self._balance > 0 else self._pause
            if self._balance < -self.LOSS:
                self.tokens, self._waits = 0, self._pause
                self._pause, self._balance = min(2 * self._pause, self.LONGEST), -self.LOSS / 2
        else:
            self._waits -= 1
            self._rested = not self._waits
            self.tokens = self._most if self._rested else 0
        self._rate.add(len(path) + 1, cost)
        self._set_threshold()

    def _learn(self, draft: Draft, path: Sequence[int]) -> None:
        """Learns from the tokens that were compared with the target's choice: those after an accepted one."""
        scored, compared = draft.candidates is not None, {-1, *path}
        expected = sum(q for parent, q in zip(draft.parents, _chances(draft), strict=True) if parent in compared)
        renewed = self.RENEWED * self._believed[scored], self.RENEWED * self.PRIOR
        self._trust[scored].add(renewed[0] + len(path), renewed[1] + expected)

    def _measure(self, tokens: int, target_s: float) -> float:
        """Learns from the time of a pass over so many tokens, and returns the seconds of a plain pass."""
        expected = self._cost(tokens)
        if self._plain is None:  # a guess, until there is a plain round
            self._plain = Mean(self.GUESS * target_s / expected, self.GUESS)
        usual_s = self._plain.value
        cost = min(target_s / usual_s, self.OUTLIER * expected)
        if tokens == 1:
            self._plain.add(cost * usual_s, 1)
        else:
            self._wide.add(cost - 1, expected - 1)
        return self._plain.value

    def _price(self, tokens: int) -> float:
        """Returns the cost of a pass over so many tokens in plain passes, as this run has seen it."""
        return 1 + self._steep * (self._cost(tokens) - 1)

    @property
    def _steep(self) -> float:
        return min(max(self._wide.total / max(self._wide.weight, 0.1), 0.5), self.OUTLIER)

    def _drafting(self, draft: Draft, cost: float) -> float:
        """Returns what a draft is taken to cost in plain passes, given what it did cost. The first draft, and that
        after a pause, also reads the text."""
        if draft.candidates is None:
            return min(cost, 1.0)
        levels = self._drafted + 1
        usual = self._level.value * levels
        if not self._rested or cost < usual:
            self._level.add(min(cost, self.OUTLIER * usual), levels)
        self._rested = False
        return min(cost, self._level.value * levels)

    def _set_threshold(self) -> None:
        step = self._steep * self._step + self._level.value
        trust = max(self._trust[True].value, MOST_SURE / 10)
        self.stop_below = min(MOST_SURE, max(1.0, self._rate.value) * step / trust)


MOST_SURE = 0.9  # the highest threshold: a surer drafter is hardly ever wrong


def worthwhile(chances: Iterable[float], cost: Callable[[int], float]) -> int:
    """Returns for how many of the tokens, of which each is accepted with its chance, the sum of chances exceeds the
    cost of the pass by most. `cost`: of a pass over a number of tokens, in tokens."""
    tokens = list(accumulate(chances, initial=0.0))
    return max(range(len(tokens)), key=lambda n: tokens[n] - cost(n + 1))


def _chances(draft: Draft) -> Sequence[float]:
    """Returns the chance of each token to be accepted after its parent, by the drafter itself."""
    return draft.confidences or [1.0 if q is None else q for q in draft.q]


class MemoryCap(Lookahead):
    """Reduces another policy's lookahead while fewer than `keep_free` bytes are free on the device: in proportion, down
    to 0, which is standard decoding. A tree shrinks with its lookahead.

    Args:
        free: returns the number of bytes that are currently free.
    """

    def __init__(self, policy: Lookahead, keep_free: float, free: Callable[[], int]) -> None:
        super().__init__(policy.tokens)
        self._policy, self._keep_free, self._free = policy, keep_free, free
        self._ask()

    def worth(self, draft: Draft) -> Draft:
        return self._policy.worth(draft)

    def update(self, draft: Draft, path: Sequence[int], draft_s: float, target_s: float) -> None:
        self._policy.update(draft, path, draft_s, target_s)
        self._ask()

    def _ask(self) -> None:
        self.stop_below = self._policy.stop_below
        share = min(1.0, self._free() / self._keep_free)
        self.tokens = int(share * self._policy.tokens)
        self.capped = self.tokens < self._policy.tokens


def lookahead_for(lane: Lane, device: torch.device, cost: Callable[[int], float]) -> Lookahead:
    """Returns the lane's policy. `cost`: that of a target pass over a number of tokens, in passes over one token."""
    policy = _policy(lane, cost)
    if not lane.keep_free_gb:
        return policy
    return MemoryCap(policy, 1e9 * lane.keep_free_gb, partial(free_bytes, device))


def _policy(lane: Lane, cost: Callable[[int], float]) -> Lookahead:
    if lane.drafter == "none":
        return Lookahead(lane.lookahead)  # nothing to learn: a second standard lane does the work of the first
    match lane.policy:
        case "heuristic":
            return Heuristic(lane.lookahead)
        case "confidence":
            return Confidence(lane.lookahead, lane.confidence_threshold)
        case "auto":
            return Measured(lane.lookahead, cost)
    return Lookahead(lane.lookahead)
