"""What drafters share that read the target's hidden states and draft from a reduced vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from playground.decoding.drafters.base import Choice
from playground.decoding.runners.base import Runner
from playground.decoding.sampling import Sampler
from playground.models.networks.shared_head import SharedHead


class HiddenStates:
    """Collects the hidden states of the text that stands, pass by pass, until they are taken."""

    def __init__(self, target: Runner, layers: Sequence[int] = (-1,)) -> None:
        """`layers`: as `Runner.watch` takes them."""
        target.watch(layers)
        self._target = target
        self._waiting: list[torch.Tensor] = []

    def commit(self) -> None:
        """To be called once a round, behind the target's own roll-back."""
        self._waiting.append(self._target.hidden)

    def take(self) -> torch.Tensor | None:
        """(places, layers x width), those behind what was taken before; None before the target's first pass."""
        waiting, self._waiting = self._waiting, []
        return torch.cat(waiting) if waiting else None


class TextVocabulary:
    """The draft vocabulary of a trained network, which the text's tokens join: what a text has said it says again, and
    the rare tokens above all, of which names are made."""

    def __init__(self, network: SharedHead) -> None:
        self._network = network
        self._ids = network.draft_ids
        self._known = set(self._ids.tolist())
        self._rows = network.head_rows(self._ids[:0])  # of the tokens that joined
        self._read = 0  # tokens of the text

    def read(self, text: Sequence[int]) -> torch.Tensor:
        """(draft vocabulary,), the token ids that can be drafted behind a text, which begins with every text given
        before."""
        new = [id_ for id_ in dict.fromkeys(text[self._read :]) if id_ not in self._known]
        self._read = len(text)
        if new:
            self._known.update(new)
            joining = torch.tensor(new, device=self._ids.device)
            self._ids = torch.cat([self._ids, joining])
            self._rows = torch.cat([self._rows, self._network.head_rows(joining)])
        return self._ids

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(…, width) to (…, draft vocabulary), over what could be drafted behind the last text."""
        joined = torch.nn.functional.linear(hidden, self._rows)
        return torch.cat([self._network.logits(hidden), joined], dim=-1)


class DraftChoice:
    """Chooses a draft token from logits over a draft vocabulary, under the request's own settings."""

    def __init__(self, vocab_size: int, sampler: Sampler) -> None:
        self._vocab_size = vocab_size
        self._sampler = sampler

    def __call__(self, text: list[int], logits: torch.Tensor, draft_ids: torch.Tensor) -> Choice:
        """Args:
            text: what the token comes behind.
            logits: (draft vocabulary,).
            draft_ids: (draft vocabulary,), the token ids that those stand for.

        Returns:
            The token. What is not in the draft vocabulary has q = 0 in the distribution that it was drawn from.
        """
        if self._sampler.greedy and not self._sampler.reads_text:  # no need to spread it over the whole vocabulary
            q, place = logits.float().softmax(dim=-1).max(dim=-1)
            return Choice(int(draft_ids[place]), float(q), None, logits)
        whole = logits.new_full((1, self._vocab_size), float("-inf"), dtype=torch.float32)
        whole[0, draft_ids] = logits.float()
        scores = self._sampler.scores(whole, lambda row: text)
        if self._sampler.greedy:
            q, token = scores[0].softmax(dim=-1).max(dim=-1)
            return Choice(int(token), float(q), None, scores[0, draft_ids])
        distribution = self._sampler.probabilities(scores)[0]
        token = self._sampler.draw(distribution)
        return Choice(token, float(distribution[token]), distribution, scores[0, draft_ids])
