"""The whole recipe: the target writes answers, a drafter learns from them, its folder is written with a model card.

work/answers-*.safetensors -> work/mtp-*.checkpoint -> out/config.json, model.safetensors, README.md

EAGLE-3 heads, DFlash and DSpark are written in the layout of speculators, MTP layers and heads in the playground's own,
assistants in transformers'.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedModel

from playground.errors import PlaygroundError, check
from playground.models.attention import decoder_of
from playground.models.device import device_name, has_bfloat16
from playground.models.load import Format, LoadedModel, load
from playground.models.networks.made_for import check_same_tokenizer
from playground.models.networks.mtp import MtpLayer
from playground.models.networks.trained import TrainedConfig, build, load_trained, save_trained
from playground.presets import folder_of, kind_of
from playground_distil import starts
from playground_distil.answers import Answer
from playground_distil.collect import collect, read, shards
from playground_distil.data import draft_vocabulary, load_answers
from playground_distil.published import BlockDrafter, BlockStudent, Eagle3Student, K, layer_config, mask_token, new_head
from playground_distil.speculators import drafted, published_state, save_speculators
from playground_distil.students import AssistantStudent, HeadsStudent, MtpStudent, Student
from playground_distil.train import Figures, Plan, train

# The number of positions ahead that are trained.
STEPS = {"mtp": 3, "heads": 4, "assistant": 1, "eagle3": 3, "dflash": K, "dspark": K}
PUBLISHED = ("eagle3", "dflash", "dspark")  # in the speculators layout, from several layers of the target
# Kinds to start from; the kinds that are missing here start from their own kind alone.
STARTS = {"eagle3": ("eagle3", "mtp"), "dflash": ("dflash", "mtp"), "dspark": ("dspark", "dflash", "mtp")}
FITTED = 256  # answers for the regression by which a drafter that starts from an MTP layer finds the last state
DRAFT_VOCABULARY = 8192
ASSISTANT: dict[str, Any] = dict(hidden_size=96, intermediate_size=384, num_hidden_layers=6, num_attention_heads=3)


def write_answers(target: LoadedModel, work: Path, tokens: int, batch: int, seed: int, texts: str = "") -> None:
    """Writes answers into `work`. `texts`: passages, separated by blank lines, for prompts that work on a text."""
    passages = [part for part in texts.split("\n\n") if part.strip()]
    layers = (*(i - 1 for i in layers_read(target.model.config)), -1)
    collect(target, work, tokens=tokens, layers=layers, batch=batch, seed=seed, passages=passages)


def layers_read(config: PretrainedConfig) -> tuple[int, ...]:
    """Returns the target's layers whose inputs EAGLE-3 and DFlash read; none for a target of fewer than 7 layers.
    Speculators' default is 2, n / 2 and n - 3 of n; the input of the last layer carries more information. The output of
    the last layer, n, is not available in all engines: llama.cpp lacks it for Llama, and SGLang for all models."""
    n = config.get_text_config(decoder=True).num_hidden_layers
    return (2, n // 2, n - 1) if n >= 7 else ()


def _watched(kind: str, config: PretrainedConfig) -> tuple[int, ...]:
    """Returns the layers whose hidden states a drafter reads, in the form of `Runner.watch`."""
    return tuple(i - 1 for i in layers_read(config)) if kind in PUBLISHED else (-1,)


def train_drafter(
    kind: str,
    target: LoadedModel,
    work: Path,
    out: Path,
    plan: Plan,
    *,
    vocabulary: int = DRAFT_VOCABULARY,
    start_from: Sequence[str] = (),
) -> list[Figures]:
    """Trains a drafter on the answers in `work` and writes it to `out`. Continues from a checkpoint if there is one.

    `start_from`: trained drafters of the same kind. Training continues from the mean of their weights, with the draft
    vocabulary of these answers: runs that started from the same weights and saw different answers are better together
    than each alone (Wortsman et al. 2022, "Model soups"). The kinds in PUBLISHED use the first one's draft vocabulary,
    and start from other kinds too (STARTS), as far as their weights are alike.

    Returns the held-out figures, one line an evaluation.

    Raises:
        PlaygroundError: there are too few answers, no such drafter can be made for this target, or one of `start_from`
            is of another kind or for another target.
    """
    check_start(kind, start_from)
    target.model.requires_grad_(False)
    text_config = target.model.config.get_text_config(decoder=True)
    published, watched = kind in PUBLISHED, _watched(kind, target.model.config)
    check(
        bool(watched),
        f"A drafter of the kind {kind} reads three layers of a target of at least 7; {target.name} has "
        f"{text_config.num_hidden_layers}. Train mtp, heads or an assistant.",
    )
    answers, held_out = load_answers(work, watched)
    begun = [published_state(name) for name in start_from] if published else []
    chosen = drafted(begun[0]) if begun else draft_vocabulary(answers, text_config.vocab_size, vocabulary)
    draft_ids = chosen.to(target.model.device)
    config = TrainedConfig(
        kind=kind,
        target=target.name,
        hidden_size=text_config.hidden_size,
        vocab_size=text_config.vocab_size,
        draft_vocabulary=len(draft_ids),
        steps=STEPS[kind],
    )
    torch.manual_seed(plan.seed)
    if published:
        student: Student = _published_student(kind, target, draft_ids, answers, begun, work)
    else:
        student = _student(kind, config, target, draft_ids, start_from)
    checkpoint = _checkpoint(kind, work, plan, start_from)
    print(f"Watch the training in {checkpoint.with_suffix('.html')}")
    log = train(student, answers, held_out, plan, checkpoint)
    text = card(config, student.module, target, answers, plan, log, start_from)
    if isinstance(student, AssistantStudent):
        save_assistant(student.module, target, out, text)
    elif isinstance(student, Eagle3Student | BlockStudent):
        save_speculators(out, student.config_json(target), student.state(), text)
    else:
        save_trained(student.module, config, out, text)
    return log


def check_start(kind: str, start_from: Sequence[str]) -> None:
    """Checks `start_from` as far as possible without a target, before hours are spent on answers.

    Raises:
        PlaygroundError: one of the drafters is of another kind.
    """
    # An assistant's folder does not say what it is.
    named = (None,) if kind == "assistant" else STARTS.get(kind, (kind,))
    for name in start_from:
        if kind_of(name) not in named:
            raise PlaygroundError(
                f"{name} is no drafter of the kind {kind}. Name the folder of one, or leave --start-from out."
            )


def _checkpoint(kind: str, work: Path, plan: Plan, start_from: Sequence[str]) -> Path:
    """Returns the checkpoint's path. Its name contains a hash of the run's starting point, so that a run never
    continues another run's checkpoint."""
    began = [kind, *(str(folder_of(name).resolve()) for name in start_from)]
    began += [str(value) for value in (plan.seed, plan.batch, plan.learning_rate, plan.weight_decay)]
    return work / f"{kind}-{hashlib.sha256(chr(0).join(began).encode()).hexdigest()[:8]}.checkpoint"


