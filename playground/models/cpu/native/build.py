"""Builds the engine: the libraries that the package holds, or one for this machine.

    python -m playground.models.cpu.native.build

builds those of the package with `ziglang`, a compiler from PyPI that compiles for any machine, byte for byte the same
each time; a test does it again and compares.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from playground.models.fetch.files import cache_folder, replacing

FOLDER = Path(__file__).parent
# Without -ffast-math and fused only where the source says so: a result has the same bits everywhere.
FLAGS = ["-Os", "-std=gnu11", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-g0", "-Wno-psabi"]
FLAGS += [
    "-fno-asynchronous-unwind-tables",
    "-fno-unwind-tables",
    "-fno-stack-protector",
]  # smaller, as is not to unroll
FLAGS += ["-fno-tree-vectorize", "-fno-tree-slp-vectorize", "-fno-unroll-loops"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni"))]
X86 = {"avx512": AVX512, "avx2vnni": [*AVX2, "-mavxvnni"], "avx2": AVX2, "plain": []}
ARM = {"dotprod": ["-mcpu=generic+dotprod"]}
APPLE = {"plain": ["-mcpu=apple_m1"]}
# The name of each library, zig's name of its target, and the engines in it with their flags.
TARGETS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "linux-x86_64.so": ("x86_64-linux-gnu.2.17", X86),
    "linux-arm64.so": ("aarch64-linux-gnu.2.17", ARM),
    "macos-arm64.dylib": ("aarch64-macos.11.0", APPLE),
}
SECONDS = 120  # a compiler that takes longer at the first start is given up


def file_name(system: str, machine: str) -> str:
    """Returns the name of the library for a machine, by Python's names of system and machine."""
    machine = {"amd64": "x86_64", "aarch64": "arm64"}.get(machine, machine)
    names = {"linux": f"linux-{machine}.so", "darwin": f"macos-{machine}.dylib"}
    return names.get(system, f"{system}-{machine}.so")


def sources() -> list[Path]:
    return sorted(path for path in FOLDER.iterdir() if path.suffix in (".c", ".h"))


def build_all(into: Path) -> None:
    """Builds the libraries of the package.

    Raises:
        subprocess.CalledProcessError: the compiler refused; its words are the error's `stderr`.
    """
    into.mkdir(parents=True, exist_ok=True)
    compiler = [sys.executable, "-m", "ziglang", "cc"]
    with tempfile.TemporaryDirectory() as work:
        caches = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), work)
        for name, (target, engines) in TARGETS.items():
            cc = [*compiler, "-target", target, "-fno-sanitize=all"]
            objects = [str(Path(work, f"{engine}.o")) for engine in (*engines, "pool")]
            for path, flags in zip(objects, engines.values(), strict=False):
                symbol = f"-DENGINE=engine_{Path(path).stem}"
                _run([*cc, *FLAGS, *flags, symbol, "-c", "engine.c", "-o", path], caches)
            only = ["-DONLY_NATIVE"] if engines is APPLE else []
            _run([*cc, *FLAGS, *only, "-c", "pool.c", "-o", objects[-1]], caches)
            apple = f"-Wl,-install_name,{name}"  # the default is the path, which the bytes would depend on
            end = [apple] if "macos" in target else ["-Wl,--build-id=none", "-lm", "-lpthread"]
            _run([*cc, "-shared", "-s", *objects, "-o", str(into / name), *end], caches)


def on_this_machine() -> Path:
    """Returns the library that `cc` builds for this machine's own processor; the cache folder keeps it.

    Raises:
        OSError: there is no compiler, it refused, or the library cannot be written.
    """
    identity = "".join(
        [platform.processor(), platform.machine(), *(path.read_text(encoding="utf-8") for path in sources())]
    )
    kept = cache_folder() / f"engine-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.so"
    if kept.is_file():
        return kept
    cc = shutil.which(os.environ.get("CC") or "cc")
    if cc is None:
        raise OSError("there is no C compiler to build one")
    kept.parent.mkdir(parents=True, exist_ok=True)
    for tuned in (["-march=native"], ["-mcpu=native"], []):
        command = [cc, *FLAGS, *tuned, "-DENGINE=engine_plain", "-DONLY_NATIVE", "-shared", "engine.c", "pool.c"]
        try:
            with replacing(kept) as part:
                _run([*command, "-o", str(part), "-lm", "-lpthread"], timeout=SECONDS)
            return kept
        except subprocess.SubprocessError as error:
            refused = getattr(error, "stderr", None) or str(error)
    raise OSError(f"{cc} did not build it: {' '.join(refused.split())[:200]}")


def _run(command: list[str], environment: Mapping[str, str] | None = None, timeout: float | None = None) -> None:
    environment = os.environ | (environment or {})
    subprocess.run(command, check=True, timeout=timeout, cwd=FOLDER, env=environment, capture_output=True, text=True)


if __name__ == "__main__":
    build_all(FOLDER / "built")
