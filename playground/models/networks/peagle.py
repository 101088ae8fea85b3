"""P-EAGLE: an EAGLE-3 head that drafts all its tokens in one pass.

Hui et al. 2026, "P-EAGLE: Parallel-Drafting EAGLE with Scalable Training" (arXiv 2602.01469). After the pairs of the
text, each a token and the hidden state before it, come slots that know neither: the embedding of a mask token and, in
place of the hidden states, a vector that was learnt with the head. Each slot predicts the token after that of the slot
before. A slot attends to the text and to the slots before it, so the pass is causal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from playground.errors import PlaygroundError
from playground.models.load import LoadedDrafter, LoadedModel
from playground.models.networks.eagle3 import MARKS, Eagle3Config, Eagle3Head, load_head
from playground.progress import Progress

DRAFTS = 8  # tokens of a pass where the config does not say: speculators trains so many


class PEagleHead(Eagle3Head):
    """`drafts`: the tokens that a pass drafts. Arguments: those of `Eagle3Head`.

    Raises:
        PlaygroundError: the config names no mask token, or one that the target lacks.
    """

    def __init__(self, target: PreTrainedModel, config: Eagle3Config, state: Mapping[str, Tensor]) -> None:
        super().__init__(target, config, state)
        vocab_size = target.config.get_text_config(decoder=True).vocab_size
        mask = config.mask_token_id
        if mask is None or not 0 <= mask < vocab_size:
            named = "names no mask_token_id" if mask is None else f"names the mask token {mask:,}"
            raise PlaygroundError(
                f"The config.json of this P-EAGLE head {named}, and the target has ids from 0 to {vocab_size - 1:,}. "
                "Choose another head."
            )
        self.mask_token_id, self.drafts = mask, config.depth or DRAFTS
        shape = state["mask_hidden"].shape
        self.mask_hidden = nn.Parameter(torch.empty(shape, dtype=target.dtype, device=target.device))

    def drafted(self, ids: Tensor, hidden: Tensor, cache: Cache) -> Tensor:
        """Args:
            ids: (n,), tokens of the text that the cache lacks.
            hidden: (n, layers x width), the target's hidden states, each one position before its token.
            cache: afterwards holds the entries of these tokens, then `drafts` - 1 of slots.

        Returns:
            (drafts, draft vocabulary), logits for the positions after the text.
        """
        slots = self.drafts - 1
        tokens = torch.cat([ids, ids.new_full((slots,), self.mask_token_id)])
        features = torch.cat([hidden, self.mask_hidden.reshape(1, -1).to(hidden.dtype).expand(slots, -1)])
        return self.logits(self(tokens[None], features[None], cache)[0, -self.drafts :])


def load_peagle(name: str, target: LoadedModel, progress: Callable[[Progress], None]) -> LoadedDrafter:
    """Raises:
    PlaygroundError: no such head, an incomplete one, or one that was trained for another target.
    """
    return load_head(name, "peagle", PEagleHead, target, progress, (*MARKS, "mask_hidden"))
