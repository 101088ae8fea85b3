"""Commands of other engines for a drafter, one function an engine, and which layouts of published drafters each reads.

Options change from version to version, so each function names the version it was written for. What an engine cannot do
is reported, never silently replaced. Names come from traces, which may come from anywhere: they are quoted for shell
and Python.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from playground.drafting_methods import MATCHED, METHODS
from playground.lane import Lane, Request, verified_by
from playground.presets import NATIVE

STARTER = "HuggingFaceTB/SmolLM2-135M-Instruct"  # the starter's name on the hub
SHIPPED = "starter-"  # prefix of the drafters that ship with the playground
READ_BY = {  # by layout and kind: the engines whose loaders read it, according to their sources
    ("speculators", "eagle3"): ("vLLM", "llama-server"),
    ("speculators", "dflash"): ("vLLM",),
    ("speculators", "dspark"): ("vLLM", "llama-server"),
    ("z-lab", "dflash"): ("vLLM", "SGLang", "llama-server"),
    ("speculators", "assistant"): ("vLLM", "SGLang", "llama-server"),
}
ONLY_HERE = {  # the playground's own formats, which have no counterpart in an engine
    "heads": "Parallel heads are trained in a format that only this playground reads.",
    "mtp": "This MTP layer is in a format of the playground's own; engines read those in checkpoints.",
}


PENALTIES = ("presence_penalty", "frequency_penalty")
SGLANG_BLOCKS = ("eagle3", "mtp", "dflash")  # on CUDA and ROCm
MIXED = ("composite", "adaptive")  # a lookup and the tree of a network
# llama-server's names, and the sizes of its lookup ngram-mod. Of several types the first that finds a draft gives it.
LLAMA_DRAFTS = {
    "assistant": "draft-simple",
    "mtp": "draft-mtp",
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
    "dflash2": "draft-dflash",
    "dspark": "draft-dspark",
}
NGRAM_MOD = "--spec-ngram-mod-n-match 24 --spec-ngram-mod-n-min 48 --spec-ngram-mod-n-max 64"
# Policies of the lookahead that an engine has besides a constant one, and the methods for which it has them.
POLICIES = {"transformers": (("heuristic", "confidence"), ("assistant", "gemma4", "universal", "early-exit"))}
FIRST = "It copies from the first earlier match, where the lane copied from the last."


class CannotError(Exception):
    """The engine does not decode this way; the message says why."""


@dataclass(frozen=True)
class Wanted:
    """A lane, in the terms that engines share. `method`: the drafting method; for a tree, that of its network. `model`:
    the drafter's id or folder or, for early exit, a number of layers. `request`: the request that was measured; None
    where there was more than one."""

    target: str
    method: str
    model: str
    lane: Lane
    request: Request | None = None

    @property
    def k(self) -> int:
        """The lookahead."""
        return self.lane.lookahead

    @property
    def tree(self) -> bool:
        """True where the lane drafts a tree."""
        return METHODS[self.lane.drafter].tree


class Written(NamedTuple):
    """A command. `differs`: how it drafts otherwise than the lane, so that the lane's speed-up is not its own; "" where
    it drafts as the lane does. `note`: what else there is to know."""

    text: str
    differs: str = ""
    note: str = ""


def hub_name(name: str) -> str:
    """Return the starter's name on the hub; other names as they are."""
    return STARTER if name == "starter" else name


def check_known(wanted: Wanted, engine: str) -> None:
    """Raise CannotError for drafting methods that the engine is not known to have."""
    if wanted.lane.drafter in MIXED and engine != "llama-server":
        raise CannotError(f"{engine} is not known to combine a lookup with a draft.")
    if wanted.method == "grammar":
        raise CannotError("The engines have no drafter for what a grammar forces.")
    if wanted.method in ONLY_HERE and wanted.model != NATIVE:
        raise CannotError(ONLY_HERE[wanted.method])
    if not wanted.method:
        raise CannotError("The trace does not say what kind of network drafted the tree.")


