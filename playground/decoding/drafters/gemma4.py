"""A Gemma 4 assistant drafts from the target's own KV cache and last hidden state.

Google 2026, Gemma 4; the network: models/networks/gemma4.py; transformers' counterpart:
`SinglePositionMultiTokenCandidateGenerator`. The assistant has no state between rounds: it attends to the target's keys
and values of the accepted sequence. Each step reads the hidden state of the step before, at the position of the last
accepted token.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

import torch

from playground.decoding.drafters.base import Branches, Captured
from playground.decoding.runners.base import Runner, Tensors
from playground.decoding.runners.graphs import Function
from playground.decoding.runners.static import StaticRunner
from playground.decoding.transfer import to_device
from playground.models.attention import context_of
from playground.models.networks.gemma4 import Gemma4Assistant


class Gemma4Branches(Branches):
    """Grows `Branches` of any depth.

    Args:
        target: the decode loop's runner, which is set to collect hidden states and to share its keys and values.
    """

    def __init__(self, assistant: Gemma4Assistant, target: Runner) -> None:
        target.watch([-1])
        target.share_kv()
        self.draft_ids = torch.arange(assistant.vocab_size, device=target.device)
        self.context = context_of(assistant.model.config)
        self._assistant = assistant
        self._target = target
        self._last: int  # token of the sequence
        self._hidden: torch.Tensor  # (rows, width), output of the last step
        self._kv: dict[str, tuple[torch.Tensor, torch.Tensor]]
        self._rewound = False  # and the target has had no pass since

    @property
    def captured(self) -> Captured | None:
        return self._drafted if isinstance(self._target, StaticRunner) else None

    def read(self, ids: Sequence[int]) -> bool:
        self._last = ids[-1]
        return bool(self._target.length) and not self._rewound

    def _drafted(
        self, key: Hashable, work: Function, passes: Sequence[int], numbers: torch.Tensor, *given: torch.Tensor
    ) -> Tensors:
        assert isinstance(self._target, StaticRunner), "it is captured"
        run, sent = partial(_steps, self._assistant, work), torch.cat([torch.tensor([self._last]), numbers])
        hidden = self._target.hidden[-1:]
        return self._target.run_over_text((self._assistant, key), run, hidden, sent, *given)

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        if not self.read(ids):
            return None
        self._kv = self._target.shared_kv
        return self._step(ids[-1:], self._target.hidden[-1:])

    def grow(self, ids: Sequence[int] | torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        return self._step(ids, self._hidden.index_select(0, to_device(rows, self._hidden.device)))

    def _step(self, ids: Sequence[int] | torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        tokens, position = to_device(ids, hidden.device), to_device([self._target.length], hidden.device)
        logits, self._hidden = self._assistant(tokens, hidden, self._kv, position)
        return logits

    def commit(self) -> None:
        self._rewound = False

    def rewind(self, length: int) -> int:
        self._rewound = True
        return 0 if self._target.discards_old else length


def _steps(
    assistant: Gemma4Assistant,
    work: Function,
    kv: dict[str, tuple[torch.Tensor, torch.Tensor]],
    masks: dict[str, torch.Tensor],
    length: torch.Tensor,
    hidden: torch.Tensor,
    sent: torch.Tensor,
    *given: torch.Tensor,
) -> Tensors:
    """Drafts without the host between the steps. Returns what `work` does, see `StaticLayer.drafted`. `sent`: the last
    token, then the numbers of `work`."""

    def grow(ids: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        nonlocal hidden
        hidden = hidden if rows is None else hidden.index_select(0, rows)
        logits, hidden = assistant(ids, hidden, kv, length, masks)
        return logits

    first = grow(sent[:1], None)
    return work(grow, first, torch.arange(first.shape[1], device=first.device), sent[1:], *given)
