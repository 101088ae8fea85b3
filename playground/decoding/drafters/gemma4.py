"""A Gemma 4 assistant drafts from the target's own KV cache and last hidden state.

Google 2026, Gemma 4; the network: models/networks/gemma4.py; transformers' counterpart:
`SinglePositionMultiTokenCandidateGenerator`. The assistant has no state between rounds: it attends to the target's keys
and values of the accepted sequence. Each step reads the hidden state of the step before, at the position of the last
accepted token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from playground.decoding.drafters.base import Branches
from playground.decoding.runners.base import Runner
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
        self._hidden: torch.Tensor  # (rows, width), output of the last step
        self._kv: dict[str, tuple[torch.Tensor, torch.Tensor]]
        self._rewound = False  # and the target has had no pass since

    def root(self, ids: Sequence[int]) -> torch.Tensor | None:
        if not self._target.length or self._rewound:
            return None
        self._kv = self._target.shared_kv
        return self._step(ids[-1:], self._target.hidden[-1:])

    def grow(self, ids: Sequence[int] | torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        return self._step(ids, self._hidden.index_select(0, to_device(rows, self._hidden.device)))

    def _step(self, ids: Sequence[int] | torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        tokens = to_device(ids, hidden.device)
        logits, self._hidden = self._assistant(tokens, hidden, self._kv, position=self._target.length)
        return logits

    def commit(self) -> None:
        self._rewound = False

    def rewind(self, length: int) -> int:
        self._rewound = True
        return 0 if self._target.discards_old else length
