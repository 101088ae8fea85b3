"""Published EAGLE-3 heads: one decoder layer that reads three layers of the target and drafts recursively.

Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test" (arXiv
2503.01840). The hidden states of a low, a middle and a high layer of the target are projected to one width: h. For the
token x at position i + 1 and h at position i the layer's attention reads [norm(embedding(x)); norm(h)]. Its output
serves as h at position i + 1: the head predicts the next token from it, and it is fed back to draft the one after.

P-EAGLE (Hui et al. 2026, "P-EAGLE: Parallel-Drafting EAGLE with Scalable Training", arXiv 2602.01469) is such a head
that drafts all its tokens in one pass. After the pairs of the text, each a token and the hidden state before it, come
slots that know neither: they have the embedding of a mask token and, in place of the hidden states, a learnt vector.
Each slot predicts the token after that of the slot before. A slot attends to the text and to the slots before it, so
the pass is causal.

EAGLE 3.1 adds norms: of each of the target's layers before the projection (`fc_norm`), or one of all (`input_norm`),
and of the output before it is fed back (`norm_output`).

Layouts: SafeAILab's, which SpecForge writes too (`midlayer.*`), DeepSpec's, and that of speculators (`layers.0.*`, with
the layer's config in `transformer_layer_config`); any of them with `model.` before the names, as NeMo writes them. All
number the draft vocabulary from 0; adding `d2t` to a draft id gives the target's id. A head without `lm_head` drafts
from the whole vocabulary with the target's.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, Cache, DynamicCache, PretrainedConfig, PreTrainedModel

from playground.drafting_methods import METHODS
from playground.errors import MadeForAnother, PlaygroundError
from playground.models.attention import attend_by_groups
from playground.models.fetch.files import ModelFiles
from playground.models.fused import FusedLayer, Fusible, Norm, fused_norm
from playground.models.load import LoadedDrafter, LoadedModel, check_memory, explained, tensors_of
from playground.models.networks.made_for import (
    REMEDY,
    check_made_for,
    check_method,
    draft_ids,
    fetch,
    load_tensors,
    mapped_ids,
    target_of,
)
from playground.progress import Progress

KINDS = ("llama", "qwen3")  # supported decoder layers
MARKS = ("fc.weight", "layers.0.hidden_norm.weight")  # in every EAGLE-3 head; EAGLE-1 has no hidden_norm
NAMED = {"fc_norm": "fc_norm.0.weight", "norm_before_fc": "input_norm.weight"}  # tensors of parts that a config names
MASKS = ("mask_token_id", "pard_token", "ptd_token_id")  # names of P-EAGLE's mask token


@dataclass(frozen=True)
class Eagle3Config:
    """A head's config.json, in either layout.

    Attributes:
        layer: the config of the decoder layer.
        layers: target layers whose outputs the head reads, counted from 0; None for the usual ones.
        norm_before_residual: whether the residual is norm(h) instead of h.
        norm_output: whether the output is fed back after the final norm (EAGLE 3.1).
        mask_token_id: the mask token of P-EAGLE's slots; None if the config names none.
        depth: the number of tokens that the head was trained to draft; None if the config does not say.
    """

    layer: PretrainedConfig
    layers: tuple[int, ...] | None
    norm_before_residual: bool
    norm_output: bool
    mask_token_id: int | None = None
    depth: int | None = None

    def layers_of(self, target: PretrainedConfig) -> tuple[int, ...]:
        """Returns the target's layers whose outputs the head reads; by default the inputs of layers 2, n / 2 and n - 3
        of n."""
        n = target.num_hidden_layers
        return self.layers or (1, n // 2 - 1, n - 4)


class Eagle3Layer(Fusible):
    """A transformers decoder layer whose attention reads embedding and hidden state, concatenated.

    Args:
        layer: a layer of a Llama or a Qwen 3.
    """

    def __init__(self, layer: Any, width: int, norm_before_residual: bool) -> None:
        super().__init__()
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        self.input_layernorm, self.post_attention_layernorm = layer.input_layernorm, layer.post_attention_layernorm
        self.hidden_norm = copy.deepcopy(layer.input_layernorm)
        self.norm_before_residual = norm_before_residual
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            like = {"bias": narrow.bias is not None, "dtype": narrow.weight.dtype, "device": narrow.weight.device}
            setattr(self.self_attn, name, nn.Linear(2 * width, narrow.out_features, **like))

    def forward(self, hidden_states: Tensor, **options: Any) -> Tensor:
        """Maps (rows, n, 2 x width), embeddings concatenated with hidden states, to (rows, n, width). `options`: the
        keyword arguments that transformers' model passes to its layers."""
        embedding, hidden = hidden_states.chunk(2, dim=-1)
        normed = self.hidden_norm(hidden)
        attended, _ = self.self_attn(
            hidden_states=torch.cat([self.input_layernorm(embedding), normed], dim=-1), **options
        )
        hidden = (normed if self.norm_before_residual else hidden) + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden))

    def fused(self, norm: type[Norm]) -> FusedLayer:
        return FusedEagle3Layer(self, norm)


