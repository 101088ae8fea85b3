"""EAGLE-3 heads in the layouts that are published, against a forward pass written from the paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import linear, silu
from transformers import LlamaConfig, PreTrainedModel

from playground.errors import PlaygroundError
from playground.models.load import LoadedDrafter, LoadedModel
from playground.models.networks.eagle3 import Eagle3Head, load_eagle3, read_config
from playground.models.store import ModelStore
from playground.presets import custom_pair, kind_of
from tests.decoding.fakes import NumberTokenizer
from tests.decoding.real import llama
from tests.tiny import small_llama

LAYER = dict(
    model_type="llama",
    hidden_act="silu",
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_hidden_layers=1,
    max_position_embeddings=2048,
    rms_norm_eps=1e-5,
    rope_scaling=None,
    rope_theta=10000.0,
    tie_word_embeddings=False,
    attention_bias=False,
    use_cache=True,
)
LAYOUTS = {
    # SafeAILab and SpecForge: one flat config, the target's embedding
    "safeai": dict(layout="flat"),
    "specforge": dict(layout="flat", eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 3, 6]}),
    "3.1": dict(layout="flat", norm_output=True, parts=("fc_norm",)),
    "deepspec": dict(layout="deepspec", target_layer_ids=[0, 2, 4, 6], parts=("embed_tokens",), model_type="qwen3"),
    # speculators: the layer's config by itself, an embedding of its own, vLLM's numbers of layers
    "speculators": dict(layout="speculators", norm_before_residual=True, parts=("embed_tokens",)),
    "speculators-ids": dict(layout="speculators", norm_before_residual=False, eagle_aux_hidden_state_layer_ids=[2, 4]),
    "converted": dict(layout="speculators", norm_before_residual=False, eagle_aux_hidden_state_layer_ids=[1, 3, 4]),
    "nested-inputs": dict(layout="flat", eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 4, 8]}),
    "speculators-3.1": dict(layout="speculators", norm_output=True, fc_norm=True, parts=("fc_norm",)),
    "speculators-qwen3": dict(
        layout="speculators", norm_before_residual=True, norm_output=True, parts=("input_norm",), model_type="qwen3"
    ),
}
# The layer outputs that a head reads; the others read the usual layers of 8: 1, 3, 4. Ids whose first is 1 (or 0) name
# outputs, those whose first is 2 name inputs.
READS = {
    "specforge": (0, 3, 6),
    "deepspec": (0, 2, 4, 6),
    "speculators-ids": (1, 3),
    "converted": (1, 3, 4),
    "nested-inputs": (1, 3, 7),
}


def write_head(
    folder: Path,
    target: PreTrainedModel,
    ids: list[int],
    layout: str = "flat",
    parts: tuple[str, ...] = (),
    model_type: str = "llama",
    seed: int = 3,
    **config: Any,
) -> str:
    """Writes a head of random weights as it is published. `ids`: the draft vocabulary. `parts`: those that not every
    head has."""
    text = target.config
    width, vocab, head_dim = text.hidden_size, text.vocab_size, text.hidden_size // 4
    reads = len(config.get("eagle_aux_hidden_state_layer_ids") or config.get("target_layer_ids") or range(3))
    layer = "midlayer" if layout == "flat" else "layers.0"
    shapes = {
        "fc": (width, reads * width),
        f"{layer}.self_attn.q_proj": (width, 2 * width),
        f"{layer}.self_attn.k_proj": (2 * head_dim, 2 * width),
        f"{layer}.self_attn.v_proj": (2 * head_dim, 2 * width),
        f"{layer}.self_attn.o_proj": (width, width),
        f"{layer}.mlp.gate_proj": (48, width),
        f"{layer}.mlp.up_proj": (48, width),
        f"{layer}.mlp.down_proj": (width, 48),
        f"{layer}.hidden_norm": (width,),
        f"{layer}.input_layernorm": (width,),
        f"{layer}.post_attention_layernorm": (width,),
        "norm": (width,),
        "lm_head": (len(ids), width),
    }
    shapes |= {"input_norm": (reads * width,)} if "input_norm" in parts else {}
    shapes |= {f"fc_norm.{i}": (width,) for i in range(reads)} if "fc_norm" in parts else {}
    shapes |= {"embed_tokens": (vocab, width)} if "embed_tokens" in parts else {}
    if "mask_hidden" in parts:
        shapes["mask_hidden"] = (1, 1, reads * width)
    if model_type == "qwen3":
        shapes |= {f"{layer}.self_attn.{name}_norm": (head_dim,) for name in "qk"}
    generator = torch.Generator().manual_seed(seed)
    state = {
        key if key == "mask_hidden" else f"{key}.weight": torch.randn(shape, generator=generator) * 0.4
        + (len(shape) == 1)
        for key, shape in shapes.items()
    }
    state["d2t"] = torch.tensor(ids) - torch.arange(len(ids))
    state["t2d"] = torch.isin(torch.arange(vocab), torch.tensor(ids))
    one = {**LAYER, "model_type": model_type, "hidden_size": width, "vocab_size": vocab, "head_dim": head_dim}
    if layout == "speculators":
        verifier = {"name_or_path": "/somewhere/owner/big", "architectures": ["LlamaForCausalLM"]}
        raw = {
            "architectures": ["Eagle3Speculator"],
            "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
            "speculators_model_type": "eagle3",
            "speculators_config": {"algorithm": "eagle3", "verifier": verifier},
            "transformer_layer_config": one,
            **config,
        }
    else:
        raw = {
            "architectures": ["Qwen3Eagle3Model" if layout == "deepspec" else "LlamaForCausalLMEagle3"],
            "torch_dtype": "float16",
            "pad_token_id": 0,
            **one,
            **config,
        }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**raw, "draft_vocab_size": len(ids)}))
    save_file(state, folder / "model.safetensors")
    return str(folder)


class Reference:
    """Drafts by the paper, one text at a time and from scratch: no cache, no mask beyond the causal one."""

    def __init__(self, folder: str, target: PreTrainedModel, layers: tuple[int, ...]) -> None:
        state = load_file(Path(folder) / "model.safetensors")
        raw = json.loads((Path(folder) / "config.json").read_text())
        self.w = {key.replace("midlayer", "layers.0").removesuffix(".weight"): value for key, value in state.items()}
        self.embedding = self.w.get("embed_tokens", target.get_input_embeddings().weight)
        self.target, self.layers = target, layers
        default = raw.get("speculators_model_type") == "eagle3"  # where it does not say, as in vLLM
        self.before, self.output = raw.get("norm_before_residual", default), raw.get("norm_output", False)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * self.w[name] if name in self.w else x

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        n, name = len(x), "layers.0.self_attn"
        q, k, v = (linear(x, self.w[f"{name}.{part}_proj"]).view(n, -1, 8) for part in "qkv")
        d = q.shape[-1]
        angles = torch.arange(n)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
        turn = torch.polar(torch.ones_like(angles), angles)[:, None]

        def rotated(x: torch.Tensor) -> torch.Tensor:
            turned = torch.complex(x[..., : d // 2], x[..., d // 2 :]) * turn
            return torch.cat([turned.real, turned.imag], dim=-1)

        q, k = rotated(self.norm(q, f"{name}.q_norm")), rotated(self.norm(k, f"{name}.k_norm")).repeat_interleave(2, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) / d**0.5
        weights = scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf")).softmax(-1)
        out = torch.einsum("hij,jhd->ihd", weights, v.repeat_interleave(2, 1)).reshape(n, -1)
        return linear(out, self.w[f"{name}.o_proj"])

    def layer(self, ids: list[int], hidden: torch.Tensor) -> torch.Tensor:
        w, normed = self.w, self.norm(hidden, "layers.0.hidden_norm")
        tokens = self.norm(self.embedding[ids], "layers.0.input_layernorm")
        x = (normed if self.before else hidden) + self.attention(torch.cat([tokens, normed], dim=-1))
        y = self.norm(x, "layers.0.post_attention_layernorm")
        gated = silu(linear(y, w["layers.0.mlp.gate_proj"])) * linear(y, w["layers.0.mlp.up_proj"])
        return x + linear(gated, w["layers.0.mlp.down_proj"])

    def hidden(self, text: list[int]) -> torch.Tensor:
        seen = self.target(torch.tensor([text]), output_hidden_states=True).hidden_states
        parts = [self.norm(seen[layer + 1][0], f"fc_norm.{i}") for i, layer in enumerate(self.layers)]
        return linear(self.norm(torch.cat(parts, dim=-1), "input_norm"), self.w["fc"])

    @torch.inference_mode()
    def logits(self, text: list[int], drafted: list[int]) -> torch.Tensor:
        """(draft vocabulary,), after the text, whose last token the target has not been through, and the draft."""
        hidden, ids = self.hidden(text[:-1]), text[1:]
        for token in [*drafted, None]:
            out = self.layer(ids, hidden)[-1:]
            out = self.norm(out, "norm") if self.output else out
            hidden, ids = torch.cat([hidden, out]), [*ids, token]
        return linear(out if self.output else self.norm(out, "norm"), self.w["lm_head"])[0]


def loaded(model: PreTrainedModel) -> LoadedModel:
    return LoadedModel(model, NumberTokenizer(), "tiny", "made here")


def load(folder: str, model: PreTrainedModel) -> LoadedDrafter:
    return load_eagle3(folder, loaded(model), lambda step: None)


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return llama(0, 8)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_published_head_gives_the_logits_of_the_paper(layout, target, tmp_path):
    ids = list(range(1, 40, 3))
    folder = write_head(tmp_path / "head", target, ids, **LAYOUTS[layout])
    drafter = load(folder, target)
    head = drafter.network
    assert isinstance(head, Eagle3Head)
    assert (drafter.name, head.draft_ids.tolist(), head.layers) == ("head", ids, READS.get(layout, (1, 3, 4)))
    text, drafted = [3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5]
    reference = Reference(folder, target, head.layers)
    cache = head.new_cache()
    with torch.inference_mode():
        seen = target(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
        hidden = torch.cat([seen[layer + 1] for layer in head.layers], dim=-1)
        out = head(torch.tensor([text[1:]]), hidden, cache)[:, -1:]
        for i in range(4):
            torch.testing.assert_close(
                head.logits(out[0, 0]), reference.logits(text, drafted[:i]), rtol=1e-3, atol=1e-3
            )
            if i < 3:
                out = head(torch.tensor([drafted[i : i + 1]]), out, cache)


@pytest.mark.parametrize(("n", "inputs"), [(32, [2, 16, 29]), (36, [2, 18, 33]), (7, [2, 3, 4])])
def test_the_usual_layers_are_those_whose_inputs_safeailab_reads(n, inputs):
    layers = read_config(LAYER).layers_of(LlamaConfig(num_hidden_layers=n))
    assert [layer + 1 for layer in layers] == inputs


@pytest.mark.parametrize("key", ["top", "eagle_config"])
@pytest.mark.parametrize(
    ("ids", "outputs"), [([1, 17, 32], (1, 17, 32)), ([2, 18, 33], (1, 17, 32)), ([24, 30, 36], (23, 29, 35))]
)
def test_ids_whose_first_is_1_name_outputs_and_all_later_ones_inputs(key, ids, outputs):
    named = {"eagle_aux_hidden_state_layer_ids": ids}
    assert read_config(LAYER | (named if key == "top" else {"eagle_config": named})).layers == outputs


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", [{"type": "mrope"}, {"rope_type": "default", "mrope_interleaved": True}], ids=str)
def test_a_head_with_multimodal_positions_drafts_for_text_with_plain_ones(kind, model_type, target, tmp_path):
    plain = write_head(tmp_path / "plain", target, [1, 2, 3], model_type=model_type)
    mrope = dict(rope_scaling={**kind, "mrope_section": [1, 1, 2]}, model_type=model_type)
    folder = write_head(tmp_path / "head", target, [1, 2, 3], **mrope)
    ids, hidden = torch.tensor([[3, 1, 4]]), torch.randn(1, 3, 3 * target.config.hidden_size)
    outs = [head(ids, hidden, head.new_cache()) for head in (load(f, target).network for f in (plain, folder))]
    torch.testing.assert_close(*outs)


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
@pytest.mark.parametrize("types", [{}, {"layer_types": ["sliding_attention"]}], ids=str)
def test_a_head_whose_window_is_not_used_sees_the_whole_sequence(types, model_type, target, tmp_path):
    """Gemma 3's: a sliding_window of 512 beside `use_sliding_window: false`."""
    config = dict(sliding_window=4, use_sliding_window=False, model_type=model_type, **types)
    head = load(write_head(tmp_path / "head", target, [1, 2, 3], **config), target).network
    cache = head.new_cache()
    cache.activate_past_recording()
    head(torch.ones(1, 9, dtype=torch.long), torch.randn(1, 9, 3 * target.config.hidden_size), cache)
    cache.crop(-1)
    assert cache.layers[0].keys.shape[2] == 8


