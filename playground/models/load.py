"""Loads one model: from a name to weights in memory, ready to decode.

It reads safetensors and GGUF only, and never runs code that came with a model. An adapter, in peft's format, is merged
into the weights by peft: a pass then costs as much as before, so that two lanes differ only in their output. A
checkpoint's own sampling settings are read from its generation_config.json (`sampling_defaults`).
"""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from playground.errors import PlaygroundError, check, install_hint
from playground.format import gigabytes
from playground.models import weight_only
from playground.models.attention import attend_by_groups
from playground.models.cpu.int4 import bits_of, has_blocks, put_blocks
from playground.models.cpu.native.library import engine
from playground.models.cpu.native.model import NativeModel, native_model
from playground.models.cpu.packed import pack, worth_packing
from playground.models.cpu.threads import tensors_apart
from playground.models.device import HALF, choose_kernels, free_bytes, is_spread, needs_several, ran_out_of_memory, room
from playground.models.fetch import hub, shipped, starter
from playground.models.fetch.files import ModelFiles, cache_folder, inspect
from playground.models.fused import DEVICES, PEAK, fuse_and_join
from playground.models.quantised import (
    check_readable,
    is_quantised,
    make_batch_invariant,
    quantisation,
    quantised_by,
    stored_bits,
)
from playground.models.sizing import BYTES, check_config, check_shapes, shape, within_files
from playground.presets import folder_of
from playground.progress import Progress
from playground.settings import SAMPLING, SETTINGS
from playground.tensor_header import header
from playground.trace import PassTime, Shape


def sampling_defaults(config: GenerationConfig) -> dict[str, float]:
    """Returns the fields of a Request for which a checkpoint has defaults, each clipped to its slider.

    Without `do_sample` a checkpoint has none for sampling, as in transformers' `generate()`. With it, missing settings
    are neutral: temperature 1, every token.
    """
    sampled: dict[str, Any] = {
        name: SETTINGS[name].neutral for name in SAMPLING if config.do_sample and not SETTINGS[name].greedy
    }
    given = {name: getattr(config, name, None) for name in SAMPLING if name in sampled or SETTINGS[name].greedy}
    own = sampled | {name: value for name, value in given.items() if value is not None}
    return {name: SETTINGS[name].clip(value) for name, value in own.items()}


def check_generation_config(config: GenerationConfig) -> None:
    """Raises ValueError if a value that is read here has a wrong type; transformers checks only some of them."""
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    numbers = {name: getattr(config, name, None) for name in SAMPLING}
    wrong = [f"eos_token_id {end!r}" for end in ends if not isinstance(end, int | None)]
    wrong += [f"{name} {value!r}" for name, value in numbers.items() if not isinstance(value, int | float | None)]
    if wrong:
        raise ValueError(f"generation_config.json has {wrong[0]}, which is no number")


FILES = ("adapter_config.json", "adapter_model.safetensors")


