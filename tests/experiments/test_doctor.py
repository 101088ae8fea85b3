"""Drafters broken on purpose are named rightly, and healthy ones are not accused.

The target is built so that drafting is exact by construction: token x is a point on some circles, the next token is a
turn of all of them, and a layer in the middle adds what the next one takes away, so that it matters which layers a head
reads. The first token that follows is a function of the last one.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from playground import results
from playground.backends.local import LocalBackend
from playground.errors import PlaygroundError
from playground.experiments import suite
from playground.experiments.events import ResultReady, Watch
from playground.experiments.kinds.doctor import KIND, DoctorOptions, examine
from playground.experiments.kinds.options import Decoders
from playground.lane import LOCAL, assisted_lane, standard_lane
from playground.metrics.drafts import Counts
from playground.models.load import LoadedModel
from playground.models.networks.eagle3 import load_eagle3
from playground.models.networks.readings import read_as, undo
from playground.models.networks.trained import TrainedConfig, build, save_trained
from playground.models.store import ModelStore
from playground.presets import custom_pair
from playground.progress import Progress
from playground.results import Finding, Scored
from playground.views import report

WIDTH, LAYERS, READ = 64, 8, (2, 4, 7)  # the head's layers, as ids of inputs
ALL_BUT_EACH_THIRD = torch.arange(300) % 3 != 0
BLOCK, MASK = 5, 0  # slots of a block, and the id of its mask
ASKED = DoctorOptions(prompts=("the waves",), max_new_tokens=160, lookahead=3)


def circles(count: int, turn: float = 0.0) -> torch.Tensor:
    """A point for each token, (count, WIDTH), turned by so many tokens."""
    speeds = torch.arange(1, WIDTH // 2 + 1)
    angles = 2 * math.pi * (torch.arange(count)[:, None] + turn) * speeds / count
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def turning(count: int, by: int) -> torch.Tensor:
    """The matrix that turns a token's point into that of the token `by` further."""
    angles = 2 * math.pi * by * torch.arange(1, WIDTH // 2 + 1) / count
    cos, sin = angles.cos().diag(), angles.sin().diag()
    return torch.cat([torch.cat([cos, -sin], dim=1), torch.cat([sin, cos], dim=1)])


@pytest.fixture(scope="module")
def target(tiny_tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tiny_tokenizer), hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512, mlp_bias=True, bos_token_id=None,
        eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(circles(config.vocab_size))
        model.get_output_embeddings().weight.copy_(circles(config.vocab_size, -1))
        aside = torch.randn(WIDTH) * 20
        for number, layer in enumerate(model.model.layers):
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
            layer.mlp.down_proj.bias.copy_(aside * {2: 1, 3: -1}.get(number, 0))
        model.model.norm.weight.fill_(1.01)
    folder = tmp_path_factory.mktemp("target") / "circles"
    model.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return LoadedModel(model, tiny_tokenizer, str(folder), "made in a test")


@pytest.fixture(scope="module")
def store() -> ModelStore:
    return ModelStore()


@pytest.fixture
def head(target: LoadedModel, tmp_path: Path) -> Path:
    """An EAGLE-3 head that is right about every token."""
    vocab = target.model.config.vocab_size
    eye = torch.eye(WIDTH)
    attention = torch.cat([eye, torch.zeros(WIDTH, WIDTH)], dim=1)
    ones = torch.ones(WIDTH)
    state = {
        "embed_tokens.weight": target.model.get_input_embeddings().weight,
        "lm_head.weight": target.model.get_output_embeddings().weight,
        "fc.weight": torch.cat([eye, -eye, torch.zeros(WIDTH, WIDTH)], dim=1),
        "norm.weight": 1.01 * ones,
        "midlayer.hidden_norm.weight": 1.02 * ones,
        "midlayer.input_layernorm.weight": 1.02 * ones,
        "midlayer.post_attention_layernorm.weight": 1.02 * ones,
        "midlayer.self_attn.q_proj.weight": 4 * attention,
        "midlayer.self_attn.k_proj.weight": 4 * attention,
        "midlayer.self_attn.v_proj.weight": attention,
        "midlayer.self_attn.o_proj.weight": 2 * eye,
        "midlayer.mlp.gate_proj.weight": torch.zeros(32, WIDTH),
        "midlayer.mlp.up_proj.weight": torch.zeros(32, WIDTH),
        "midlayer.mlp.down_proj.weight": torch.zeros(WIDTH, 32),
    }
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": WIDTH,
        "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "vocab_size": vocab, "hidden_act": "silu",
        "norm_output": True, "eagle_aux_hidden_state_layer_ids": list(READ),
    }  # fmt: skip
    return written(tmp_path / "head", learned(state), config)


