"""Checks a drafter's files against its target, before a token is drafted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoTokenizer

from playground.drafting_methods import DraftingMethod
from playground.models.attention import decoder_of
from playground.models.load import LoadedModel, locate, tensors_of
from playground.models.networks.made_for import target_of
from playground.models.networks.weights import check_vocabulary, check_weights, scales
from playground.progress import Progress
from playground.results import Finding
from playground.results.experiments import MASK

ROWS = 256  # rows of a matrix that are compared with the target's, evenly spread
SAME, NEAR, UNRELATED = 0.99, 0.5, 0.1  # mean cosine between rows
IDS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids")


@dataclass(frozen=True)
class _Files:
    """A drafter's files. `layer`: the config of its layers. `state`: its tensors; none of a whole model, which is
    not compared with the target's."""

    raw: Mapping[str, Any]
    layer: Mapping[str, Any]
    state: Mapping[str, Tensor]
    target: LoadedModel

    @property
    def text(self) -> Any:
        return self.target.model.config.get_text_config(decoder=True)


def check_files(
    name: str, method: DraftingMethod, target: LoadedModel, progress: Callable[[Progress], None]
) -> list[Finding]:
    """Compares a drafter's files with its target. `name`: a folder, or an id on the hub.

    Raises:
        PlaygroundError: the drafter cannot be fetched.
    """
    files = locate(name, progress)
    if files.gguf:
        return []
    raw = json.loads((files.folder / "config.json").read_text(encoding="utf-8"))
    state = {key.removeprefix("model."): tensor for key, tensor in tensors_of(files.folder).items()}
    network = method.weights == "network"
    given = _Files(raw, raw.get("transformer_layer_config") or raw, state if network else {}, target)
    head: Any = target.model.get_output_embeddings()
    norm: Any = decoder_of(target.model).get_submodule("norm")
    like_theirs = method.weights == "model" or method.name == "mtp"
    offset = round(float((scales(norm) - norm.weight.detach()).mean())) if like_theirs else 0
    found = [*check_weights(state, head.weight.detach(), norm, offset)]
    found += [it for check in (_embedding, _map, _head, _layers, _flags, _mask, _reach) for it in check(given)]
    if any((files.folder / each).is_file() for each in ("tokenizer.json", "tokenizer_config.json")):
        own = AutoTokenizer.from_pretrained(files.folder, trust_remote_code=False)
        found += _tokenizer(own, target.tokenizer)
        if method.weights == "model" and own.get_vocab() == target.tokenizer.get_vocab():
            inputs: Any = target.model.get_input_embeddings()
            found += check_vocabulary(state["embed_tokens.weight"], inputs.weight.detach(), len(own))
    return found


def _embedding(files: _Files) -> Iterator[Finding]:
    own = files.state.get("embed_tokens.weight")
    theirs: Any = files.target.model.get_input_embeddings().weight
    if own is None or own.shape != theirs.shape:
        return
    ids = torch.linspace(0, len(own) - 1, min(ROWS, len(own))).long()
    alike = _alike(own[ids], theirs.detach()[ids])
    if alike < UNRELATED:
        yield Finding(
            "suspect", "embedding",
            f"Its embed_tokens is unrelated to the target's (mean cosine {alike:.2f}): random, or another model's.",
        )  # fmt: skip
    elif alike < SAME:
        yield Finding("note", "embedding", f"Its embed_tokens is near the target's (mean cosine {alike:.2f}).")


