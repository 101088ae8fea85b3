"""Tiny models of random weights, through transformers' real classes in float32, and runs on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import nn
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from playground.decoding.drafters.base import Drafter
from playground.decoding.drafters.branches import Branches, ChainDrafter
from playground.decoding.drafters.build import build_drafter
from playground.decoding.drafters.gemma4 import Gemma4Branches
from playground.decoding.drafters.mtp import Eagle3Branches
from playground.decoding.drafters.mtp import branches as mtp_branches
from playground.decoding.drafters.parallel import DFlashBranches, HeadsBranches, MedusaBranches, PEagleBranches
from playground.decoding.drafters.tree import SampledTreeDrafter, TreeDrafter
from playground.decoding.drafters.walked import WalkedBranches
from playground.decoding.lookahead import Lookahead
from playground.decoding.loop import decode
from playground.decoding.runners.base import Runner
from playground.decoding.runners.eager import EagerRunner, seam
from playground.decoding.runners.graphs import Graphs
from playground.decoding.sampling import Sampler
from playground.decoding.text import Detokenizer
from playground.decoding.verify import Rule, decide
from playground.lane import Lane, Request
from playground.models.networks.dflash import DFlash
from playground.models.networks.dflash2 import DFlash2
from playground.models.networks.domino import Domino
from playground.models.networks.dspark import DSpark
from playground.models.networks.eagle3 import Eagle3Head, PEagleHead
from playground.models.networks.gemma4 import Gemma4Assistant
from playground.models.networks.heads import MedusaHeads, ParallelHeads
from playground.models.store import LoadedPair
from playground.trace import Round
from tests.decoding.fakes import GREEDY, NumberTokenizer

NewDrafter = Callable[[EagerRunner], Drafter]

V, TOKENS = 40, 16  # what a run writes where a test asks for no other number; longer texts find no other faults
SIZES = dict(vocab_size=V, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2)
ENDS = dict(eos_token_id=V - 1, bos_token_id=0, pad_token_id=0)


def llama(seed: int, layers: int):
    torch.manual_seed(seed)
    config = LlamaConfig(**SIZES, **ENDS, num_hidden_layers=layers, initializer_range=0.4)
    return LlamaForCausalLM(config).eval()


def gemma(seed: int, layers: int):
    """A sliding-window model whose window (6) is far shorter than the texts here."""
    torch.manual_seed(seed)
    config = Gemma3TextConfig(
        **SIZES,
        **ENDS,
        head_dim=8,
        num_hidden_layers=layers,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"] * (layers // 2) + ["sliding_attention"] * (layers % 2),
        query_pre_attn_scalar=8,
        initializer_range=0.4,
    )
    return Gemma3ForCausalLM(config).eval()


def deepseek(seed: int, layers: int):
    """Multi-head latent attention, and a mixture of experts in each layer but the first."""
    torch.manual_seed(seed)
    config = DeepseekV3Config(
        **SIZES | dict(num_key_value_heads=4),
        **ENDS,
        kv_lora_rank=8,
        q_lora_rank=12,
        qk_rope_head_dim=4,
        v_head_dim=6,
        qk_nope_head_dim=8,
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        num_hidden_layers=layers,
        initializer_range=0.4,
    )
    return DeepseekV3ForCausalLM(config).eval()


FAMILIES = {"llama": llama, "gemma": gemma, "deepseek": deepseek}


def prompts(n: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 20, (n,), generator=generator).tolist()
    return [torch.randint(1, V - 1, (length,), generator=generator).tolist() for length in lengths]


def generated(
    model: PreTrainedModel, prompt: Sequence[int], max_new_tokens: int = TOKENS, **options: object
) -> list[int]:
    """What transformers' own `generate()` writes, greedily. Without options it is asked once for each model and prompt:
    the weights must not change between."""
    if options:
        return _generated(model, prompt, max_new_tokens, **options)
    known = _known.setdefault(model, {})
    key = tuple(prompt), max_new_tokens
    if key not in known:
        known[key] = _generated(model, prompt, max_new_tokens)
    return list(known[key])


_known: WeakKeyDictionary[PreTrainedModel, dict[tuple, list[int]]] = WeakKeyDictionary()


def _generated(model: PreTrainedModel, prompt: Sequence[int], max_new_tokens: int, **options: object) -> list[int]:
    ids = torch.tensor([prompt])
    options |= dict(max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=V - 1)
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist()


def rounds_of(*args: Any, **options: Any) -> list[Round]:
    return list(begun(*args, **options))


def begun(
    model: PreTrainedModel,
    new_drafter: NewDrafter,
    prompt: Sequence[int],
    lookahead: int = 4,
    max_new_tokens: int = TOKENS,
    ends: Collection[int] = frozenset({V - 1}),
    graphs: Graphs | None = None,
    rule: Rule = decide,
    **sampling: float,
) -> Iterator[Round]:
    target, sampler = EagerRunner(model), Sampler(Request("x", **sampling), model.device, prompt, graphs=graphs)
    drafter, detokenizer = new_drafter(target), Detokenizer(NumberTokenizer(), prompt)
    options = dict(seam=seam(model.config), rule=rule)
    return decode(target, drafter, Lookahead(lookahead), sampler, detokenizer, prompt, max_new_tokens, ends, **options)


def ids_of(rounds: Sequence[Round]) -> list[int]:
    return [token.id for round_ in rounds for token in round_.tokens]


def keys_read(monkeypatch: pytest.MonkeyPatch, runner: Runner, tokens: int) -> set[int]:
    """How many keys attention reads in a pass over two tokens that follow `tokens` others; one number for each length
    that a layer reads."""
    runner.forward([1] * tokens, keep=1)
    runner.commit(tokens)
    read, attend = set(), torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda query, key, *args, **kwargs: read.add(key.shape[2]) or attend(query, key, *args, **kwargs),
    )
    runner.forward([2, 3], keep=1)
    return read


# What grows drafts with each kind of network, beside MTP layers.
BRANCHES = {
    ParallelHeads: HeadsBranches,
    MedusaHeads: MedusaBranches,
    DFlash: DFlashBranches,
    DSpark: WalkedBranches,
    DFlash2: WalkedBranches,
    Domino: WalkedBranches,
    Eagle3Head: Eagle3Branches,
    PEagleHead: PEagleBranches,
    Gemma4Assistant: Gemma4Branches,
}


def branches_over(network: nn.Module, target: EagerRunner) -> Branches:
    return BRANCHES.get(type(network), mtp_branches)(network, target)


def over(network: nn.Module, way: str = "chain") -> NewDrafter:
    """A chain, a tree or a sampled tree of what the network grows."""

    def new_drafter(target: EagerRunner) -> Drafter:
        branches = branches_over(network, target)
        if way == "tree":
            return TreeDrafter(branches, 12, {V - 1})
        if way == "sampled tree":
            return SampledTreeDrafter(branches, 12, {V - 1}, 4, vocab_size=target.vocab_size)
        return ChainDrafter(branches, target.vocab_size, {V - 1})

    return new_drafter


def built(models: LoadedPair, way: str, **lane: int) -> NewDrafter:
    """As the project builds it for a lane."""
    return lambda target: build_drafter(models, Lane(way, "big", way, **lane), target)


def leaves_no_state(
    model: PreTrainedModel,
    new_drafter: NewDrafter,
    text: Sequence[int],
    rounds: Sequence[tuple[int, int]],
    first: int = 3,
) -> None:
    """Asserts that after any number of rounds the draft is that of a drafter which sees the text for the first time,
    and the target's pass what it is without drafts.

    Args:
        rounds: for each the depth of its draft, 0 for none, and the committed length after it.
        first: the length of the prompt.
    """

    def begun(length: int) -> tuple[EagerRunner, Drafter]:
        target = EagerRunner(model)
        drafter = new_drafter(target)
        target.forward(text[:length], keep=1)
        target.commit(length)
        drafter.commit(length)
        return target, drafter

    target, drafter = begun(first)
    for depth, length in rounds:
        known = target.length + 1
        if depth:
            draft, wanted = (each.propose(text[:known], depth, 0.0, GREEDY) for each in (drafter, begun(known - 1)[1]))
            assert draft.ids == wanted.ids
            assert draft.q == pytest.approx(wanted.q, rel=1e-3)
        logits = target.forward(text[known - 1 : known + 5], keep=1)
        torch.testing.assert_close(logits, EagerRunner(model).forward(text[: known + 5], keep=1), rtol=1e-3, atol=1e-4)
        target.commit(length)
        drafter.commit(length)