def as_exported(lane: Lane, engine: str, lookahead: int) -> Lane:
    """Return the lane as an engine drafts it: with this constant lookahead, unless it has the lane's policy."""
    if lane.drafter == "none" or (METHODS[lane.drafter].tree and lane.drafter not in MIXED):
        return lane
    policies, methods = POLICIES.get(engine, ((), ()))
    if lane.policy in policies and lane.drafter in methods:
        return lane
    return replace(lane, policy="constant", lookahead=lookahead)


def export_command(wanted: Wanted, engine: str) -> str:
    """Return the command that exports a drafter of ours into the folder of its name, in a layout that the engine reads;
    "" for other drafters.

    Raises:
        CannotError: the engine reads none of its layouts.
    """
    kind, name = wanted.method, wanted.model
    readers = READ_BY.get(("speculators", kind), ())
    if not name.startswith(SHIPPED) or not readers:
        return ""
    command = f"python -m playground export-drafter {shlex.quote(name)} --out {shlex.quote(name)}"
    if kind == "assistant" or engine in readers:
        return command
    if engine not in READ_BY.get(("z-lab", kind), ()):
        raise CannotError(f"It is not known to read {METHODS[kind].label} in the layout of speculators.")
    return f"{command} --layout z-lab"


def sent_with_each(engine: str, request: Request | None) -> str:
    """Return one sentence on the request's penalties and stops, which the engine's command does not set; "" without
    any. Engines that serve take them with each request, in OpenAI's fields."""
    if request is None:
        return ""
    penalties = {name: value for name in PENALTIES if (value := getattr(request, name))}
    fields = {**penalties, **({"stop": request.stops} if request.stops else {})}
    lacks = {"transformers": penalties, "mlx-lm": fields}.get(engine)
    if lacks is None:
        return f"Send with each request: {json.dumps(fields)[1:-1]}." if fields else ""
    return f"It has no setting for {' and '.join(lacks)}." if lacks else ""


def _in_blocks(wanted: Wanted) -> bool:
    return verified_by(wanted.lane) == "block"


def _transformers(wanted: Wanted) -> Written:
    if wanted.tree:
        raise CannotError("transformers drafts chains only.")
    k, draft = wanted.k, f"drafter = AutoModelForCausalLM.from_pretrained({wanted.model!r})"
    policy = {
        "num_assistant_tokens": k,
        "num_assistant_tokens_schedule": "heuristic" if wanted.lane.policy == "heuristic" else "constant",
        "assistant_confidence_threshold": wanted.lane.confidence_threshold
        if wanted.lane.policy == "confidence"
        else 0.0,
    }
    dynamic = [draft, *_configured("drafter", policy)]
    ways: dict[str, tuple[list[str], str]] = {
        "none": ([], ""),
        "ngram": ([], f"prompt_lookup_num_tokens={k}, max_matching_ngram_size={MATCHED[0]}"),
        "assistant": (dynamic, "assistant_model=drafter"),
        "gemma4": (dynamic, "assistant_model=drafter"),
        "universal": (
            [*dynamic, f"drafter_tokenizer = AutoTokenizer.from_pretrained({wanted.model!r})"],
            "assistant_model=drafter, tokenizer=tokenizer, assistant_tokenizer=drafter_tokenizer",
        ),
        "dflash": ([draft], 'assistant_model=drafter, speculation_type="dflash"'),
        "early-exit": (_configured("model", policy), f"assistant_early_exit={wanted.model}"),
        "mtp": ([], "use_mtp=True"),
    }
    if wanted.method not in ways:
        raise CannotError(f"transformers has no {METHODS[wanted.method].label}.")
    if wanted.method == "dflash" and "muse-glimmer" not in wanted.model.lower():
        raise CannotError("transformers loads DFlash drafters of its own class alone, Muse Glimmer's.")
    before, options = ways[wanted.method]
    if wanted.request and wanted.request.stops:
        with_text = "" if "tokenizer=tokenizer" in options else "tokenizer=tokenizer"
        options = ", ".join(filter(None, [options, f"stop_strings={[*wanted.request.stops]!r}", with_text]))
    lines = [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({wanted.target!r})",
        f'model = AutoModelForCausalLM.from_pretrained({wanted.target!r}, dtype="auto", device_map="auto")',
        *before,
        'inputs = tokenizer("Your prompt", return_tensors="pt").to(model.device)',
        f"output = model.generate(**inputs, max_new_tokens=128{', ' + options if options else ''})",
        "print(tokenizer.decode(output[0], skip_special_tokens=True))",
    ]
    depth = {"mtp": "transformers drafts one token per MTP layer", "dflash": "transformers drafts whole blocks"}
    return Written("\n".join(lines), depth.get(wanted.method, ""), FIRST if wanted.method == "ngram" else "")