def _map(files: _Files) -> Iterator[Finding]:
    """d2t holds what to add to a draft id, t2d marks the tokens that are drafted: the two must agree."""
    offsets, marks, head = (files.state.get(key) for key in ("d2t", "t2d", "lm_head.weight"))
    if offsets is None:
        if head is not None and len(head) < files.text.vocab_size:
            text = f"Its head drafts {len(head):,} of the target's {files.text.vocab_size:,} tokens, and no d2t says"
            yield Finding("broken", "draft vocabulary", f"{text} which.{_rebuilt(files)}")
        return
    places = torch.arange(len(offsets))
    ids = offsets.long() + places
    if int(ids.min()) < 0 or int(ids.max()) >= files.text.vocab_size:
        absolute = bool((offsets[1:] > offsets[:-1]).all()) and int(offsets.min()) >= 0
        text = "it holds the target's ids, and not what to add to a draft id" if absolute else "it was made for another"
        yield Finding("broken", "draft vocabulary", f"d2t names token {int(ids.max()):,}, which there is not: {text}.")
        return
    if marks is None:
        return
    if len(marks) != files.text.vocab_size:
        text = f"t2d marks tokens of a vocabulary of {len(marks):,}, and the target has {files.text.vocab_size:,}."
        yield Finding("mismatched", "draft vocabulary", text)
        return
    marked = marks.bool().nonzero()[:, 0]
    if torch.equal(marked, ids.sort().values):
        return
    by = int((marked - ids).mode().values) if len(marked) == len(ids) else 0
    if torch.equal(marked, offsets.long()):
        text = "d2t holds the target's ids, which t2d marks, and not what to add to a draft id"
    elif by and torch.equal(marked, ids + by):
        text = f"d2t and t2d are shifted against each other by {by:+d}"
    else:
        wrong = len(set(ids.tolist()) - set(marked.tolist()))
        text = f"d2t and t2d disagree: {wrong:,} of {len(ids):,} drafted tokens are not marked"
    yield Finding("broken", "draft vocabulary", f"{text}.")


def _rebuilt(files: _Files) -> str:
    best, alike = _nearest(files, torch.arange(min(3, len(files.state["lm_head.weight"]))))
    if alike < NEAR:
        return ""
    return f" Its first rows are the target's for the tokens {', '.join(map(str, best.tolist()))}: it can be rebuilt."


def _head(files: _Files) -> Iterator[Finding]:
    """Each row of a head should be most like the target's row of the token that it drafts."""
    head, theirs = files.state.get("lm_head.weight"), files.target.model.get_output_embeddings().weight
    if head is None or head.dim() != 2 or head.shape[1] != theirs.shape[1]:
        return
    offsets = files.state.get("d2t")
    if offsets is not None and len(offsets) != len(head):
        yield Finding("broken", "head", f"Its head has {len(head):,} rows, and d2t maps {len(offsets):,}.")
        return
    if offsets is None and len(head) != len(theirs):
        return
    rows = torch.linspace(0, len(head) - 1, min(ROWS, len(head))).long()
    ids = rows if offsets is None else rows + offsets[rows].long()
    if int(ids.max()) >= len(theirs) or int(ids.min()) < 0:
        return
    alike, (best, nearest) = _alike(head[rows], theirs.detach()[ids]), _nearest(files, rows)
    agree, by = float((best == ids).float().mean()), int((best - ids).mode().values)
    share = float((best - ids == by).float().mean())
    if nearest > NEAR and agree < 0.5 and by and share > 0.5:
        yield Finding(
            "broken", "draft vocabulary",
            f"{share:.0%} of the head's rows are the target's for the token {by:+d} from the one that d2t names: "
            "it is shifted.",
        )  # fmt: skip
    elif nearest > NEAR and agree < 0.5 and alike < NEAR:
        yield Finding(
            "broken", "draft vocabulary",
            f"The head's rows are the target's, but of other tokens than d2t names ({agree:.0%} agree): it is wrong.",
        )  # fmt: skip
    elif alike < UNRELATED:
        yield Finding(
            "suspect", "head",
            f"Its lm_head is unrelated to the target's (mean cosine {alike:.2f}): random, or trained apart.",
        )  # fmt: skip


def _nearest(files: _Files, rows: Tensor) -> tuple[Tensor, float]:
    """Returns the target's token whose row is most like each row of the head, and how alike they are on the mean."""
    theirs = files.target.model.get_output_embeddings().weight.detach().float()
    cosines = F.normalize(files.state["lm_head.weight"][rows].float().to(theirs.device)) @ F.normalize(theirs).T
    best = cosines.max(-1)
    return best.indices.cpu(), float(best.values.mean())


def _alike(ours: Tensor, theirs: Tensor) -> float:
    return float(F.cosine_similarity(ours.float(), theirs.float().cpu(), dim=-1).mean())


