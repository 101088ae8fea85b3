"""The device and the number format that a model runs in, and how much memory is free there."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch
from transformers import PreTrainedModel

from playground.errors import PlaygroundError
from playground.models.cpu.int4 import multiplies_blocks
from playground.models.cpu.native.library import engine
from playground.models.cpu.packed import can_pack

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BITS = {"int8": 8, "int4": 4}  # bits of quantised weights; models/quantised.py makes them
HALF = 16  # bits of weights in float16 under float32; models/cpu/packed.py packs them
BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")  # instructions of x86 and Arm, by torch's names


def resolve_device(name: str = "auto") -> torch.device:
    """Returns the device of a name: "auto" (a GPU where there is one) or torch's name: "cpu", "cuda", "cuda:1", "mps".

    Raises:
        PlaygroundError: torch does not know the device, or this machine does not have it.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if _mps() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise PlaygroundError(f"{name!r} is not a device. Use auto, cpu, cuda, cuda:1 or mps.") from None
    here = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(_mps())}.get(device.type, 0)
    if (device.index or 0) >= here:
        raise PlaygroundError(
            f"This machine has no device {name} that torch {torch.__version__} can use. "
            "Use auto or cpu, or install the torch build that goes with the device."
        )
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Returns the dtype that a model computes in; models with packed layers (`weight_bits`, `keeps_blocks`) compute in
    float32.

    `name` is "auto", "float32", "bfloat16", "float16", "int8" or "int4". "auto" and quantised weights compute in
    bfloat16 where the device has instructions for it; otherwise an older NVIDIA GPU, such as a T4, computes in float16
    and any other device in float32: a CPU without the instructions emulates bfloat16, slowly. An x86 CPU never computes
    in float16, whose range is too small for the activations of some models.

    Raises:
        PlaygroundError: the name is unknown.
    """
    if name == "auto" or name in BITS:
        if has_bfloat16(device):
            return torch.bfloat16
        return torch.float16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise PlaygroundError(f"{name!r} is not a dtype. Use auto, {', '.join([*DTYPES, *BITS])}.")
    return torch.float32 if name == "float16" and can_pack(device) else DTYPES[name]


def weight_bits(name: str, device: torch.device) -> int | None:
    """Returns the bits of weights that are stored in another format than the model computes in; None where both formats
    are equal. `name` is one of `resolve_dtype`.

    On an x86 CPU "float16" packs the weights, and "auto" does too unless `keeps_blocks` applies; even where the CPU has
    bfloat16: on two cores of a Zen 5 with avx512_bf16, packed layers multiply 1 to 8 tokens up to twice as fast (see
    docs/benchmarks.md). "bfloat16" packs them where the CPU engine runs.
    """
    if name in BITS:
        return BITS[name]
    if name == "bfloat16" and device.type == "cpu" and engine():
        return HALF
    return HALF if name in ("auto", "float16") and can_pack(device) else None


def keeps_blocks(name: str, device: torch.device) -> bool:
    """True where the model computes with a checkpoint's own weights of four bits, such as GGUF of the type Q4_1. `name`
    is one of `resolve_dtype`."""
    return name in ("auto", "int4") and multiplies_blocks(device)


def has_bfloat16(device: torch.device) -> bool:
    """True where the device computes in bfloat16 in hardware, and does not emulate it."""
    if device.type == "cuda":
        with torch.cuda.device(device):  # the function reports on the current device
            return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        has: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch lack it
        return any(has.get(name) for name in BFLOAT16)
    return torch.backends.mps.is_macos_or_newer(14, 0)


def choose_kernels(device: torch.device) -> None:
    """Selects torch's attention kernels, for the whole process. Must be called before a model is loaded on the
    device."""
    if device.type == "cuda":
        # torch 2.11 and later prefer cuDNN's attention on SM90 and SM100. It builds and stores a plan for each new
        # length of the keys, in tens of milliseconds; on SM100 wrong greedy tokens are reported (pytorch 193893).
        torch.backends.cuda.enable_cudnn_sdp(False)


def ran_out_of_memory(error: BaseException) -> bool:
    """True where an error means that memory ran out: torch's allocator raises its own class, CUDA itself, cuBLAS and
    the CPU's allocator a RuntimeError with certain words."""
    words = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "allocate memory")
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(each in str(error) for each in words)


def free_bytes(device: torch.device) -> int:
    """Returns the bytes that a new model may take on the device. Memory that torch has reserved and does not use counts
    as free."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    return psutil.virtual_memory().available


def _mps() -> bool:
    return torch.backends.mps.is_available()


def median_seconds(work: Callable[[], object], device: torch.device, repeats: int = 9) -> float:
    """Returns the median time of some work on a CUDA device."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def device_name(device: torch.device) -> str:
    """Returns the manufacturer's name of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


# A model that is too large for one GPU is spread over all of them: accelerate puts whole layers on each, and moves what
# goes from one to the next. Never tried on two real GPUs.
FIRST, OTHERS = 0.7, 0.9  # shares of free memory that weights may take; logits and drafter are on the first GPU
COST = (
    "Its layers lie on several GPUs, of which one computes while the others wait; its passes are not compiled, and "
    "drafters that read its hidden states cannot be used."
)


def room(device: torch.device) -> dict[Any, int]:
    """Returns the bytes of weights that each GPU can take, by its number; none where `device` names one, or there is
    only one."""
    count = torch.cuda.device_count() if device.type == "cuda" and device.index is None else 0
    if count < 2:
        return {}
    return {i: int((OTHERS if i else FIRST) * free_bytes(torch.device("cuda", i))) for i in range(count)}


def needs_several(weights: float, device: torch.device) -> bool:
    """True where so many bytes of weights are too many for one GPU, and not for all together."""
    return sum(room(device).values()) >= weights > free_bytes(device)


def is_spread(model: PreTrainedModel) -> bool:
    """True where accelerate has put a model's layers on several devices."""
    return len(set(getattr(model, "hf_device_map", {}).values())) > 1