def _configured(name: str, policy: Mapping[str, object]) -> list[str]:
    return [f"{name}.generation_config.{option} = {value!r}" for option, value in policy.items()]


def _vllm(wanted: Wanted) -> Written:
    if wanted.tree:
        raise CannotError("vLLM drafts chains only.")
    alone = ("ngram", "suffix", "mtp")  # without a model of their own
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "ngram": ("ngram", {"prompt_lookup_min": MATCHED[1], "prompt_lookup_max": MATCHED[0]}),
        "assistant": ("draft_model", {}),
        "universal": ("draft_model", {"use_heterogeneous_vocab": True}),
        "pard": ("draft_model", {"parallel_drafting": True}),
        "peagle": ("eagle3", {"parallel_drafting": True}),
        "gemma4": ("mtp", {}),
        **{name: (name, {}) for name in ("suffix", "mtp", "eagle3", "dflash", "dspark", "medusa")},
    }
    config, note = dict[str, Any](), ""
    if wanted.method != "none":
        if wanted.method not in ways:
            raise CannotError(f"vLLM has no {METHODS[wanted.method].label}.")
        method, more = ways[wanted.method]
        model = {} if wanted.method in alone else {"model": wanted.model}
        config = {"method": method, **model, "num_speculative_tokens": wanted.k, **more}
    if _in_blocks(wanted):
        config |= {"rejection_sample_method": "block", "draft_sample_method": "probabilistic"}
        note = "Block verification is in vLLM's V2 runner alone; others, its CPU build too, verify token by token."
    option = f" --speculative-config {shlex.quote(json.dumps(config))}" if config else ""
    own = "vLLM itself chooses the length of a suffix draft, up to this number" if wanted.method == "suffix" else ""
    note = FIRST if wanted.method == "ngram" else note
    return Written(f"vllm serve {shlex.quote(wanted.target)}{option}", own, note)


def _sglang(wanted: Wanted) -> Written:
    k, model = wanted.k, f" --speculative-draft-model-path {shlex.quote(wanted.model)}"
    # Each step drafts the `topk` best continuations of every branch; the best `num-draft-tokens` are verified.
    topk, nodes = (8, wanted.lane.nodes) if wanted.tree else (1, k + 1)
    steps = f" --speculative-num-steps {k} --speculative-eagle-topk {topk} --speculative-num-draft-tokens {nodes}"
    ways = {
        "none": "",
        "ngram": f" --speculative-algorithm NGRAM --speculative-num-draft-tokens {k}",
        "assistant": f" --speculative-algorithm STANDALONE{model}{steps}",
        "eagle3": f" --speculative-algorithm EAGLE3{model}{steps}",
        "mtp": f" --speculative-algorithm EAGLE{steps}",
        "dflash": f" --speculative-algorithm DFLASH{model}",
        "domino": f" --speculative-algorithm DFLASH{model}",  # since 0.5.20; sglang 36899, 37069
    }
    if wanted.method not in ways or (wanted.tree and "DFLASH" in ways[wanted.method]):
        raise CannotError(f"SGLang does not draft so with {METHODS[wanted.method].label}.")
    own = {
        "ngram": "SGLang looks up matches of any length in the text of all requests, and drafts a tree of them",
        "dflash": "SGLang drafts whole blocks",
        "domino": "SGLang drafts whole blocks",
    }
    differs = "SGLang grows a tree by a fixed width per step" if wanted.tree else own.get(wanted.method, "")
    block = " --speculative-use-block-verification" if _in_blocks(wanted) and wanted.method in SGLANG_BLOCKS else ""
    text = f"python -m sglang.launch_server --model-path {shlex.quote(wanted.target)}{ways[wanted.method]}{block}"
    return Written(text, differs)