class FusedEagle3Layer(FusedLayer):
    """The fused form of `Eagle3Layer`."""

    def __init__(self, layer: Eagle3Layer, norm: type[Norm]) -> None:
        super().__init__(layer, norm)
        self.before_hidden = fused_norm(layer.hidden_norm, norm)
        self.norm_before_residual = layer.norm_before_residual

    def _entered(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        embedding, hidden = hidden_states.chunk(2, dim=-1)
        normed = self.before_hidden(hidden)
        residual = normed if self.norm_before_residual else hidden
        return residual, torch.cat([self.before_attention(embedding), normed], dim=-1)


class Eagle3Head(nn.Module):
    """The network.

    Attributes:
        layers: target layers whose outputs it reads, in the form of `Runner.watch`.
        draft_ids: (draft vocabulary,), the token id of each column of its logits.
        norm_output: whether the output is fed back after the final norm.
        own_embedding, own_head: whether its own embedding and head are used, where it has them, or the target's.

    Args:
        target: the target, whose embedding is shared, not copied, if the head has none.
        state: the published weights, by the names of the speculators layout. They determine which parts the head has,
            and are not loaded here.
    """

    draft_ids: Tensor
    _shared: nn.Embedding
    _target_head: nn.Module

    def __init__(self, target: PreTrainedModel, config: Eagle3Config, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        text = target.config.get_text_config(decoder=True)
        self.layers = config.layers_of(text)
        self.config = layer = copy.deepcopy(config.layer)
        width = layer.hidden_size
        layer.vocab_size, layer.pad_token_id = 1, None  # the model's own embedding is never used
        like: dict[str, Any] = {"dtype": target.dtype, "device": target.device}

        self.base: PreTrainedModel = AutoModel.from_config(layer, dtype=target.dtype).to(target.device).eval()
        self.base.set_input_embeddings(None)
        attend_by_groups(self.base, target.device)
        self.base.layers[0] = Eagle3Layer(self.base.layers[0], width, config.norm_before_residual)
        self.norm, self.base.norm = self.base.norm, nn.Identity()
        self.norm_output = config.norm_output
        self.own_embedding, self.own_head = True, True

        def norm_of(size: int, part: str) -> nn.Module:
            return nn.RMSNorm(size, eps=layer.rms_norm_eps, **like) if part in state else nn.Identity()

        many, each = len(self.layers), text.hidden_size
        self.fc_norm = nn.ModuleList(norm_of(each, f"fc_norm.{i}.weight") for i in range(many))
        self.input_norm = norm_of(many * each, "input_norm.weight")
        self.fc = nn.Linear(many * each, width, bias=False, **like)

        own = "embed_tokens.weight" in state
        self.embed_tokens = nn.Embedding(text.vocab_size, width, **like) if own else None
        self.vocab_size: int = text.vocab_size
        object.__setattr__(self, "_shared", target.get_input_embeddings())  # no submodule: not loaded
        head = state.get("lm_head.weight")
        self.lm_head = None if head is None else nn.Linear(width, len(head), bias=False, **like)
        object.__setattr__(self, "_target_head", target.get_output_embeddings())
        ids = torch.arange(text.vocab_size) if head is None else draft_ids(state)
        self.register_buffer("draft_ids", ids.to(target.device), persistent=False)

    @property
    def embedding(self) -> Tensor:
        """The matrix of the embedding, (vocabulary, width)."""
        own = self.embed_tokens if self.own_embedding else None
        return (own or self._shared).weight

    @property
    def head(self) -> nn.Module:
        """The head for the draft vocabulary, or the target's, for all tokens."""
        own = self.lm_head if self.own_head else None
        return own or self._target_head

    def new_cache(self) -> DynamicCache:
        return DynamicCache(config=self.base.config)

    def projected(self, hidden: Tensor) -> Tensor:
        """Maps the target's hidden states, (…, n, layers x width of the target), to those that the layer reads."""
        parts = zip(self.fc_norm, hidden.chunk(len(self.layers), dim=-1), strict=True)
        return self.fc(self.input_norm(torch.cat([norm(part) for norm, part in parts], dim=-1)))

    def forward(
        self, ids: Tensor, hidden: Tensor, cache: Cache, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Runs the layer.

        Args:
            ids: (rows, n), the tokens from position 1 on.
            hidden: (rows, n, layers x width of the target), the target's hidden states from position 0 on; or
                (rows, n, width), outputs of this method.
            mask: (rows, 1, n, cached + n), added to the attention scores; None is causal.

        Returns:
            (rows, n, width), hidden states from position 1 on.
        """
        if hidden.shape[-1] == self.fc.in_features:
            hidden = self.projected(hidden)
        # Not the target's module, which may scale its output.
        embedding = nn.functional.embedding(ids, self.embedding).to(hidden.dtype)
        out = self.base(
            inputs_embeds=torch.cat([embedding, hidden], dim=-1),
            past_key_values=cache,
            use_cache=True,
            position_ids=positions,
            attention_mask=mask,
        ).last_hidden_state
        return self.norm(out) if self.norm_output else out

    def logits(self, hidden: Tensor) -> Tensor:
        """Maps (…, width) to (…, draft vocabulary) logits: column j is token draft_ids[j]."""
        logits = self.head(hidden if self.norm_output else self.norm(hidden))
        return logits[..., self.draft_ids] if self.lm_head is not None and not self.own_head else logits


def load_head(
    method: str,
    kind: type[Eagle3Head],
    marks: Sequence[str],
    name: str,
    target: LoadedModel,
    progress: Callable[[Progress], None],
) -> LoadedDrafter:
    """Loads a head of a kind.

    Args:
        method: the drafting method that the weights must be for.
        kind: the class of the head.
        marks: tensors that every head of this kind has.
        name: a folder, or an id on the hub.

    Raises:
        PlaygroundError: the head cannot be fetched, is of another kind or incomplete, has no safetensors weights, or
            was trained for another target.
    """
    weights, raw = fetch(name, f"A head for {METHODS[method].label}", progress)
    progress(Progress(f"Loading {weights.name}"))
    with explained(weights, target.model.device):
        check_memory(weights, target.model.dtype, target.model.device)
        state = _read_state(weights)
        _check_kind(raw, state, weights.name, method, marks)
        if raw.get("tie_word_embeddings") and "embed_tokens.weight" in state:
            state.setdefault("lm_head.weight", state["embed_tokens.weight"])
        config = _with_layers_of(state, read_config(raw))
        _check_fits(raw, config, state, weights.name, target)
        head = kind(target.model, config, state)
        parts = {key: tensor for key, tensor in state.items() if key not in ("d2t", "t2d")}
        renamed = {f"base.{key}" if key.startswith("layers.") else key: parts[key] for key in parts}
        load_tensors(head, renamed, weights.name)
    return LoadedDrafter(head.eval().requires_grad_(False), weights.name, weights.origin)


def read_config(raw: Mapping[str, Any]) -> Eagle3Config:
    """Reads a head's config.json. Where a speculators config does not say, norms are placed as in vLLM: before the
    residual for EAGLE-3, not for P-EAGLE."""
    if "speculators_model_type" in raw:
        layer = raw["transformer_layer_config"]
        norm_before_residual = raw.get("norm_before_residual", raw["speculators_model_type"] == "eagle3")
    else:
        layer, norm_before_residual = raw, raw.get("norm_before_residual", False)
    nested = raw.get("eagle_config") or {}
    ids = raw.get("eagle_aux_hidden_state_layer_ids") or nested.get("eagle_aux_hidden_state_layer_ids")
    outputs = raw.get("target_layer_ids")  # DeepSpec's
    mask = next((raw[key] for key in MASKS if raw.get(key) is not None), None)
    proposals = (raw.get("speculators_config") or {}).get("proposal_methods") or [{}]
    return Eagle3Config(
        AutoConfig.for_model(**{"max_position_embeddings": sys.maxsize, **_with_one_window(_with_plain_rope(layer))}),
        _outputs(ids) if ids else tuple(outputs) if outputs else None,
        norm_before_residual,
        raw.get("norm_output", False),
        None if mask is None else int(mask),
        proposals[0].get("speculative_tokens"),
    )


def _with_layers_of(state: Mapping[str, Tensor], config: Eagle3Config) -> Eagle3Config:
    """Returns the config with as many layers as there are tensors for: some configs were copied from the target, with
    its number of layers."""
    count = len({key.split(".")[1] for key in state if key.startswith("layers.")})
    layer = copy.deepcopy(config.layer)
    layer.num_hidden_layers = count
    if getattr(layer, "layer_types", None):
        layer.layer_types = layer.layer_types[:count]
    return replace(config, layer=layer)


def _outputs(ids: Sequence[int]) -> tuple[int, ...]:
    """Turns layer ids into indices of layer outputs. Both conventions are published, under either key, and SGLang's
    rule distinguishes them: ids that start at 1 name layer outputs, ids that start at 2 or later name layer inputs. Ids
    that start at 0 name outputs, too: the input of layer 0 is the embedding, which no head reads."""
    return tuple(ids) if ids[0] < 2 else tuple(i - 1 for i in ids)


def _with_plain_rope(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Removes multimodal rotary positions (mrope) from a layer's config: on text their three components are equal,
    which is plain RoPE."""
    key = "rope_parameters" if layer.get("rope_parameters") else "rope_scaling"
    rope = layer.get(key) or {}
    if "mrope_section" not in rope:
        return dict(layer)
    kind = rope.get("rope_type") or rope.get("type")
    plain = {name: value for name, value in rope.items() if name not in ("mrope_section", "mrope_interleaved", "type")}
    return {**layer, key: plain | {"rope_type": "default" if kind in (None, "mrope") else kind}}


def _with_one_window(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a layer's config with the sliding window that the layer uses, or none. Configs copied from a target may
    name a window with a flag that it is not used, which transformers' caches do not read."""
    kinds = layer.get("layer_types") or []
    if layer.get("use_sliding_window", "sliding_attention" in kinds[:1]):
        return {**layer, "use_sliding_window": True}
    return {**layer, "use_sliding_window": False, "sliding_window": None, "layer_types": None}


def _read_state(weights: ModelFiles) -> dict[str, Tensor]:
    """Reads the published tensors, under the names of the speculators layout."""
    plain = ((key.removeprefix("model."), tensor) for key, tensor in tensors_of(weights.folder).items())
    return {key.replace("midlayer.", "layers.0.", 1): tensor for key, tensor in plain}


def _check_kind(
    raw: Mapping[str, Any], state: Mapping[str, Tensor], name: str, method: str, marks: Sequence[str]
) -> None:
    """Checks the kind of a head.

    Raises:
        PlaygroundError: the files are another kind of drafter, or lack a part that the config names.
    """
    label = METHODS[method].label
    check_method(raw, state.keys(), name, method)
    kind = raw.get("speculators_model_type", method)
    if kind != method:
        raise PlaygroundError(
            f"{name} is no {label} head: its config calls it {kind}. Choose one made for this target."
        )
    projects = state.get("fc.weight")
    lacks = [key for key in marks if key not in state]
    if lacks and projects is not None and projects.shape[1] == 2 * projects.shape[0]:
        raise PlaygroundError(
            f"{name} is an EAGLE-1 or EAGLE-2 head, which reads only the target's last layer. These are not supported. "
            "Choose a head for EAGLE-3 that was made for this target."
        )
    if lacks:
        raise PlaygroundError(
            f"{name} is not a complete {label} head: it has no {lacks[0]}. Fetch it again, or choose another head made "
            "for this target."
        )
    for flag, part in NAMED.items():
        if raw.get(flag) and part not in state:
            raise PlaygroundError(
                f"{name} is not a complete {label} head: its config says {flag}, and it has no {part}. Fetch it again, "
                "or choose another head."
            )
    built_of = raw.get("transformer_layer_config", raw)["model_type"]
    if built_of not in KINDS:
        raise PlaygroundError(
            f"{name} uses a {built_of} layer. Only heads with {' or '.join(KINDS)} layers are supported. "
            "Choose another head."
        )


def _check_fits(
    raw: Mapping[str, Any], config: Eagle3Config, state: Mapping[str, Tensor], name: str, target: LoadedModel
) -> None:
    """Checks that a head fits the target.

    Raises:
        PlaygroundError: the target has too few layers, or hidden states or a vocabulary of another size; or the files
            do not say which of its tokens are drafted.
    """
    text, made_for = target.model.config.get_text_config(decoder=True), target_of(raw)
    layers, n = config.layers_of(text), text.num_hidden_layers
    if min(layers) < 0 or max(layers) >= n or len(set(layers)) < len(layers):
        reads = f"layers up to number {max(layers) + 1}" if config.layers else "three layers of a target of at least 7"
        raise MadeForAnother(
            f"{name} cannot draft for {target.name}: it was made for {made_for} and reads {reads}, and this target has "
            f"{n}. {REMEDY}"
        )
    width = state["fc.weight"].shape[1] // len(layers)
    embeds = text.hidden_size if "embed_tokens.weight" not in state else config.layer.hidden_size
    sizes = [
        ("hidden states of {}", width, text.hidden_size),
        ("embeddings of {}", config.layer.hidden_size, embeds),
        ("a vocabulary of {}", config.layer.vocab_size, text.vocab_size),
    ]
    whole = raw.get("draft_vocab_size") in (None, text.vocab_size) and "d2t" not in state
    shares = whole and "lm_head.weight" not in state
    if shares:
        sizes.append(("a head for hidden states of {}", config.layer.hidden_size, text.hidden_size))
    check_made_for(name, target.name, sizes, made_for=made_for)
    if not shares:
        mapped_ids(name, state, text.vocab_size)


DRAFTS = 8  # tokens of a P-EAGLE pass where the config does not say: speculators' default for training


class PEagleHead(Eagle3Head):
    """A P-EAGLE head. `drafts`: the number of tokens that a pass drafts. The arguments are those of `Eagle3Head`.

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
        """Drafts after the text.

        Args:
            ids: (n,), tokens of the text that the cache lacks.
            hidden: (n, layers x width), the target's hidden states, each one position before its token.
            cache: receives the entries of these tokens, then `drafts` - 1 of slots.

        Returns:
            (drafts, draft vocabulary), logits for the positions after the text.
        """
        slots = self.drafts - 1
        tokens = torch.cat([ids, ids.new_full((slots,), self.mask_token_id)])
        features = torch.cat([hidden, self.mask_hidden.reshape(1, -1).to(hidden.dtype).expand(slots, -1)])
        return self.logits(self(tokens[None], features[None], cache)[0, -self.drafts :])


load_eagle3 = partial(load_head, "eagle3", Eagle3Head, MARKS)
load_peagle = partial(load_head, "peagle", PEagleHead, (*MARKS, "mask_hidden"))