def test_a_head_without_a_mapping_drafts_from_the_whole_vocabulary(target, tmp_path):
    folder = write_head(tmp_path / "head", target, list(range(40)))
    change_weights(folder, lambda state: [state.pop(key) for key in ("d2t", "t2d")])
    assert load(folder, target).network.draft_ids.tolist() == list(range(40))


def test_a_head_without_lm_head_drafts_with_the_targets(target, tmp_path):
    """NVIDIA's for gpt-oss: the config's draft_vocab_size is null. Others name the whole vocabulary."""
    folder = write_head(tmp_path / "head", target, list(range(40)))
    change_weights(folder, lambda state: [state.pop(key) for key in ("d2t", "t2d", "lm_head.weight")])
    hidden = torch.randn(3, 32)
    for named in (40, None):
        change_config(folder, lambda raw, named=named: raw.update(draft_vocab_size=named))
        head = load(folder, target).network
        torch.testing.assert_close(head.logits(hidden), target.get_output_embeddings()(head.norm(hidden)))
        assert head.draft_ids.tolist() == list(range(40))


@pytest.mark.parametrize("layout", ["safeai", "speculators"])
def test_names_under_model_and_a_number_of_layers_copied_from_the_target_change_nothing(layout, target, tmp_path):
    folders = [write_head(tmp_path / name, target, [1, 2, 3], **LAYOUTS[layout]) for name in ("plain", "odd")]
    change_weights(
        folders[1], lambda state: [state.update({f"model.{key}": state.pop(key)}) for key in list(state) if "." in key]
    )
    change_config(folders[1], lambda raw: raw.get("transformer_layer_config", raw).update(num_hidden_layers=40))
    assert kind_of(folders[1]) == "eagle3"
    ids, hidden = torch.tensor([[3, 1, 4]]), torch.randn(1, 3, 3 * target.config.hidden_size)
    plain, odd = (load(folder, target).network for folder in folders)
    torch.testing.assert_close(
        *(head.logits(head(ids, hidden, head.new_cache())) for head in (plain, odd)), rtol=0, atol=0
    )