def save_assistant(model: PreTrainedModel, target: LoadedModel, folder: Path, text: str) -> None:
    """Writes an assistant in transformers' layout; in shards, so that no file is over 10 MB."""
    bf16 = model.to(torch.bfloat16)  # type: ignore[arg-type]  # its decorator hides `self`
    bf16.save_pretrained(folder, max_shard_size="9900KB")
    target.tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _student(
    kind: str, config: TrainedConfig, target: LoadedModel, draft_ids: torch.Tensor, start_from: Sequence[str]
) -> Student:
    if kind == "assistant":
        return AssistantStudent(_begun_assistant(target, start_from) if start_from else _new_assistant(config, target))
    if kind == "mtp" and not hasattr(decoder_of(target.model), "norm"):
        raise PlaygroundError(
            f"{target.name} ({target.model.config.model_type}) has no final norm where Llama and its like have it, and "
            "an MTP layer starts from that. Train heads or an assistant."
        )
    network = build(config, target, draft_ids)
    if start_from:
        begun = [_weights(load_trained(name, target, lambda step: None).network) for name in start_from]
        network.load_state_dict({**_mean(begun), "draft_ids": draft_ids})
    elif isinstance(network, MtpLayer):
        network.start_from(target.model)
    return MtpStudent(network, config.steps) if isinstance(network, MtpLayer) else HeadsStudent(network)