def learned(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Moves matrices a little, but those of the MLP, which adds nothing: a training leaves no zeros."""
    moved = {key: it for key, it in state.items() if it.dim() == 2 and "mlp" not in key}
    return state | {key: it.detach() + 1e-4 * random(*it.shape) for key, it in moved.items()}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def written(folder: Path, state: dict[str, torch.Tensor], config: dict[str, object]) -> Path:
    folder.mkdir(exist_ok=True)
    save_file({key: it.detach().clone().contiguous() for key, it in state.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def paired(target, folder, drafter="eagle3", **pair):
    return replace(custom_pair(target.name, str(folder), drafter), **pair)


@pytest.fixture(scope="module")
def answered(target, store):
    """The target's answers, which every diagnosis is by."""
    pair = custom_pair(target.name, None)
    _, questions = ASKED.read()
    return suite.run(standard_lane(pair), [], questions, {LOCAL: LocalBackend(store, pair, "float32", "cpu")}, Watch())


@pytest.fixture
def examined(answered, target):
    def examine_it(folder, drafter="eagle3", **pair):
        chosen = paired(target, folder, drafter, **pair)
        backend = LocalBackend(ModelStore(), chosen, "float32", "cpu")
        return examine(answered, chosen, assisted_lane(chosen, drafter, ASKED.lookahead), backend, Watch())

    return examine_it


def broken(folder: Path, drop: str = "", config: dict[str, object] | None = None, **tensors: torch.Tensor) -> Path:
    """Changes a drafter in place. `tensors`: with __ for a dot; `drop`: a tensor that is left out."""
    state = load_file(folder / "model.safetensors") | {key.replace("__", "."): it for key, it in tensors.items()}
    given = json.loads((folder / "config.json").read_text()) | (config or {})
    return written(folder, {key: it for key, it in state.items() if key != drop}, given)


def reduced(
    folder: Path, target: LoadedModel, marks: torch.Tensor = ALL_BUT_EACH_THIRD
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gives a head every token but each third, or those that are marked, rightly, and returns its ids and t2d."""
    ids = marks.nonzero()[:, 0]
    rows = target.model.get_output_embeddings().weight[ids]
    broken(
        folder, config={"draft_vocab_size": len(ids)}, lm_head__weight=rows, d2t=ids - torch.arange(len(ids)), t2d=marks
    )
    return ids, marks


def about(result, mark):
    return {it.about for it in result.findings if it.mark == mark}


def test_a_right_head_is_healthy(examined, target, head):
    result = examined(head)
    assert result.verdict == "healthy" and result.first > 0.95 and not result.failed
    assert not about(result, "broken") | about(result, "suspect") | about(result, "mismatched")
    reduced(head, target)
    result = examined(head)
    assert result.verdict == "healthy" and 0.5 < result.first < 0.8


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [3, 5, 8]}, {"layers"}),
        ({"eagle_aux_hidden_state_layer_ids": None, "target_layer_ids": [0, 2, 5]}, {"layers"}),
        ({"norm_output": False}, {"norm_output", "norm_before_residual"}),  # either keeps the state small
    ],
    ids=["layers late", "layers early", "fed back raw"],
)
def test_a_head_that_is_read_wrongly_is_read_rightly_by_what_a_pair_file_carries(examined, head, config, fields):
    broken(head, config=config)
    result = examined(head)
    assert result.verdict == "misread" and result.better.override.keys() <= fields
    if "layers" in fields:
        assert list(result.better.override["layers"]) == [it - 1 for it in READ]
    again = examined(head, readings={"eagle3": dict(result.better.override)})
    assert again.verdict == "healthy" and again.first > 0.95
    assert json.dumps({"eagle3": result.better.override}) in report.text(report.of(result))


BROKEN = {
    "random embedding": ({"embed_tokens__weight": random(300, WIDTH)}, "", "the target's embedding"),
    "random head": ({"lm_head__weight": random(300, WIDTH)}, "", "the target's head"),
    "norm of zeros": ({"norm__weight": torch.zeros(WIDTH)}, "", "weights"),
    "norm of ones": ({"norm__weight": torch.ones(WIDTH)}, "", "norm"),
    "not a number": ({"midlayer__self_attn__o_proj__weight": torch.full((WIDTH, WIDTH), math.nan)}, "", "weights"),
    "no norm": ({}, "norm.weight", "norm.weight"),
    "no layer's norm": ({}, "midlayer.hidden_norm.weight", "hidden_norm"),
    "head cut without a map": ({"lm_head__weight": circles(300, -1)[:100]}, "", "no d2t says which"),
}


@pytest.mark.parametrize(("tensors", "drop", "named"), BROKEN.values(), ids=BROKEN)
def test_broken_weights_are_named(examined, target, head, tensors, drop, named):
    assert target.model.config.vocab_size == 300
    broken(head, drop, **tensors)
    result = examined(head)
    assert result.verdict == "broken" and result.failed
    assert named in report.text(report.of(result))


@pytest.mark.parametrize("how", ["shifted", "ids", "another's", "rows shifted"])
def test_a_wrong_map_of_the_draft_vocabulary_is_named(examined, target, head, how):
    ids, marks = reduced(head, target)
    offsets = ids - torch.arange(len(ids))
    other = torch.arange(300) % 3 != 1
    changed = {
        "shifted": {"d2t": offsets - 1, "t2d": marks},
        "ids": {"d2t": ids},
        "another's": {"t2d": other},
        "rows shifted": {"d2t": (offsets - 1).clamp(min=0), "t2d": other[torch.arange(300) - 300]},
    }[how]
    broken(head, **changed)
    result = examined(head)
    said = {"shifted": "shifted", "ids": "the target's ids", "another's": "disagree", "rows shifted": "shifted"}[how]
    assert result.verdict == "broken" and about(result, "broken") >= {"draft vocabulary"}
    assert said in " ".join(it.said for it in result.findings)


def test_a_head_for_another_target_is_mismatched(examined, head):
    whole = json.loads((head / "config.json").read_text())
    broken(head, config={"eagle_aux_hidden_state_layer_ids": [2, 16, 29]})
    result = examined(head)
    assert result.verdict == "mismatched" and about(result, "mismatched") == {"layers", "loading"}
    written(head, load_file(head / "model.safetensors"), whole | {"vocab_size": 512})
    assert examined(head).verdict == "mismatched"


def test_other_ids_in_its_tokenizer_are_a_mismatch(examined, target, head, tiny_tokenizer):
    tiny_tokenizer.save_pretrained(head)
    assert examined(head).verdict == "healthy"
    file = head / "tokenizer.json"
    data = json.loads(file.read_text())
    vocab = data["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    file.write_text(json.dumps(data))
    result = examined(head)
    assert result.verdict == "mismatched" and "2 tokens" in report.text(report.of(result))


def test_what_only_limits_a_head_is_no_accusation(examined, head):
    broken(head, config={"max_position_embeddings": 100, "num_hidden_layers": 8, "rope_theta": 5e5})
    result = examined(head)
    assert result.verdict == "healthy" and about(result, "note") == {"context", "layers", "rope"}


@pytest.fixture
def block(target: LoadedModel, tmp_path: Path) -> Path:
    """A DFlash drafter that is right about every token. Each slot attends to the position BLOCK before its own: the
    mask's embedding makes the query, what the middle layer adds the keys, and rotary embeddings make both meet there.
    The point found there is turned as far."""
    low, high = range(WIDTH // 2 - 1), range(WIDTH // 2, WIDTH - 1)  # the last circle gives way to the layer's mark
    kept = torch.zeros(WIDTH).index_fill(0, torch.tensor([*low, *high]), 1.0)
    mark = torch.zeros(WIDTH).index_fill(0, torch.tensor([WIDTH // 2 - 1]), 1.0)
    aside = target.model.model.layers[2].mlp.down_proj.bias
    marked = mark[:, None] * aside / aside.square().sum()
    size = WIDTH // 4  # of an attention head
    angles = BLOCK * 10_000.0 ** (-torch.arange(size // 2) / (size // 2))
    query, key = torch.cat([torch.ones(size // 2), torch.zeros(size // 2)]), torch.cat([angles.cos(), angles.sin()])
    state = {
        "fc.weight": torch.cat([kept.diag() - marked, marked, torch.zeros(WIDTH, WIDTH)], dim=1),
        "hidden_norm.weight": torch.full((WIDTH,), 1.02),
        "norm.weight": torch.full((WIDTH,), 1.01),
        "layers.0.input_layernorm.weight": torch.full((WIDTH,), 1.02),
        "layers.0.post_attention_layernorm.weight": torch.full((WIDTH,), 1.02),
        "layers.0.self_attn.q_norm.weight": torch.full((size,), 10.0),
        "layers.0.self_attn.k_norm.weight": torch.full((size,), 10.0),
        "layers.0.self_attn.q_proj.weight": query.repeat(4)[:, None] * circles(300)[MASK],
        "layers.0.self_attn.k_proj.weight": key.repeat(4)[:, None] * mark,
        "layers.0.self_attn.v_proj.weight": kept.diag(),
        "layers.0.self_attn.o_proj.weight": 20 * turning(300, BLOCK - 1),
        "layers.0.mlp.gate_proj.weight": torch.zeros(32, WIDTH),
        "layers.0.mlp.up_proj.weight": torch.zeros(32, WIDTH),
        "layers.0.mlp.down_proj.weight": torch.zeros(WIDTH, 32),
    }
    config = {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": WIDTH, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": size,
        "vocab_size": 300, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "num_target_layers": LAYERS, "block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": [1, 2, 6],
    }  # fmt: skip
    return written(tmp_path / "block", learned(state), config)


def test_a_right_block_is_healthy(examined, block):
    result = examined(block, "dflash")
    assert result.verdict == "healthy" and result.first > 0.9 and not result.failed
    assert not about(result, "broken") | about(result, "suspect") | about(result, "mismatched")


@pytest.mark.parametrize(
    ("config", "override"),
    [
        ({"sample_from_anchor": True}, {"from_anchor": False}),
        ({"target_layer_ids": [2, 3, 7]}, {"layers": [1, 2, 6]}),
        ({"target_layer_ids": [0, 1, 5]}, {"layers": [1, 2, 6]}),
        ({"mask_token_id": 65}, {"mask_token_id": MASK}),
    ],
    ids=["the anchor drafts", "layers late", "layers early", "another mask"],
)
def test_a_block_that_is_read_wrongly_is_read_rightly_by_what_a_pair_file_carries(examined, block, config, override):
    broken(block, config=config)
    result = examined(block, "dflash")
    assert result.verdict == "misread" and result.first < 0.5 and result.better.override == override
    assert about(result, "suspect") == ({"mask token"} if "mask_token_id" in config else set())
    again = examined(block, "dflash", readings={"dflash": dict(result.better.override)})
    assert again.verdict == "healthy" and again.first > 0.9


def test_a_drafter_made_for_answers_without_thinking_is_named(target, head, tmp_path):
    """It drafts the later half of the vocabulary alone, and so what follows the template's other end."""
    folder = shutil.copytree(target.name, tmp_path / "thinks")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.chat_template = "{{ messages[0].content }}{{ 'À' if enable_thinking is false else '!' }}"
    tokenizer.save_pretrained(folder)
    reduced(head, target, torch.arange(300) >= 150)
    pair = custom_pair(str(folder), str(head), "eagle3")
    options = DoctorOptions(prompts=("the waves",), max_new_tokens=60, lookahead=3)
    work, found = KIND.work(options, Decoders.of(pair))[0], []
    work({LOCAL: LocalBackend(ModelStore(), pair, "float32", "cpu")}, Watch(emit=found.append))
    (result,) = (event.result for event in found if isinstance(event, ResultReady))
    assert result.verdict == "misread" and result.first < 0.1 and result.prompts == ("the waves",)
    assert result.better.override == {"enable_thinking": False} and result.better.counts.tokens_per_pass > 3
    assert "without thinking" in report.text(report.of(result))
    fractions = [event.fraction for event in found if isinstance(event, Progress) and event.fraction]
    assert fractions == sorted(fractions)


def test_stopping_it_while_it_scores_is_no_failure(target, head, tmp_path):
    """A run whose work ends by itself was stopped; one that raises has failed."""
    pair = paired(target, head, "eagle3")
    work = KIND.work(ASKED, Decoders.of(pair))[0]
    watch = Watch(emit=lambda event: watch.stop() if "Scoring" in getattr(event, "label", "") else None)
    work = replace(work, record=str(tmp_path / "journal.jsonl"))
    work({LOCAL: LocalBackend(ModelStore(), pair, "float32", "cpu")}, watch)
    assert watch.stopped() and work.so_far() is None


def trained(target, folder, kind):
    """An MTP layer or parallel heads that turn the token's point as far as it takes."""
    vocab = target.model.config.vocab_size
    config = TrainedConfig(kind, "circles", WIDTH, vocab, vocab, 3)
    network = build(config, target, torch.arange(vocab))
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            if "norm" not in name:
                tensor.copy_(1e-4 * random(*tensor.shape))
        if kind == "heads":
            for head in range(3):
                network.heads.weight[head * WIDTH : (head + 1) * WIDTH, :WIDTH] += turning(vocab, head)
        else:
            network.proj.weight[:, :WIDTH] += torch.eye(WIDTH)
    save_trained(network, config, folder, "card")
    return folder


@pytest.mark.parametrize(
    ("accepted", "suspect", "verdict"),
    [
        (40, False, "collapsed"),
        (90, False, "unknown"),
        (200, False, "weak"),
        (200, True, "unknown"),
        (300, True, "healthy"),
    ],
)
def test_low_acceptance_is_weakness_only_well_above_chance(examined, head, accepted, suspect, verdict):
    counts = Counts((500,), (accepted,), (500,), (accepted,), 500, 500)
    findings = (Finding("suspect", "norms", "All norms are 1."),) if suspect else ()
    found = replace(examined(head), readings=(Scored("", {}, counts),), chance=0.07, findings=findings)
    assert (found.verdict, found.failed) == (verdict, verdict == "collapsed")
    said = report.text(report.of(found))
    assert ("more training" in said) == (verdict == "weak") and "another target" not in said


def test_another_rotary_base_needs_no_weight_of_a_packed_layer(target, head):
    network = load_eagle3(str(head), target, lambda step: None).network
    network.fc, before = torch.nn.Identity(), network.base.rotary_emb.inv_freq
    changed = read_as(network, {"rope_theta": 1_000_000.0})
    assert not torch.equal(network.base.rotary_emb.inv_freq, before)
    undo(changed)
    assert torch.equal(network.base.rotary_emb.inv_freq, before)


def test_a_diagnosis_is_a_file_and_a_report(examined, head):
    broken(head, config={"norm_output": False})
    result = examined(head)
    assert results.from_json(json.loads(json.dumps(results.to_json(result)))).verdict == "misread"
    for form in (".md", ".html", ".csv"):
        assert result.better.name in report.file(result, form)


def test_a_drafter_without_weights_cannot_be_examined():
    with pytest.raises(PlaygroundError, match="no weights"):
        KIND.work(ASKED, Decoders.of(custom_pair("t", None)))


@pytest.mark.parametrize("kind", ["mtp", "heads"])
def test_trained_drafters_are_healthy_and_random_ones_have_collapsed(examined, target, tmp_path, kind):
    folder = trained(target, tmp_path / kind, kind)
    result = examined(folder, kind)
    assert result.verdict == "healthy" and result.first > 0.95
    weights = {"mtp": "proj__weight", "heads": "heads__weight"}[kind]
    shape = load_file(folder / "model.safetensors")[weights.replace("__", ".")].shape
    broken(folder, **{weights: random(*shape)})
    result = examined(folder, kind)
    assert result.verdict == "collapsed" and result.failed and "Cause unknown" in report.text(report.of(result))
