"""Weights of eight or four bits: by torch's own kernels on CUDA (models/weight_only.py), whose passes can be captured;
elsewhere by bitsandbytes, which is optional.

Dettmers et al. 2022, "LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale" (arXiv 2208.07339), and 2023,
"QLoRA: Efficient Finetuning of Quantized LLMs" (arXiv 2305.14314), for the four bits of NF4. Only linear layers are
quantised. Embedding and head keep their dtype, so that drafters can use them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import torch
from transformers import BitsAndBytesConfig, GgufConfig, PreTrainedModel
from transformers.utils import is_bitsandbytes_available
from transformers.utils.quantization_config import QuantizationMethod

from playground.errors import PlaygroundError, install_hint
from playground.models import weight_only
from playground.models.cpu.int4 import bits_of
from playground.models.cpu.native.layers import main_kind
from playground.models.cpu.native.library import BFLOAT16, engine, splits_activations, wide
from playground.models.cpu.packed import is_packed
from playground.models.fetch.files import ModelFiles
from playground.tensor_header import headers

STORED = {8: 8.0, 4: 4.5}  # bits per weight with its scales; NF4 has one scale of four bytes for 64 weights
WHOLE = ("embed", "lm_head", "wte", "wpe", ".experts.")  # parts of the names of weights that are not quantised


def quantisation(
    weights: ModelFiles, bits: int, dtype: torch.dtype, device: torch.device, why_not: str
) -> tuple[BitsAndBytesConfig | None, str]:
    """Returns the config with which transformers quantises these weights to 8 or 4 `bits`, None where `weight_only`
    does it; and in words what does, and why. `why_not`: why `weight_only` cannot, as a clause; "" if it may.

    Raises:
        PlaygroundError: these weights cannot be quantised here, or bitsandbytes is not installed.
    """
    config = _config(weights)
    if weights.gguf:
        raise PlaygroundError(
            f"{weights.name} is GGUF, which is quantised already and is dequantised while loading. "
            f"Choose safetensors for int{bits}, or another dtype."
        )
    if is_quantised(weights):
        raise PlaygroundError(
            f"{weights.name} is quantised already. Choose the dtype auto to load it unchanged, or the original weights "
            f"for int{bits}."
        )
    if device.type in weight_only.DEVICES:
        tensors = headers(weights.folder).items()
        shapes = {tuple(it["shape"]) for name, it in tensors if stored_bits(name, it["shape"], bits)}
        why_not = why_not or weight_only.why_not(sorted(shapes), bits, dtype, device)
        if not why_not:
            return None, f"int{bits} by torch's own kernel"
    if bits == 8 and "kv_lora_rank" in config:
        raise PlaygroundError(
            f"{weights.name} has multi-head latent attention, which bitsandbytes cannot compute in int8. "
            "Choose int4 or another dtype."
        )
    if not is_bitsandbytes_available():
        raise PlaygroundError(
            f"int{bits} needs the package bitsandbytes{why_not and f' here, since {why_not}'}. {install_hint('gpu')} "
            "Or choose another dtype."
        )
    how = f"int{bits} by bitsandbytes" + (why_not and f", since {why_not}")
    if bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True), how
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype), how


def is_quantised(weights: ModelFiles) -> bool:
    """True where the checkpoint holds quantised weights, other than in GGUF."""
    return quantised_by(weights) is not None


def quantised_by(weights: ModelFiles) -> str | None:
    """Returns the name of the method by which the checkpoint's weights are quantised; None where they are not, or
    GGUF."""
    config = _config(weights)
    text = config.get("text_config")
    nested = text.get("quantization_config") if isinstance(text, dict) else None
    how = config.get("quantization_config") or nested or config.get("quantization")  # the last is mlx-lm's
    if isinstance(how, dict) and how.get("quant_method"):
        return str(how["quant_method"])
    if isinstance(how, dict) and (how.get("load_in_8bit") or how.get("load_in_4bit")):  # an early form of the config
        return QuantizationMethod.BITS_AND_BYTES.value
    if isinstance(how, dict) and {"group_size", "bits"} <= how.keys():
        return "MLX"
    if (weights.folder / "hf_quant_config.json").is_file():  # older exports of NVIDIA's Model Optimizer have it
        return "modelopt"
    return "a method that its config.json does not name" if how else None


def check_readable(weights: ModelFiles) -> None:
    """Refuses weights whose quantisation transformers does not know: it would load them without their scales.

    Raises:
        PlaygroundError: the checkpoint's weights are quantised by such a method.
    """
    method = quantised_by(weights)
    if method and method not in {known.value for known in QuantizationMethod} and not weights.gguf:
        raise PlaygroundError(
            f"{weights.name} is quantised by {method}, which transformers cannot read. Choose the original weights, or "
            "compare with a server that serves these."
        )


def make_batch_invariant(model: PreTrainedModel) -> None:
    """Makes a token's output independent of the tokens verified with it, in the requested dtype. It also applies to
    checkpoints that were published quantised."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it would warn in every layer of every pass
    module: Any  # a class of bitsandbytes, which is optional
    for module in model.modules():
        match type(module).__name__:
            case "Linear8bitLt":  # the threshold picks columns by all tokens of the pass
                module.state.threshold = 0.0
            case "Linear4bit":  # a CPU kernel that computes in bfloat16 only, and only in some shapes
                if model.dtype != torch.bfloat16 or module.out_features % 32 or module.in_features % 64:
                    module.support_avx512bf16_for_cpu = False


def precision(model: PreTrainedModel) -> str:
    """Returns the formats of weights and computation, such as "bfloat16" or "int8 weights, bfloat16"."""
    dtype = str(model.dtype).removeprefix("torch.")
    config = getattr(model.config, "quantization_config", None)
    if config is None or isinstance(config, GgufConfig):  # GGUF is dequantised while loading
        if bits := weight_only.bits_of(model):
            return f"int{bits} weights, {dtype}"
        if bits := bits_of(model):
            return f"int{bits} weights, " + (f"int{16 if wide() else 8} activations" if engine() else "bfloat16")
        if not is_packed(model):
            return dtype
        if main_kind(model) != BFLOAT16:
            return f"float16 weights, {dtype}"
        return "bfloat16 weights, " + ("2 x bfloat16 activations" if splits_activations() else dtype)
    if isinstance(config, BitsAndBytesConfig):
        return f"int{8 if config.load_in_8bit else 4} weights, {dtype}"
    return f"{config.quant_method.value} weights, {dtype}"


def stored_bits(name: str, shape: Sequence[int], bits: int) -> float | None:
    """Returns the bits per value of a checkpoint's weight once quantised; None if its dtype does not change."""
    return STORED[bits] if len(shape) == 2 and not any(part in name for part in WHOLE) else None


def _config(weights: ModelFiles) -> dict[str, Any]:
    """Returns the config.json; {} where there is none, or a damaged one, which the loader reports."""
    try:
        config = json.loads((weights.folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}