def _published_student(
    kind: str,
    target: LoadedModel,
    draft_ids: Tensor,
    answers: Sequence[Answer],
    begun: Sequence[Mapping[str, Tensor]],
    work: Path,
) -> Eagle3Student | BlockStudent:
    inputs = layers_read(target.model.config)
    if kind == "eagle3":
        student: Eagle3Student | BlockStudent = Eagle3Student(new_head(target, draft_ids, inputs), STEPS[kind])
    else:
        seen = torch.bincount(torch.cat([answer.ids for answer in answers]), minlength=len(target.tokenizer))
        student = BlockStudent(BlockDrafter(kind, target, draft_ids, inputs, mask_token(target, seen)))
    if begun:
        mean = _mean(begun)
        if "proj.weight" in mean:
            _check_mtp(kind, target, mean)
            layers = (*_watched(kind, target.model.config), -1)
            fitted = list(itertools.islice(read(shards(work)[1], layers), FITTED))
            if isinstance(student, Eagle3Student):
                starts.start_head_from_mtp(student.module, mean, fitted)
            else:
                starts.start_blocks_from_mtp(student.module, mean, fitted)
        else:
            try:
                student.begin(mean)
            except RuntimeError:
                raise PlaygroundError(
                    f"The drafter to start from has weights of other shapes than a {kind} for {target.name} has: it is "
                    "for another target, or of an older form. Leave --start-from out."
                ) from None
    return student


def _check_mtp(kind: str, target: LoadedModel, mtp: Mapping[str, Tensor]) -> None:
    """Checks that a drafter of this kind can start from an MTP layer.

    Raises:
        PlaygroundError: the layer's shape does not allow it.
    """
    shape = layer_config(target.model)
    heads, width = shape["num_attention_heads"] * shape["head_dim"], shape["hidden_size"]
    if heads != width or "base.layers.0.mlp.gate_proj.weight" not in mtp or mtp["base.norm.weight"].shape != (width,):
        raise PlaygroundError(
            f"A drafter of the kind {kind} cannot start from this MTP layer: it takes attention heads as wide together "
            "as the target, and a gated feed-forward network. Leave --start-from out."
        )


def _new_assistant(config: TrainedConfig, target: LoadedModel) -> LlamaForCausalLM:
    special = target.model.generation_config
    shape = LlamaConfig(
        **ASSISTANT,
        vocab_size=config.vocab_size,
        tie_word_embeddings=True,
        max_position_embeddings=target.model.config.max_position_embeddings,
        bos_token_id=special.bos_token_id,
        eos_token_id=special.eos_token_id,
        pad_token_id=special.pad_token_id,
    )
    return LlamaForCausalLM(shape).to(target.model.device)  # type: ignore[arg-type]  # its decorator hides `self`


def _begun_assistant(target: LoadedModel, names: Sequence[str]) -> PreTrainedModel:
    begun = [load(name, Format(torch.float32, target.model.device), lambda step: None) for name in names]
    for assistant in begun:
        check_same_tokenizer(target, assistant)
    model = begun[0].model
    model.load_state_dict(_mean([_weights(assistant.model) for assistant in begun]))
    return model


