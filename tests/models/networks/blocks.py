"""Drafters of DFlash's kind in the layouts of z-lab, DeepSpec and speculators, random weights; and a forward pass of
them that is written from the formulas in plain torch."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import linear, silu
from transformers import PreTrainedModel

BLOCK, HEADS, GROUPS, HEAD_DIM, RANK, EPS, THETA = 5, 4, 2, 6, 3, 1e-6, 5e4
TAPS, GROUP, TOP = 3, 8, 6  # of DFlash 2
MEMORY, MIDDLE = 5, 7  # of Domino
ARCHITECTURES = {"dflash": "DFlashSpeculator", "dspark": "DSparkSpeculator", "dflash2": "DFlash2DraftModel"}
INSIDE = {  # of z-lab's dflash_config
    "domino": {"projector_type": "domino", "pure_draft_prefix_len": 1, "gru_hidden_dim": MEMORY, "emb_dim": MIDDLE},
    "jetspec": {"causal_head": True},
}


def write_block(
    folder: Path,
    target: PreTrainedModel,
    layout: str = "speculators",
    kind: str = "dflash",
    ids: list[int] | None = None,
    markov: str | None = None,
    confidence: str | None = None,
    reads: tuple[int, ...] = (1, 2),
    extra: dict[str, tuple[int, ...]] | None = None,
    **config: Any,
) -> str:
    """Writes a drafter. `ids`: the draft vocabulary, by default the whole. `markov`: the kind of its Markov head.
    `confidence`: "plain" or "markov", what its confidence head reads. `reads`: the target's layers, as the layout
    numbers them. `extra`: tensors more, by their shapes."""
    text = target.config
    width, vocab = text.hidden_size, text.vocab_size
    drafted = len(ids or range(vocab))
    shapes: dict[str, tuple[int, ...]] = {"fc": (width, len(reads) * width), "hidden_norm": (width,), "norm": (width,)}
    for layer in ("layers.0", "layers.1"):
        shapes |= {
            f"{layer}.self_attn.q_proj": (HEADS * HEAD_DIM, width),
            f"{layer}.self_attn.k_proj": (GROUPS * HEAD_DIM, width),
            f"{layer}.self_attn.v_proj": (GROUPS * HEAD_DIM, width),
            f"{layer}.self_attn.o_proj": (width, HEADS * HEAD_DIM),
            f"{layer}.self_attn.q_norm": (HEAD_DIM,),
            f"{layer}.self_attn.k_norm": (HEAD_DIM,),
            f"{layer}.mlp.gate_proj": (40, width),
            f"{layer}.mlp.up_proj": (40, width),
            f"{layer}.mlp.down_proj": (width, 40),
            f"{layer}.input_layernorm": (width,),
            f"{layer}.post_attention_layernorm": (width,),
        }
    if markov:
        shapes |= {"markov_head.markov_w1": (vocab, RANK), "markov_head.markov_w2": (drafted, RANK)}
    if markov == "gated":
        shapes |= {"markov_head.gate_proj": (RANK, width + RANK), "markov_head.gate_proj.bias": (RANK,)}
    if markov == "rnn":
        shapes |= {"markov_head.joint_proj": (3 * RANK, 2 * RANK + width), "markov_head.joint_proj.bias": (3 * RANK,)}
    if confidence:
        reading = width + (RANK if confidence == "markov" else 0)
        shapes |= {"confidence_head.proj": (1, reading), "confidence_head.proj.bias": (1,)}
    if ids:
        shapes["lm_head"] = (drafted, width)
    if kind == "dflash2":
        for layer, part in itertools.product(("layers.0", "layers.1"), ("attention", "mlp")):
            shapes[f"{layer}.{part}_conv.base_kernel"] = (2, TAPS, width)
            shapes[f"{layer}.{part}_conv.kernel_projection"] = (2 * TAPS * width // GROUP, width)
        shapes |= {f"candidate_selector.{book}_codebook": (vocab, RANK) for book in ("predecessor", "successor")}
        shapes["candidate_selector.hidden_projection"] = (RANK, width)
    if kind == "domino":
        shapes |= {
            "prefix_gru.weight_ih_l0": (3 * MEMORY, width),
            "prefix_gru.weight_hh_l0": (3 * MEMORY, MEMORY),
            "embed_proj.0": (MIDDLE, width + MEMORY),
            "embed_proj.2": (vocab, MIDDLE),
        }
    shapes |= extra or {}
    generator = torch.Generator().manual_seed(5)
    bare = ("bias", "base_kernel", "codebook", "_l0")  # ends of names without ".weight"
    state = {
        key if key.endswith(bare) else f"{key}.weight": torch.randn(shape, generator=generator) * 0.4
        + (1 if key.endswith("norm") else 0)
        for key, shape in shapes.items()
    }
    layer = {
        "model_type": "qwen3",
        "hidden_size": width,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "head_dim": HEAD_DIM,
        "vocab_size": vocab,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
    }  # and the defaults of the class, which speculators leaves out
    heads = {"markov_rank": RANK if markov else 0, "enable_confidence_head": bool(confidence)}
    heads |= {"markov_head_type": markov} if markov else {}
    heads |= {"conv_kernel_size": TAPS, "conv_group_size": GROUP, "selector_top_k": TOP} if kind == "dflash2" else {}
    common = {"block_size": BLOCK, "mask_token_id": vocab - 2, **heads}
    if layout == "speculators":
        if ids:
            state["d2t"] = torch.tensor(ids) - torch.arange(len(ids))
            state["t2d"] = torch.isin(torch.arange(vocab), torch.tensor(ids))
        raw = {
            "architectures": [ARCHITECTURES.get(kind, "")],
            "speculators_model_type": kind,
            "speculators_config": {"algorithm": kind, "verifier": {"name_or_path": "owner/big"}},
            "transformer_layer_config": layer,
            "draft_vocab_size": drafted,
            "aux_hidden_state_layer_ids": list(reads),
            "sample_from_anchor": kind == "dspark",
            "sliding_window_non_causal": False,
            **common,
        }
    elif layout == "z-lab":
        inside = {"mask_token_id": common.pop("mask_token_id"), "target_layer_ids": list(reads), **INSIDE.get(kind, {})}
        architecture = "DFlash2DraftModel" if kind == "dflash2" else "DFlashDraftModel"
        raw = {"architectures": [architecture], **layer, "dflash_config": inside | config.pop("inside", {}), **common}
    else:  # DeepSpec's, of DFlash and of DSpark, with copies of the target's embedding and head
        state["embed_tokens.weight"] = target.get_input_embeddings().weight.detach().clone()
        state["lm_head.weight"] = target.get_output_embeddings().weight.detach().clone()
        raw = {
            "architectures": ["Qwen3DSparkModel"],
            **layer,
            "layer_types": ["full_attention"] * 2,
            "num_target_layers": text.num_hidden_layers,
            "target_layer_ids": list(reads),
            "num_anchors": 512,
            **common,
        }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**raw, **config}))
    save_file(state, folder / "model.safetensors")
    return str(folder)


def change_config(folder: str, **changes: Any) -> None:
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


class Reference:
    """Drafts one text at a time and from scratch: no cache, every slot attends to all of text and block, or with a
    causal head to what is not after it."""

    def __init__(self, folder: str, target: PreTrainedModel) -> None:
        state = load_file(Path(folder) / "model.safetensors")
        self.raw = json.loads((Path(folder) / "config.json").read_text())
        self.raw |= self.raw.get("dflash_config", {})
        self.w = {key.removesuffix(".weight"): value for key, value in state.items()}
        self.target = target
        self.speculators = "speculators_model_type" in self.raw
        second = "candidate_selector.hidden_projection" in self.w
        zlab = second or self.raw["architectures"][0] in ("DFlashDraftModel", "DominoDraftModel")
        self.from_anchor = self.raw.get("sample_from_anchor", self.raw.get("shift_label", not zlab))

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * self.w[name]

    def read(self, text: list[int]) -> torch.Tensor:
        """(positions, layers x width): speculators' id i is the input of layer i, DeepSpec's the output; what the last
        layer gives is before the final norm in the former, after it in the latter."""
        seen: list[torch.Tensor] = []
        hooks = [
            layer.register_forward_hook(
                lambda _, inputs, out: seen.append((out if torch.is_tensor(out) else out[0])[0])
            )
            for layer in self.target.model.layers
        ]
        final = self.target.model(torch.tensor([text])).last_hidden_state[0]
        for hook in hooks:
            hook.remove()
        if self.speculators:
            return torch.cat([seen[i - 1] for i in self.raw["aux_hidden_state_layer_ids"]], dim=-1)
        seen[-1] = final
        return torch.cat([seen[i] for i in self.raw["target_layer_ids"]], dim=-1)

    def attention(self, name: str, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        every = torch.cat([context, x])

        def heads(part: str, rows: torch.Tensor) -> torch.Tensor:
            return linear(rows, self.w[f"{name}.{part}_proj"]).view(len(rows), -1, HEAD_DIM)

        def turned(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            half = HEAD_DIM // 2
            angles = positions[:, None] * THETA ** (-torch.arange(half) / half)
            turn = torch.polar(torch.ones_like(angles), angles)[:, None]
            y = torch.complex(x[..., :half], x[..., half:]) * turn
            return torch.cat([y.real, y.imag], dim=-1)

        positions = torch.arange(len(every)).float()
        q = turned(self.norm(heads("q", x), f"{name}.q_norm"), positions[len(context) :])
        k = turned(self.norm(heads("k", every), f"{name}.k_norm"), positions).repeat_interleave(HEADS // GROUPS, 1)
        v = heads("v", every).repeat_interleave(HEADS // GROUPS, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) / HEAD_DIM**0.5
        if self.raw.get("causal_head"):
            after = torch.arange(len(every)) > torch.arange(len(context), len(every))[:, None]
            scores = scores.masked_fill(after, float("-inf"))
        weights = scores.softmax(-1)
        return linear(torch.einsum("hij,jhd->ihd", weights, v).reshape(len(x), -1), self.w[f"{name}.o_proj"])

    def mlp(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return linear(
            silu(linear(x, self.w[f"{name}.gate_proj"])) * linear(x, self.w[f"{name}.up_proj"]),
            self.w[f"{name}.down_proj"],
        )

    def convolved(
        self, name: str, x: torch.Tensor, kernel: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What attention or MLP reads, and the kernel for what it returns; with that kernel, what it returns."""
        if f"{name}.base_kernel" not in self.w:
            return x, None
        width, last = x.shape[1], kernel is not None
        if kernel is None:
            kernel = linear(x, self.w[f"{name}.kernel_projection"]).view(len(x), 2, TAPS, width // GROUP)
        base, out = self.w[f"{name}.base_kernel"][int(last)], torch.zeros_like(x)
        for i, t, c in itertools.product(range(len(x)), range(TAPS), range(width)):
            if i >= t:
                out[i, c] += (base[t, c] + kernel[i, int(last), t, c // GROUP]) * x[i - t, c]
        return out, kernel

    @torch.inference_mode()
    def states(self, text: list[int]) -> torch.Tensor:
        """(slots, width), of those that draft. The target has been through all of the text but its last token."""
        context = self.norm(linear(self.read(text[:-1]), self.w["fc"]), "hidden_norm")
        block = [text[-1], *[self.raw["mask_token_id"]] * (BLOCK - 1)]
        x = self.target.get_input_embeddings().weight[block]
        for layer in ("layers.0", "layers.1"):
            y, kernel = self.convolved(f"{layer}.attention_conv", self.norm(x, f"{layer}.input_layernorm"))
            y = self.attention(f"{layer}.self_attn", y, context)
            x = x + self.convolved(f"{layer}.attention_conv", y, kernel)[0]
            y, kernel = self.convolved(f"{layer}.mlp_conv", self.norm(x, f"{layer}.post_attention_layernorm"))
            y = self.mlp(f"{layer}.mlp", y)
            x = x + self.convolved(f"{layer}.mlp_conv", y, kernel)[0]
        return self.norm(x, "norm")[0 if self.from_anchor else 1 :]

    @torch.inference_mode()
    def logits(self, text: list[int], drafted: list[int]) -> tuple[torch.Tensor, float | None]:
        """(draft vocabulary,), of the slot after the drafted tokens, and the confidence there."""
        states, before = self.states(text), [text[-1], *drafted]
        h, w = states[len(drafted)], self.w
        head = w["lm_head"] if "lm_head" in w else self.target.get_output_embeddings().weight
        logits, reads = linear(h, head), h
        if "candidate_selector.hidden_projection" in w:
            a, b = (w[f"candidate_selector.{book}_codebook"] for book in ("predecessor", "successor"))
            chosen = logits.sort(descending=True).indices[:TOP]
            scores = torch.full_like(logits, float("-inf"))
            for c in chosen:
                scores[c] = logits[c] + (a[before[-1]] * linear(h, w["candidate_selector.hidden_projection"])) @ b[c]
            return scores, None
        if "embed_proj.0" in w and len(drafted) >= self.raw["pure_draft_prefix_len"]:
            s = torch.zeros(MEMORY)
            for x in self.target.get_input_embeddings().weight[before]:
                (r, z, n), (hr, hz, hn) = (
                    linear(value, w[f"prefix_gru.weight_{part}_l0"]).view(3, MEMORY)
                    for part, value in (("ih", x), ("hh", s))
                )
                z, n = torch.sigmoid(z + hz), torch.tanh(n + torch.sigmoid(r + hr) * hn)
                s = (1 - z) * n + z * s
            return logits + linear(silu(linear(torch.cat([h, s]), w["embed_proj.0"])), w["embed_proj.2"]), None
        if "markov_head.markov_w1" in w:
            e = w["markov_head.markov_w1"][before]
            f = e[-1]
            if "markov_head.gate_proj" in w:
                f = f * torch.sigmoid(
                    linear(torch.cat([h, f]), w["markov_head.gate_proj"], w["markov_head.gate_proj.bias"])
                )
            if "markov_head.joint_proj" in w:
                s = torch.zeros(RANK)
                for state, token in zip(states, e, strict=False):
                    z, c, o = linear(
                        torch.cat([s, token, state]), w["markov_head.joint_proj"], w["markov_head.joint_proj.bias"]
                    ).split(RANK)
                    s, f = torch.sigmoid(z) * s + (1 - torch.sigmoid(z)) * torch.tanh(c), torch.tanh(o)
            logits = logits + linear(f, w["markov_head.markov_w2"])
            reads = torch.cat([h, e[-1]])
        if "confidence_head.proj" not in w:
            return logits, None
        proj = w["confidence_head.proj"]
        return logits, float(torch.sigmoid(linear(reads[: proj.shape[1]], proj, w["confidence_head.proj.bias"])))
