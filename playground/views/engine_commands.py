"""Commands of other engines for a drafter, one function an engine, and which layouts of published drafters each reads.

Options change from version to version, so each function names the version it was written for. What an engine cannot do
is reported, never silently replaced. Names come from traces, which may come from anywhere: they are quoted for shell
and Python.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from playground.drafting_methods import METHODS
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
    k: int
    lane: Lane
    request: Request | None = None

    @property
    def tree(self) -> bool:
        """True where the lane drafts a tree."""
        return METHODS[self.lane.drafter].tree


def hub_name(name: str) -> str:
    """Return the starter's name on the hub; other names as they are."""
    return STARTER if name == "starter" else name


def check_known(wanted: Wanted) -> None:
    """Raise CannotError for drafting methods that no engine has."""
    if wanted.lane.drafter in ("composite", "adaptive"):
        raise CannotError("No engine mixes lookup and a draft tree.")
    if wanted.method == "grammar":
        raise CannotError("The engines have no drafter for what a grammar forces.")
    if wanted.method in ONLY_HERE and wanted.model != NATIVE:
        raise CannotError(ONLY_HERE[wanted.method])
    if not wanted.method:
        raise CannotError("The trace does not say what kind of network drafted the tree.")


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


def _transformers(wanted: Wanted) -> tuple[str, str]:
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
    dynamic = [draft, *(f"drafter.generation_config.{name} = {value!r}" for name, value in policy.items())]
    ways: dict[str, tuple[list[str], str]] = {
        "none": ([], ""),
        "ngram": ([], f"prompt_lookup_num_tokens={k}, max_matching_ngram_size=2"),
        "assistant": (dynamic, "assistant_model=drafter"),
        "gemma4": (dynamic, "assistant_model=drafter"),
        "universal": (
            [*dynamic, f"drafter_tokenizer = AutoTokenizer.from_pretrained({wanted.model!r})"],
            "assistant_model=drafter, tokenizer=tokenizer, assistant_tokenizer=drafter_tokenizer",
        ),
        "dflash": ([draft], 'assistant_model=drafter, speculation_type="dflash"'),
        "early-exit": ([], f"assistant_early_exit={wanted.model}"),
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
    depth = {"mtp": "transformers drafts one token per MTP layer.", "dflash": "transformers drafts whole blocks."}
    return "\n".join(lines), depth.get(wanted.method, "")


def _vllm(wanted: Wanted) -> tuple[str, str]:
    alone = ("ngram", "suffix", "mtp")  # without a model of their own
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "ngram": ("ngram", {"prompt_lookup_min": 2, "prompt_lookup_max": 5}),
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
    if wanted.tree:
        note = "vLLM drafts a chain where this lane drafted a tree: measure again."
    elif _in_blocks(wanted):
        config |= {"rejection_sample_method": "block", "draft_sample_method": "probabilistic"}
        note = "Block verification is in vLLM's V2 runner alone; others, its CPU build too, verify token by token."
    option = f" --speculative-config {shlex.quote(json.dumps(config))}" if config else ""
    return f"vllm serve {shlex.quote(wanted.target)}{option}", note


def _sglang(wanted: Wanted) -> tuple[str, str]:
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
    note = "SGLang grows a tree by a fixed width per step: measure again." if wanted.tree else ""
    block = " --speculative-use-block-verification" if _in_blocks(wanted) and wanted.method in SGLANG_BLOCKS else ""
    return f"python -m sglang.launch_server --model-path {shlex.quote(wanted.target)}{ways[wanted.method]}{block}", note


def _llama_server(wanted: Wanted) -> tuple[str, str]:
    if wanted.tree:
        raise CannotError("llama-server drafts chains only.")
    most = f"--spec-draft-n-max {wanted.k}"
    ways = {
        "none": "",
        "ngram": f" --spec-type ngram-simple --spec-ngram-simple-size-m {wanted.k}",
        "assistant": f" --spec-type draft-simple -md DRAFTER.gguf {most}",
        "mtp": f" --spec-type draft-mtp {most}",
        "eagle3": f" --spec-type draft-eagle3 -md DRAFTER.gguf {most}",
        "dflash": f" --spec-type draft-dflash -md DRAFTER.gguf {most}",
        "dflash2": f" --spec-type draft-dflash -md DRAFTER.gguf {most}",
        "dspark": f" --spec-type draft-dspark -md DRAFTER.gguf {most}",
    }
    if wanted.method not in ways:
        raise CannotError(f"llama-server has no {METHODS[wanted.method].label}.")
    drafter = f", DRAFTER.gguf {wanted.model}" if "DRAFTER" in ways[wanted.method] else ""
    note = f"MODEL.gguf is {wanted.target}{drafter}, converted by llama.cpp's convert_hf_to_gguf.py."
    return f"llama-server -m MODEL.gguf{ways[wanted.method]}", note


def _tensorrt(wanted: Wanted) -> tuple[str, str]:
    if wanted.tree:
        raise CannotError("These options of TensorRT-LLM draft chains.")
    names = {"ngram": "NGram", "assistant": "DraftTarget", "eagle3": "Eagle3", "mtp": "MTP", "dflash": "DFlash"}
    if wanted.method not in names:
        raise CannotError(f"TensorRT-LLM has no {METHODS[wanted.method].label}, or needs no setting for it.")
    lines = ["speculative_config:", f"  decoding_type: {names[wanted.method]}", f"  max_draft_len: {wanted.k}"]
    if wanted.method in ("assistant", "eagle3", "dflash"):
        lines.append(f"  speculative_model: {json.dumps(wanted.model)}")  # a JSON string is a YAML string
    return "\n".join(lines), ""


def _mlx(wanted: Wanted) -> tuple[str, str]:
    if wanted.method not in ("assistant", "none") or wanted.tree:
        raise CannotError("mlx-lm drafts with a draft model only.")
    draft = (
        f" --draft-model {shlex.quote(wanted.model)} --num-draft-tokens {wanted.k}" if wanted.method != "none" else ""
    )
    return f'mlx_lm.generate --model {shlex.quote(wanted.target)}{draft} --prompt "Your prompt"', ""


Write = Callable[[Wanted], tuple[str, str]]
ENGINES: dict[str, tuple[str, str, Write]] = {
    "vLLM": ("vLLM 0.32", "shell", _vllm),
    "SGLang": ("SGLang 0.5.23", "shell", _sglang),
    "llama-server": ("llama.cpp of October 2026", "shell", _llama_server),
    "TensorRT-LLM": ("TensorRT-LLM's documentation of autumn 2026", "yaml", _tensorrt),
    "transformers": ("transformers 5.22", "python", _transformers),
    "mlx-lm": ("mlx-lm of autumn 2026", "shell", _mlx),
}
