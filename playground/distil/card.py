"""The model card of a trained drafter: what it is, what it learned from, how far it got, what that cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from playground.distil.answers import Answer
from playground.distil.train import Figures, Plan
from playground.models.device import device_name, has_bfloat16
from playground.models.load import LoadedModel
from playground.models.networks.trained import TrainedConfig

WHAT = {
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
  {last["mean_accepted_length"]:.2f} tokens per pass of the target.
- Licence: Apache-2.0, as the target's.
"""