def _llama_server(wanted: Wanted) -> Written:
    mixed, draft = wanted.lane.drafter in MIXED, LLAMA_DRAFTS.get(wanted.method, "")
    if wanted.tree and not mixed:
        raise CannotError("llama-server drafts chains only.")
    if not draft and (mixed or wanted.method not in ("none", "ngram")):
        raise CannotError(f"llama-server has no {METHODS[wanted.method].label}.")
    differs, options = "", ""
    if draft:
        read = "" if draft == "draft-mtp" else " -md DRAFTER.gguf"
        options = f" --spec-type {draft}{read} --spec-draft-n-max {wanted.k}"
    elif wanted.method == "ngram":
        options = (
            f" --spec-type ngram-simple --spec-ngram-simple-size-n {MATCHED[0]} --spec-ngram-simple-size-m {wanted.k}"
        )
        differs = f"llama-server matches exactly {MATCHED[0]} tokens, where the lane matches {_span(MATCHED)}"
    if mixed:
        options = options.replace(draft, f"ngram-mod,{draft} {NGRAM_MOD}", 1)
        differs = (
            f"llama-server tries the lookup ngram-mod, then {METHODS[wanted.method].label}, both as chains, where the "
            "lane drafts a tree"
        )
    drafter = f", DRAFTER.gguf {wanted.model}" if "DRAFTER" in options else ""
    note = f"MODEL.gguf is {wanted.target}{drafter}, converted by llama.cpp's convert_hf_to_gguf.py."
    return Written(f"llama-server -m MODEL.gguf{options}", differs, note)


def _span(ends: tuple[int, int]) -> str:
    return f"{ends[0]} to {ends[1]}"


def _tensorrt(wanted: Wanted) -> Written:
    if wanted.tree:
        raise CannotError("These options of TensorRT-LLM draft chains.")
    names = {"ngram": "NGram", "assistant": "DraftTarget", "eagle3": "Eagle3", "mtp": "MTP", "dflash": "DFlash"}
    if wanted.method not in names:
        raise CannotError(f"TensorRT-LLM has no {METHODS[wanted.method].label}, or needs no setting for it.")
    lines = ["speculative_config:", f"  decoding_type: {names[wanted.method]}", f"  max_draft_len: {wanted.k}"]
    if wanted.method in ("assistant", "eagle3", "dflash"):
        lines.append(f"  speculative_model: {json.dumps(wanted.model)}")  # a JSON string is a YAML string
    if wanted.method == "ngram":  # the last match, in the request's own text
        lines += [f"  max_matching_ngram_size: {MATCHED[0]}", "  is_use_oldest: false", "  is_public_pool: false"]
    return Written("\n".join(lines))


def _mlx(wanted: Wanted) -> Written:
    if wanted.method not in ("assistant", "none") or wanted.tree:
        raise CannotError("mlx-lm drafts with a draft model only.")
    draft = (
        f" --draft-model {shlex.quote(wanted.model)} --num-draft-tokens {wanted.k}" if wanted.method != "none" else ""
    )
    return Written(f'mlx_lm.generate --model {shlex.quote(wanted.target)}{draft} --prompt "Your prompt"')


Write = Callable[[Wanted], Written]
ENGINES: dict[str, tuple[str, str, Write]] = {
    "vLLM": ("vLLM 0.32", "shell", _vllm),
    "SGLang": ("SGLang 0.5.23", "shell", _sglang),
    "llama-server": ("llama.cpp of October 2026", "shell", _llama_server),
    "TensorRT-LLM": ("TensorRT-LLM's documentation of autumn 2026", "yaml", _tensorrt),
    "transformers": ("transformers 5.22", "python", _transformers),
    "mlx-lm": ("mlx-lm of autumn 2026", "shell", _mlx),
}