def merge(model: PreTrainedModel, folder: str) -> None:
    """Adds the adapter in `folder` to the model's weights, in place. Head and embedding that share a matrix no longer
    do where the adapter changes one of them.

    Raises:
        PlaygroundError: peft is not installed, the folder holds no adapter that can be merged, or the adapter was made
            for another model.
    """
    check(find_spec("peft") is not None, f"An adapter needs the package peft. {install_hint('adapters')}")
    from peft import PeftConfig, PeftModel  # takes seconds

    path = Path(folder).expanduser()
    check(
        all((path / name).is_file() for name in FILES),
        f"{path.name} holds no adapter. Give a folder with {' and '.join(FILES)}, as peft saves them.",
    )
    # Written for who trains one; below head and embedding are parted.
    warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`", UserWarning)
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    try:
        config = PeftConfig.from_pretrained(str(path))
        config.inference_mode = True
        adapted = PeftModel(model, config)
        found = adapted.load_adapter(str(path), "default")
        other = [*found.missing_keys, *found.unexpected_keys]
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise PlaygroundError(
            f"The adapter {path.name} cannot be put on {model.config.model_type}: {str(error).splitlines()[0]} It was "
            "made for another model, is damaged, or the target's weights are quantised."
        ) from None
    check(
        not other,
        f"The adapter {path.name} was made for another model: {', '.join(other[:2])} is not what this one has. Choose "
        "its own model.",
    )
    check(
        not config.is_prompt_learning,
        f"The adapter {path.name} is of the kind {config.peft_type}, which adds to the prompt and cannot be merged.",
    )
    if (model.get_input_embeddings(), model.get_output_embeddings()) != ends:
        _untie(model, *ends)
    adapted.merge_and_unload()


def _untie(model: PreTrainedModel, embedding: Any, head: Any) -> None:
    """Gives the head a matrix of its own. peft adds to a matrix in place, and so to a layer that shares it."""
    if head.weight is embedding.weight:
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
        for config in (model.config, model.config.get_text_config(decoder=True)):
            config.tie_word_embeddings = False


STARTER = "starter"


class Damaged(PlaygroundError):
    """The files of a model are damaged: they cannot be read as a model."""


NAMES = {8: "int8", 4: "int4", HALF: "float16"}  # the formats of weights, by their bits


@dataclass(frozen=True)
class Format:
    """The number format of a model, and its device.

    Attributes:
        dtype: the dtype that it computes in, unless it is packed.
        bits: 8 or 4 to quantise its linear layers; HALF to pack them, which computes in float32. A checkpoint that is
            quantised already, or that packing would not shrink, is not packed.
        own_blocks: compute with the checkpoint's own blocks of four bits instead, if it has any and no adapter.
    """

    dtype: torch.dtype
    device: torch.device
    bits: int | None = None
    own_blocks: bool = False


class Loaded(ABC):
    """Weights in memory: a model, or a network that drafts."""

    @property
    @abstractmethod
    def module(self) -> nn.Module:
        """The module that holds the weights."""

    @cached_property
    def shape(self) -> Shape | None:
        """What a pass multiplies; see `sizing.shape`."""
        return shape(self.module)


@dataclass
class LoadedModel(Loaded):
    """A model in eval mode on its device, with its tokenizer.

    Attributes:
        name: a short name for people.
        weights: the source of the bytes, in one line.
        pass_times: the measured times of its passes, by `Runners.describe`.
        disturbed: how many times other load disturbed that measurement.
        proofs: the results of `decoding.parity_check`, by the runner that was checked.
        static: the buffers and graphs of its static runners, by their use.
        grammars: the grammars that `decoding.grammar` compiled for its tokenizer.
        prefix_caches: those of conversations (`decoding.prefix_cache`).
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    weights: str
    pass_times: dict[str, tuple[PassTime, ...]] = field(default_factory=dict)
    disturbed: dict[str, int] = field(default_factory=dict)
    proofs: dict[str, Any] = field(default_factory=dict)
    static: dict[str, Any] = field(default_factory=dict)
    grammars: dict[str, Any] = field(default_factory=dict)
    prefix_caches: dict[Any, Any] = field(default_factory=dict)

    @property
    def module(self) -> nn.Module:
        return self.model

    @cached_property
    def native(self) -> NativeModel | str:
        """The model as the CPU engine's struct, or why torch runs it, as a clause."""
        return native_model(self.model)

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a text, from the generation config and the tokenizer."""
        configured = self.model.generation_config.eos_token_id
        ids = configured if isinstance(configured, list) else [configured]
        return frozenset([*ids, self.tokenizer.eos_token_id]) - {None}


@dataclass
class LoadedDrafter(Loaded):
    """A network that drafts from its target's hidden states, on the target's device and in its dtype. LoadedModel
    explains the other fields."""

    network: nn.Module
    name: str
    weights: str
    static: dict[str, Any] = field(default_factory=dict)

    @property
    def module(self) -> nn.Module:
        return self.network


def locate(name: str, progress: Callable[[Progress], None]) -> ModelFiles:
    """Fetches the files of a model to this machine. `name`: "starter", a folder, also one of assets/drafters, or an id
    on the hub.

    Raises:
        PlaygroundError: there is no such model, or it cannot be fetched.
    """
    if name == STARTER:
        return starter.fetch(progress)
    try:
        folder = folder_of(name)
        here = folder.is_dir()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null character, no permission, an unknown ~user
        raise PlaygroundError(f"{name[:80]!r} can be no model's name ({error}). Check what you typed.") from None
    if here:
        short = folder.resolve().name  # traces are shared, and a path reveals details of the machine
        return inspect(shipped.written_out(folder, progress), short, f"folder {short}")
    if folder.exists():
        raise PlaygroundError(f"{name} is a file. Type the path of the folder that holds the model.")
    if name.startswith((".", "~", "/")):
        raise PlaygroundError(f"There is no folder {name}. Check the path.")
    return hub.fetch(name, progress)


def load(name: str, format_: Format, progress: Callable[[Progress], None], adapter: str = "") -> LoadedModel:
    """Fetches the model if necessary and loads it. A starter whose files are damaged is fetched once more.

    Args:
        adapter: a folder with a LoRA adapter to merge into the weights; "" for none.

    Raises:
        PlaygroundError: the model cannot be fetched, does not fit into the device's memory, needs code of its own or a
            library that is not installed, cannot be quantised, or is broken.
    """
    weights = locate(name, progress)
    try:
        return _load(weights, format_, progress, adapter)
    except Damaged:
        if name != STARTER or weights.folder.parent != cache_folder():
            raise
        return _load(starter.fetch(progress, again=True), format_, progress, adapter)


def _load(weights: ModelFiles, format_: Format, progress: Callable[[Progress], None], adapter: str) -> LoadedModel:
    progress(Progress(f"Loading {weights.name}"))
    with explained(weights, format_.device):
        tokenizer = AutoTokenizer.from_pretrained(weights.folder, gguf_file=weights.gguf, trust_remote_code=False)
        tokenizer("")  # fails here if its config has values of a wrong type
        model = read(weights, format_, adapter)
        check_generation_config(model.generation_config)
    if "past_key_values" not in signature(model.forward).parameters:
        raise PlaygroundError(
            f"{weights.name} ({type(model).__name__}) keeps its state in a cache of its own kind, which cannot be "
            "rolled back here. Choose a model with attention layers."
        )
    origin = weights.origin
    if stored := bits_of(model):
        origin = f"{origin.removesuffix(starter.DEQUANTISED)}, linear layers in its blocks of {stored} bits"
    if how := model.__dict__["quantised"]:
        origin = f"{origin}, {how}"
    if adapter:
        origin = f"{origin}, with the adapter {Path(adapter).name} merged"
    return LoadedModel(model, tokenizer, weights.name, origin)


def _options(
    weights: ModelFiles, format_: Format, *, packs: bool, own_blocks: bool
) -> tuple[dict[str, Any], int | None, str]:
    """Returns transformers' options for loading a network, the bits to which `weight_only` rounds it afterwards, if it
    does, and in words how it is quantised, "" if it is not. `own_blocks`: whether the files have those that are asked
    for."""
    dtype, device, bits = format_.dtype, format_.device, format_.bits
    stored = torch.float32 if weights.gguf else "auto"
    if engine() and bits == HALF and not own_blocks and dtype == torch.bfloat16:  # chosen by its name
        stored = dtype
    options: dict[str, Any] = {"dtype": stored if packs else dtype}
    spread, few, how = check_memory(weights, dtype, device, bits), None, ""
    if bits and bits != HALF and not own_blocks:
        by_bitsandbytes, how = quantisation(weights, bits, dtype, device, _why_bitsandbytes(weights, dtype, spread))
        few = None if by_bitsandbytes else bits
        options |= {"quantization_config": by_bitsandbytes} if by_bitsandbytes else {}
    elif weights.gguf:
        options["quantization_config"] = GgufConfig(dequantize=True)
    where = torch.device("cpu") if few else device  # layers are quantised on their way to the device
    options |= {"device_map": "auto", "max_memory": room(device)} if spread else {"device_map": where}
    return options, few, how


def read(weights: ModelFiles, format_: Format, adapter: str = "") -> PreTrainedModel:
    """Loads the network alone, in eval mode. Must be called inside `explained`. The arguments are those of `load`. Its
    attribute `quantised` says how it was quantised here, "" if it was not.

    Raises:
        PlaygroundError: the network does not fit into the device's memory, cannot be quantised, is quantised in a way
            that transformers cannot read, or lacks weights.
    """
    check_readable(weights)
    device, bits = format_.device, format_.bits
    own_blocks = format_.own_blocks and has_blocks(weights) and not adapter  # which changes what the blocks hold
    packs = own_blocks or (bits == HALF and not is_quantised(weights))
    options, few, how = _options(weights, format_, packs=packs, own_blocks=own_blocks)
    choose_kernels(device)
    disable_progress_bar()
    model: PreTrainedModel
    # A file with blocks needs no separate tensors: most of its other weights are never read.
    with tensors_apart() if packs and not own_blocks else nullcontext():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            weights.folder,
            gguf_file=weights.gguf,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,  # no quantization_config of None, which would hide the checkpoint's own
        )
        model, report = loaded
        if report["missing_keys"]:
            missing = sorted(report["missing_keys"])
            raise PlaygroundError(
                f"The weights of {weights.name} are incomplete: {len(missing)} are missing, such as {missing[0]}, and "
                "would be random. Fetch or save the model again."
            )
        if weights.gguf:
            check_shapes(model, weights.name)
        if adapter:
            merge(model, adapter)
        if packs:
            if worth_packing(model):
                if own_blocks:
                    put_blocks(model, weights)
                pack(model)
            else:
                model.to(format_.dtype)  # type: ignore[arg-type]  # its decorator hides `self`
    if packs:
        if bits == 4 and bits_of(model) != 4:
            raise PlaygroundError(
                f"{weights.name} is GGUF, but not of the types Q4_0 or Q4_1{', or Q4_K' if engine() else ''}, whose "
                "weights are computed with as they are. Choose the dtype auto."
            )
        for config in (model.config, model.config.get_text_config(decoder=True)):
            config.dtype = model.dtype  # transformers loads MTP layers in this dtype
    make_batch_invariant(model)
    attend_by_groups(model, device)
    if not is_spread(model):  # fused layers would lack what moves their inputs to their GPU
        fuse_and_join(model, device)
    if few:
        weight_only.quantise(model, few, device)
    model.__dict__["quantised"] = how
    return model.eval()


@contextmanager
def explained(weights: ModelFiles, device: torch.device) -> Iterator[None]:
    """Turns the errors that transformers raises in this context, where it reads these weights, into sentences.

    Raises:
        PlaygroundError: reading failed, or the config describes a larger network than the weights can fill.
    """
    try:
        check_config(weights)
        with within_files(weights):
            yield
    except PlaygroundError:
        raise
    except ImportError as error:
        first = str(error).strip().splitlines()[0]
        raise PlaygroundError(
            f"{weights.name} needs a library that is not installed here: {first} Install it, or choose another model; "
            "for a quantised one the original weights will do."
        ) from error
    except Exception as error:
        if ran_out_of_memory(error):
            raise PlaygroundError(
                f"The memory of {device} ran out while {weights.name} was loading. "
                "Choose a smaller pair, or free some memory."
            ) from None
        # A folder can be broken in any way, and transformers raises any exception.
        raise Damaged(_reason(weights, error)) from error


def tensors_of(folder: Path, left_out: re.Pattern[str] | None = None) -> dict[str, torch.Tensor]:
    """Reads the tensors of all safetensors files in a folder, on the CPU. `left_out`: matches the names of those that
    are not read."""
    state: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            state |= {key: file.get_tensor(key) for key in header(path) if not (left_out and left_out.match(key))}
    return state


def check_memory(weights: ModelFiles, dtype: torch.dtype, device: torch.device, bits: int | None = None) -> bool:
    """Checks that the weights fit into the device's memory, and where their layers are joined, that this fits too.

    Returns:
        Whether they have to be spread over all GPUs.

    Raises:
        PlaygroundError: the device has less free memory than the weights will take, and so have all GPUs together.
    """
    if weights.gguf:
        return False  # its size once dequantised is not known before it is read
    files = weights.folder.glob("*.safetensors")
    peak = PEAK if device.type in DEVICES else 1
    needed, free = peak * sum(_bytes_in(path, dtype, bits) for path in files), free_bytes(device)
    spread = needs_several(needed, device)
    if needed > free and not spread:
        format_ = NAMES[bits] if bits else str(dtype).removeprefix("torch.")
        raise PlaygroundError(
            f"{weights.name} needs {gigabytes(needed)} in {format_}, and {device} has "
            f"{gigabytes(free)} free. Choose a smaller model, or free some memory."
        )
    return spread


def _why_bitsandbytes(weights: ModelFiles, dtype: torch.dtype, spread: bool) -> str:
    """Returns why torch's own kernels cannot be used for weights of few bits, as a clause; "" if they may."""
    if spread:
        return "the layers lie on several GPUs"
    whole = sum(_bytes_in(path, dtype, None) for path in weights.folder.glob("*.safetensors"))
    return "" if whole < free_bytes(torch.device("cpu")) else "the unquantised weights do not fit into the memory"


def _bytes_in(path: Path, dtype: torch.dtype, bits: int | None) -> int:
    """Returns the bytes of a safetensors file once loaded: floating point tensors in `dtype` or `bits`, others
    unchanged."""
    total = 0
    for key, tensor in header(path).items():
        start, end = tensor["data_offsets"]
        stored = BYTES.get(tensor["dtype"])
        quantised = stored_bits(key, tensor["shape"], bits) if bits and bits != HALF else None
        wanted = HALF if bits == HALF else quantised or 8 * dtype.itemsize
        total += int((end - start) * wanted / (8 * stored)) if stored else end - start
    return total


def _reason(weights: ModelFiles, error: Exception) -> str:
    name, text = weights.name, str(error)
    if "trust_remote_code" in text:
        return (
            f"{name} needs Python code that comes with its weights, and such code is never run here. "
            "Choose a model whose architecture transformers knows."
        )
    if "Unrecognized configuration class" in text:
        return f"{name} is not a causal language model. Choose a model that writes text from left to right."
    what = " ".join(text.split())[:200] or "no message"
    ours = weights.folder.parent == cache_folder()
    fetched = f"It was fetched again, which did not help. Delete {weights.folder}, or choose another model."
    remedy = fetched if ours else "Check that the folder is whole."
    if method := quantised_by(weights):
        remedy = f"It is quantised by {method}. Choose the original weights, or another model."
    return f"{name} cannot be loaded ({type(error).__name__}: {what}). {remedy}"