def _layers(files: _Files) -> Iterator[Finding]:
    n, nested = files.text.num_hidden_layers, files.raw.get("eagle_config") or files.raw.get("dflash_config") or {}
    ids = next((found for key in IDS for found in (files.raw.get(key), nested.get(key)) if found), None)
    made = files.raw.get("num_target_layers") or nested.get("num_target_layers")
    if made not in (None, n):
        yield Finding("mismatched", "layers", f"It was trained for a target of {made} layers; this one has {n}.")
    elif ids and max(ids) > n:
        yield Finding("mismatched", "layers", f"It reads layer {max(ids)}; the target has {n}.")
    elif ids and len(ids) == 3 and (depth := _usual_depth(ids)) not in (None, n, n + 1, n - 1):
        text = f"It reads layers {', '.join(map(str, ids))}, the usual ones of a target of {depth} layers"
        yield Finding("suspect", "layers", f"{text}; this one has {n}.")
    tensors = len({key.split(".")[1] for key in files.state if key.startswith("layers.")}) or 1
    configured = files.layer.get("num_hidden_layers", tensors)
    if files.state and "eagle" in json.dumps(files.raw).lower() and configured != tensors:
        text = f"config.json names {configured} layers, and there are weights for {tensors}: copied from the target's."
        yield Finding("note", "layers", text)


def _usual_depth(ids: list[int]) -> int | None:
    """Returns the depth of the target of which (2, n / 2, n - 3), or one less each, are these layers; None for none."""
    depth = ids[2] + 3 + (2 - ids[0])
    return depth if ids[0] in (1, 2) and ids[1] + 2 - ids[0] == depth // 2 else None


def _flags(files: _Files) -> Iterator[Finding]:
    own, head = files.state.get("embed_tokens.weight"), files.state.get("lm_head.weight")
    differ = own is not None and head is not None and (own.shape != head.shape or not torch.equal(own, head))
    if files.raw.get("tie_word_embeddings") and differ:
        yield Finding(
            "suspect", "tied flag",
            "config.json says tie_word_embeddings, and its embedding and head differ: an engine that obeys the flag "
            "drafts from the embedding.",
        )  # fmt: skip
    made = target_of(files.raw, unknown="")
    if made and made.lower() != files.target.name.rsplit("/", 1)[-1].lower():
        yield Finding("note", "target", f"It was trained for {made}; the target here is called {files.target.name}.")


def _mask(files: _Files) -> Iterator[Finding]:
    """A slot to draft is marked by a token that no text has."""
    id_ = {**files.raw, **(files.raw.get("dflash_config") or {})}.get("mask_token_id")
    tokenizer: Any = files.target.tokenizer
    token = None if id_ is None else tokenizer.convert_ids_to_tokens(id_) if id_ < len(tokenizer) else None
    if token is not None and token not in {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}:
        text = f"Its mask token, {id_}, is {token!r}, an ordinary token of the target's vocabulary."
        yield Finding("suspect", MASK, text)


def _reach(files: _Files) -> Iterator[Finding]:
    ours, theirs = files.layer.get("max_position_embeddings"), files.text.max_position_embeddings
    if ours and ours < theirs:
        yield Finding(
            "note", "context",
            f"Its context ends at {ours:,} positions, the target's at {theirs:,}: past that it drafts nothing.",
        )  # fmt: skip
    rope, mine = getattr(files.text, "rope_parameters", None) or {}, files.layer.get("rope_parameters") or files.layer
    if mine.get("rope_theta") and rope.get("rope_theta") and mine["rope_theta"] != rope["rope_theta"]:
        text = f"Its rope_theta is {mine['rope_theta']:,.0f}, the target's {rope['rope_theta']:,.0f}."
        yield Finding("note", "rope", text)


def _tokenizer(ours: Any, theirs: Any) -> Iterator[Finding]:
    mine, yours = ours.get_vocab(), theirs.get_vocab()
    if differing := [token for token in mine.keys() | yours.keys() if mine.get(token) != yours.get(token)]:
        token = min(differing, key=lambda it: yours.get(it, len(yours)))
        text = f"{len(differing):,} tokens have other ids, such as {token!r}: {mine.get(token)}"
        yield Finding("mismatched", "tokenizer", f"{text}, and {yours.get(token)} in the target.")
    for name in ("bos_token_id", "eos_token_id", "add_bos_token"):
        a, b = getattr(ours, name, None), getattr(theirs, name, None)
        if a != b:
            yield Finding("suspect", "tokenizer", f"Its tokenizer has {name} {a}, the target's {b}.")
    if ours.chat_template and theirs.chat_template and ours.chat_template != theirs.chat_template:
        yield Finding("suspect", "chat template", "Its chat template is another than the target's.")