def _mean(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the mean of the drafters' tensors, by name.

    Raises:
        PlaygroundError: they have different shapes.
    """
    shapes = [{name: tensor.shape for name, tensor in each.items()} for each in states]
    check(all(it == shapes[0] for it in shapes), "The drafters to start from have different shapes. Name one.")
    return {name: torch.stack([each[name].float() for each in states]).mean(0) for name in states[0]}


def _weights(network: nn.Module) -> dict[str, Tensor]:
    return dict(network.named_parameters(remove_duplicate=False))


WHAT = {  # the first paragraph of a model card
    "mtp": "A multi-token prediction layer: one transformer layer that drafts recursively from the target's last\n"
    "hidden state and the last token's embedding. Embedding and head are the target's.",
    "heads": "Parallel heads: several future tokens from one pass over the target's last hidden state and the last\n"
    "token's embedding. Embedding and head are the target's.",
    "eagle3": "An EAGLE-3 head: one transformer layer that reads three layers of the target and drafts recursively.\n"
    "Embedding and head are the target's; of the head the rows of a reduced vocabulary lie here. Layout: speculators.",
    "dflash": "DFlash: two transformer layers that read three layers of the target and draft a block of tokens in one\n"
    "pass. Embedding and head are the target's; of the head the rows of a reduced vocabulary lie here. Layout:\n"
    "speculators.",
    "dspark": "DSpark: two layers of DFlash, a Markov head and a confidence head. Embedding and head are\n"
    "the target's; of the head the rows of a reduced vocabulary lie here. Layout: speculators.",
    "assistant": "A small Llama with the target's tokenizer, for `generate(assistant_model=…)` too.",
}


def card(
    config: TrainedConfig,
    module: nn.Module,
    target: LoadedModel,
    answers: Sequence[Answer],
    plan: Plan,
    log: Sequence[Figures],
    start_from: Sequence[str],
) -> str:
    parameters = sum(parameter.numel() for parameter in module.parameters())
    written = sum(len(answer.ids) - answer.prompt_length for answer in answers)
    last = log[-1]
    accepted = ", ".join(f"{x:.3f}" for x in last["accepted"])
    products = " with bfloat16 products" if has_bfloat16(target.model.device) else ""
    begun = ", ".join(Path(name).name for name in start_from)
    before = f"- Started from: {begun}; where there are several, from the mean of their weights.\n" if begun else ""
    prompts = (
        "Of prompts it learned the target's hidden states, no more; nothing" if config.kind == "mtp" else "Nothing"
    )
    training = (
        f"{last['tokens']:,} tokens, answers seen {last['tokens'] / written:.1f} times; Muon and AdamW, learning\n"
        f"  rate {plan.learning_rate:g} with a cosine, {plan.batch} tokens a step, seed {plan.seed}."
        if plan.tokens
        else "none. The answers served to set the weights, where it started from another kind, and to measure it."
    )
    return f"""---
license: apache-2.0
tags: [speculative-decoding, {config.kind}]
---

# {config.kind} for {config.target}

{WHAT[config.kind]}

- Parameters: {parameters / 1e6:.2f} million, trained in float32{products}, stored in bfloat16.
{before}- Learned from: {len(answers):,} answers, {written:,} tokens, that {config.target} ({target.weights})
  wrote, half of them greedily, to questions that it asked itself and to prompts made from the templates in
  `presets/distil/prompts.yaml`. Some of those give it texts to work on: earlier answers or, where `--texts`
  named some, passages by others, neighbours joined to up to 3,600 characters.
  {prompts} was learned from another model.
- Training: {training}
- Cost: {last["seconds"] / 3600:.2f} hours of training on {device_name(target.model.device)}, the writing not counted.
- Held out: greedy drafts that are accepted up to each position ahead, by the target's own choices: {accepted};
  {last["mean_accepted_length"]:.2f} tokens per check if a round began at every position.
- Licence: Apache-2.0, as the target's.
"""