@pytest.mark.usefixtures("torch_computes")
def test_the_store_loads_a_typed_folder_once_for_chain_and_tree(tmp_path, tiny_tokenizer):
    target = small_llama(tiny_tokenizer)
    target.save_pretrained(tmp_path / "target")
    tiny_tokenizer.save_pretrained(tmp_path / "target")
    layout = {**LAYOUTS["speculators-ids"], "eagle_aux_hidden_state_layer_ids": [0, 1]}
    folder = write_head(tmp_path / "head", target, [0, 2, 4], **layout)
    pair = custom_pair(str(tmp_path / "target"), folder)
    assert pair.weights["eagle3"] == folder and {"eagle3", "tree", "composite"} <= set(pair.drafters)
    models = ModelStore()
    chain, tree = (
        models.get(pair, drafter=way, dtype="bfloat16", device="cpu", progress=lambda step: None)
        for way in ("eagle3", "tree")
    )
    assert chain.drafting is tree.drafting
    assert {p.dtype for p in chain.drafting.network.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("layout", ["safeai", "speculators"])
def test_a_folder_tells_that_it_holds_an_eagle3_head(layout, target, tmp_path):
    assert kind_of(write_head(tmp_path / "head", target, [1, 2], **LAYOUTS[layout])) == "eagle3"


def change_config(folder: str, change) -> None:
    path = Path(folder) / "config.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def change_weights(folder: str, change) -> None:
    path = Path(folder) / "model.safetensors"
    state = load_file(path)
    change(state)
    save_file(state, path)


def without_safetensors(folder: str) -> None:
    (Path(folder) / "model.safetensors").rename(Path(folder) / "pytorch_model.bin")


def eagle_1(state: dict[str, torch.Tensor]) -> None:
    state["fc.weight"] = torch.zeros(32, 64)
    for key in [key for key in state if "norm" in key or key in ("lm_head.weight", "d2t", "t2d")]:
        del state[key]


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (without_safetensors, "has no safetensors weights. Pickled ones"),
        (
            lambda folder: change_weights(folder, eagle_1),
            "is an EAGLE-1 or EAGLE-2 head, which reads only the target's last layer",
        ),
        (
            lambda folder: change_config(folder, lambda raw: raw.update(speculators_model_type="eagle")),
            "no EAGLE-3 head: its config calls it eagle",
        ),
        (
            lambda folder: change_weights(folder, lambda state: state.pop("midlayer.hidden_norm.weight")),
            "not a complete EAGLE-3 head: it has no layers.0.hidden_norm.weight",
        ),
        (
            lambda folder: change_weights(folder, lambda state: state.pop("midlayer.mlp.up_proj.weight")),
            "names a network with 1 tensor more, such as base.layers.0.mlp.up_proj.weight",
        ),
        (
            lambda folder: change_weights(folder, lambda state: [state.pop(key) for key in ("d2t", "t2d")]),
            "it drafts from 3 of the target's 40 tokens, and has no tensor d2t to say which",
        ),
        (
            lambda folder: change_weights(folder, lambda state: state.pop("lm_head.weight")),
            "it drafts from a part of the target's 40 tokens, and has no lm_head.weight for them",
        ),
        (
            lambda folder: change_weights(folder, lambda state: state.update(d2t=torch.tensor([1, 1]))),
            "its head has 3 rows, and its tensor d2t maps 2",
        ),
        (
            lambda folder: change_config(folder, lambda raw: raw.update(intermediate_size=64)),
            "by its config.json it should have",
        ),
        (
            lambda folder: change_weights(
                folder, lambda state: state.update({"midlayer.mlp.up_proj.weight": torch.zeros(48, 32).char()})
            ),
            "are quantised (I8). A head for EAGLE-3 is loaded from whole weights",
        ),
        (
            lambda folder: change_config(folder, lambda raw: raw.update(fc_norm=True)),
            "its config says fc_norm, and it has no fc_norm.0.weight",
        ),
        (
            lambda folder: change_config(folder, lambda raw: raw.update(norm_before_fc=True)),
            "its config says norm_before_fc, and it has no input_norm.weight",
        ),
        (
            lambda folder: change_weights(folder, lambda state: state.update(mask_hidden=torch.zeros(1, 1, 96))),
            "made to draft as peagle",
        ),
        (
            lambda folder: change_config(folder, lambda raw: raw.update(model_type="deepseek_v3")),
            "uses a deepseek_v3 layer",
        ),
        (
            lambda folder: change_config(folder, lambda raw: raw.update(vocab_size=41)),
            "made for another target, with a vocabulary of 41, and this one has 40",
        ),
        (
            lambda folder: change_weights(folder, lambda state: state.update({"fc.weight": torch.zeros(32, 3 * 24)})),
            "hidden states of 24, and this one has 32",
        ),
        (
            lambda folder: change_config(folder, lambda raw: raw.update(hidden_size=64)),
            "embeddings of 64, and this one has 32",
        ),
        (
            lambda folder: change_config(
                folder, lambda raw: raw.update(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 29]})
            ),
            "reads layers up to number 30, and this target has 8",
        ),
        (
            lambda folder: change_weights(folder, lambda state: state.update(d2t=torch.tensor([1, 1, 38]))),
            "draft vocabulary has token 40, and the target has ids from 0 to 39",
        ),
        (
            lambda folder: change_weights(folder, lambda state: state.update(extra=torch.zeros(1))),
            "has parts that are not known here: 1 tensor, such as extra",
        ),
        (
            lambda folder: (Path(folder) / "model.safetensors").write_bytes(b"torn"),
            "head cannot be loaded (",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(break_it, sentence, target, tmp_path):
    folder = write_head(tmp_path / "head", target, [1, 2, 3])
    break_it(folder)
    with pytest.raises(PlaygroundError) as refusal:
        load(folder, target)
    assert sentence in str(refusal.value)


def test_a_target_of_too_few_layers_is_refused_with_the_name_of_the_right_one(tmp_path):
    few = llama(0, 6)
    folder = write_head(tmp_path / "head", few, [1, 2, 3], **LAYOUTS["speculators"])
    with pytest.raises(PlaygroundError, match="at least 7"):
        load(folder, few)
