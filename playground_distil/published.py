"""Training of drafters in the layout of speculators: EAGLE-3 heads, DFlash and DSpark.

An EAGLE-3 head (Li et al. 2025) is recursive like an MTP layer, and reads three layers of the target.

A block of DFlash (Chen et al. 2026) is the last token of the text and mask tokens; all of it goes through the layers at
once, and so do the blocks at many places of an answer: each sees the target's hidden states before its own place, and
itself. DFlash drafts from the masks, DSpark from the last token too. DSpark's Markov head adds to a position's logits a
term that depends on the token before it; its confidence head learns the chance that the position is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    MuseGlimmerAssistantConfig,
    MuseGlimmerAssistantModel,
    PreTrainedModel,
    Qwen3Config,
)

from playground.models.attention import decoder_of
from playground.models.load import LoadedModel
from playground.models.networks.eagle3 import Eagle3Config, Eagle3Head
from playground_distil.data import Batch
from playground_distil.speculators import speculators_config, vocabulary_maps
from playground_distil.students import DraftVocabulary, Lesson, RecursiveStudent

HEAD_K = 3  # tokens that an EAGLE-3 head drafts by default
HEADS = 2  # attention heads, as a multiple of the target's
SELF = 2.0  # how sharply a token attends to itself at first


def layer_config(target: PreTrainedModel, layers: int = 1, **others: Any) -> dict[str, Any]:
    """Returns the shape of a drafter's layers: the target's, with as many key-value heads as query heads."""
    text = target.config.get_text_config(decoder=True)
    heads = text.num_attention_heads
    return {
        "hidden_size": text.hidden_size,
        "intermediate_size": text.intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": getattr(text, "head_dim", None) or text.hidden_size // heads,
        "max_position_embeddings": text.max_position_embeddings,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "vocab_size": text.vocab_size,
        "tie_word_embeddings": False,
        **others,
    }


def head_config(target: PreTrainedModel) -> LlamaConfig:
    """Returns the shape of a head's layer, which has the target's rotary positions, like an MTP layer."""
    text = target.config.get_text_config(decoder=True)
    heads = HEADS * text.num_attention_heads
    theta = (getattr(text, "rope_parameters", None) or {}).get("rope_theta", 10_000.0)
    rope = {"rope_type": "default", "rope_theta": theta}
    shape = layer_config(target, num_attention_heads=heads, num_key_value_heads=heads, rope_parameters=rope)
    return LlamaConfig(**shape)


def new_head(target: LoadedModel, draft_ids: Tensor, inputs: tuple[int, ...]) -> Eagle3Head:
    """Makes a head to train. Its matrix over the draft vocabulary is the target's and is not trained. At first its
    output is the sum of the highest hidden state that it reads and of the token's embedding, which only attention can
    add: in the first half of the attention heads a token attends to similar tokens, so mostly to itself.

    Args:
        draft_ids: [draft vocabulary], the target's token ids.
        inputs: the target layers whose inputs it reads.
    """
    shape = head_config(target.model)
    outputs = tuple(i - 1 for i in inputs)
    rows = target.model.get_output_embeddings().weight.detach()[draft_ids]
    maps = vocabulary_maps(draft_ids, len(target.model.get_output_embeddings().weight))
    config = Eagle3Config(shape, outputs, norm_before_residual=True, norm_output=False)
    head = Eagle3Head(target.model, config, {"lm_head.weight": rows, **maps}).float()
    width = head.fc.out_features
    layers: Any = head.base.layers
    attention = layers[0].self_attn
    assert head.lm_head is not None, "it was made with rows of its own"
    with torch.no_grad():
        head.lm_head.weight.copy_(rows)
        head.fc.weight.normal_(std=0.01)
        head.fc.weight[:, -width:] += _eye(width)
        for part in (attention.q_proj, attention.k_proj):
            part.weight[:, :width] += SELF * _eye(*part.weight[:, :width].shape)
        attention.v_proj.weight[:, :width] += _eye(*attention.v_proj.weight[:, :width].shape)
        attention.o_proj.weight += _eye(*attention.o_proj.weight.shape)
        head.norm.load_state_dict(decoder_of(target.model).get_submodule("norm").state_dict())
    head.lm_head.requires_grad_(False)
    return head


def _eye(rows: int, columns: int | None = None) -> Tensor:
    return torch.eye(rows, columns or rows)


class Eagle3Student(RecursiveStudent):
    """Trains an EAGLE-3 head on the target's choices alone, as in the paper: its states need not equal the target's."""

    def __init__(self, head: Eagle3Head, steps: int) -> None:
        super().__init__(head, head.draft_ids, head.vocab_size, steps)

    def start(self, batch: Batch, n: int) -> Tensor:
        return batch.features[:, :n].flatten(-2).float()

    def begin(self, state: Mapping[str, Tensor]) -> None:
        """Loads the tensors of a published head with an equal draft vocabulary."""
        parts = {key: tensor for key, tensor in state.items() if key not in ("d2t", "t2d")}
        self.module.load_state_dict({f"base.{key}" if key.startswith("layers.") else key: parts[key] for key in parts})

    def state(self) -> dict[str, Tensor]:
        """Returns the tensors by the names of the speculators layout."""
        head = self.module
        own = {key.removeprefix("base."): tensor for key, tensor in head.state_dict().items()}
        return own | vocabulary_maps(head.draft_ids, head.vocab_size)

    def config_json(self, target: LoadedModel) -> dict[str, Any]:
        """Returns the config.json in the layout of speculators."""
        return speculators_config("eagle3", target, head_config(target.model), HEAD_K) | {
            "draft_vocab_size": len(self.module.draft_ids),
            "norm_before_residual": True,
            "norm_before_fc": False,
            "fc_norm": False,
            "norm_output": False,
            "eagle_aux_hidden_state_layer_ids": [i + 1 for i in self.module.layers],
        }


LAYERS = 2
K = 5  # tokens drafted by one pass
STRIDE = 2  # every second place of an answer starts a draft, from a random one on
DECAY = 4.0  # positions after which a position's loss weighs 1 / e (DeepSpec)
RANK = 32  # the Markov head's rank
CHOICE, OVERLAP = 0.1, 0.9  # DSpark's weights of cross-entropy and acceptance (DeepSpec)
NAMES = {  # the module's names to speculators'
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "markov_": "markov_head.markov_",
    "confidence.": "confidence_head.proj.",
}


class BlockDrafter(nn.Module):
    """A DFlash or DSpark network in training. `kind`: dflash or dspark. `block`: the tokens of a block for K drafts.
    Embedding and head are the target's.

    Args:
        draft_ids: [draft vocabulary], the target's token ids.
        inputs: the target layers whose inputs it reads.
        mask_id: the mask token.
    """

    embedding: Tensor
    head: Tensor

    def __init__(self, kind: str, target: LoadedModel, draft_ids: Tensor, inputs: tuple[int, ...], mask_id: int):
        super().__init__()
        self.kind, self.draft_ids, self.mask_id, self.inputs = kind, draft_ids, mask_id, inputs
        self.block = K if kind == "dspark" else K + 1
        shape = layer_config(target.model, LAYERS)
        config = MuseGlimmerAssistantConfig(
            **shape,
            block_size=self.block,
            mask_token_id=mask_id,
            target_layer_ids=[i - 1 for i in inputs],
            layer_types=["full_attention"] * LAYERS,
            bos_token_id=None,  # the class's defaults are for a larger vocabulary
            eos_token_id=None,
            pad_token_id=None,
        )
        base: Any = MuseGlimmerAssistantModel(config)
        width, device = config.hidden_size, target.model.device
        self.base = base.to(device)
        model: Any = target.model
        table, rows = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        self.register_buffer("embedding", table.detach().float(), persistent=False)
        self.register_buffer("head", rows.detach()[draft_ids].float(), persistent=False)
        with torch.no_grad():
            fc = self.base.encoder.fc.weight
            fc.normal_(std=0.01)
            fc[:, -width:] += torch.eye(width, device=device)
            self.base.norm.load_state_dict(decoder_of(target.model).get_submodule("norm").state_dict())
        if kind == "dspark":
            self.markov_w1 = nn.Embedding(len(table), RANK, device=device)
            self.markov_w2 = nn.Linear(RANK, len(draft_ids), bias=False, device=device)
            self.confidence = nn.Linear(width + RANK, 1, device=device)
            nn.init.normal_(self.markov_w1.weight, std=0.01)

    def forward(self, ids: Tensor, features: Tensor, places: Tensor) -> Tensor:
        """Runs blocks at several places of each row.

        Args:
            ids: [rows, n]. features: [rows, n, layers x width]. places: [starts], where the blocks begin in each row.

        Returns:
            [rows, starts, K, width], the states to draft from: the first of a block drafts the token after its place.
        """
        rows, n = ids.shape
        block = torch.arange(self.block, device=ids.device)
        tokens = torch.full((rows, len(places), self.block), self.mask_id, device=ids.device)
        tokens[:, :, 0] = ids[:, places]
        positions = torch.cat([torch.arange(n, device=ids.device), (places[:, None] + block).flatten()])
        starts = torch.arange(len(places), device=ids.device).repeat_interleave(self.block)
        before = torch.arange(n, device=ids.device) < places[starts][:, None]
        sees = torch.cat([before, starts[:, None] == starts], dim=1)
        hidden = self.base(
            noise_embeds=F.embedding(tokens.flatten(1), self.embedding),
            context_hidden_states=features,
            attention_mask={"full_attention": sees[None, None]},
            position_ids=positions[None],
        ).last_hidden_state
        return hidden.unflatten(1, (len(places), self.block))[:, :, self.block - K :]


class BlockStudent:
    """Trains a block drafter to draft K tokens from each place. DFlash's loss is cross-entropy alone; DSpark's adds the
    chance of acceptance and that of its confidence head."""

    def __init__(self, drafter: BlockDrafter) -> None:
        self.module = drafter
        self._vocabulary = DraftVocabulary(drafter.draft_ids, len(drafter.embedding))

    def lesson(self, batch: Batch, progress: float = 1.0) -> Lesson:
        drafter = self.module
        n = batch.ids.shape[1] - K
        first = int(torch.randint(STRIDE, ())) if torch.is_grad_enabled() else 0
        places = torch.arange(first, n, STRIDE, device=batch.ids.device)
        ahead = places[:, None] + torch.arange(K, device=batch.ids.device)  # the drafts' labels are the choices there
        whole = batch.counts[:, ahead].all(-1)
        hidden = drafter(batch.ids, batch.features.flatten(-2).float(), places)[whole]
        logits = hidden @ drafter.head.T
        if drafter.kind == "dspark":
            before = drafter.markov_w1(batch.ids[:, ahead][whole])
            logits = logits + drafter.markov_w2(before)
        choices, chances = batch.choices[:, ahead][whole], batch.chances[:, ahead][whole]
        loss, agree, overlap = self._vocabulary.compare(*(x.flatten(0, 1) for x in (logits, choices, chances)))
        if drafter.kind == "dspark":
            sure = drafter.confidence(torch.cat([hidden, before], dim=-1)).flatten()
            right = overlap.detach().clamp(0, 1)
            sureness = F.binary_cross_entropy_with_logits(sure.float(), right, reduction="none")
            loss = CHOICE * loss + OVERLAP * (1 - overlap) + sureness
        weights = torch.exp(-torch.arange(K, device=loss.device) / DECAY)
        return Lesson((loss.unflatten(0, (-1, K)) * weights).mean(), agree.unflatten(0, (-1, K)))

    def config_json(self, target: LoadedModel) -> dict[str, Any]:
        """Returns the config.json in the layout of speculators."""
        drafter = self.module
        layer = Qwen3Config(**layer_config(target.model, LAYERS, sliding_window=None))
        heads = {
            "markov_rank": RANK,
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        }
        return speculators_config(drafter.kind, target, layer, K) | {
            "draft_vocab_size": len(drafter.draft_ids),
            "block_size": drafter.block,
            "aux_hidden_state_layer_ids": list(drafter.inputs),
            "mask_token_id": drafter.mask_id,
            "sample_from_anchor": drafter.kind == "dspark",
            **(heads if drafter.kind == "dspark" else {}),
        }

    def begin(self, state: Mapping[str, Tensor]) -> None:
        """Loads the tensors of a published drafter with an equal draft vocabulary. DSpark's heads retain their initial
        weights where there are none."""
        took = {ours: state[theirs] for theirs, ours in self._names().items() if theirs in state}
        self.module.load_state_dict(took, strict=False)

    def state(self) -> dict[str, Tensor]:
        """Returns the tensors by the names of the speculators layout."""
        own, vocab_size = self.module.state_dict(), len(self.module.embedding)
        state = {theirs: own[ours] for theirs, ours in self._names().items()}
        maps = vocabulary_maps(self.module.draft_ids, vocab_size)
        return state | maps | ({"lm_head.weight": self.module.head} if maps else {})

    def _names(self) -> dict[str, str]:
        """Returns the names of the module's tensors by those of the layout."""
        names = {}
        for ours in self.module.state_dict():
            theirs = ours.removeprefix("base.")
            for old, new in NAMES.items():
                theirs = theirs.replace(old, new)
            names[theirs] = ours
        return names


def mask_token(target: LoadedModel, seen: Tensor) -> int:
    """Returns the special token that occurs least often in a text, to serve as the mask token.

    Args:
        seen: [vocab_size], how often each token occurs.
    """
    return min(target.tokenizer.all_special_ids, key=lambda i: (int(seen[i]), i))
