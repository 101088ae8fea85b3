"""The engine's library: built again byte for byte, sanitized, emulated, and left alone where it cannot be used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from playground import ROOT
from playground.models.cpu.native import build, library

FOLDER = build.FOLDER
MOST_BYTES = 300_000  # of all libraries together
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g"]


def test_the_libraries_are_small():
    sizes = [(FOLDER / "built" / name).stat().st_size for name in build.TARGETS]
    assert sum(sizes) < MOST_BYTES


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("ziglang"), reason="ziglang has no wheel for this machine")
def test_the_libraries_are_what_the_sources_give(tmp_path):
    """So nobody has to believe a binary."""
    build.build_all(tmp_path)
    for name in build.TARGETS:
        assert (tmp_path / name).read_bytes() == (FOLDER / "built" / name).read_bytes(), name


@pytest.mark.parametrize(
    ("asked", "name", "why"),
    [("torch", None, "PLAYGROUND_ENGINE "), (library.PLAIN, library.PLAIN, ""), ("MMX", None, "PLAYGROUND_ENGINE=MMX")],
)
def test_the_environment_turns_the_engine_off_or_names_its_instructions(asked, name, why, monkeypatch):
    monkeypatch.setenv("PLAYGROUND_ENGINE", asked)
    found, reason = library._found.__wrapped__()  # what a process that begins in this environment finds
    assert (found and found.name) == name
    assert why in reason and bool(why) == bool(reason)


@pytest.fixture(scope="module")
def made_here(tmp_path_factory):
    """A cache folder, in which the compiler makes a library once for the tests here."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_elsewhere_the_compiler_makes_a_library_that_the_cache_keeps(made_here, monkeypatch):
    monkeypatch.setenv("PLAYGROUND_CACHE", str(made_here))
    built = build.on_this_machine()
    assert built.parent == made_here
    monkeypatch.setenv("CC", "no-such-compiler")
    assert build.on_this_machine() == built


def found_in(folder, monkeypatch):
    """What a first start finds where the shipped libraries are those of a folder."""
    monkeypatch.delenv("PLAYGROUND_ENGINE", raising=False)
    monkeypatch.setattr(library, "FOLDER", folder)
    library.engines.cache_clear()
    try:
        return library._found.__wrapped__()
    finally:
        library.engines.cache_clear()


def test_without_a_library_and_a_compiler_torch_computes_and_the_reason_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PLAYGROUND_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    found, why = found_in(tmp_path, monkeypatch)
    assert found is None and "no C compiler" in why


@pytest.mark.parametrize("content", [b"", b"\x7fELF cut short", b"#!/bin/sh", "half"])
def test_in_place_of_a_damaged_library_the_compiler_makes_one_or_torch_computes(
    content, tmp_path, made_here, monkeypatch
):
    name = build.file_name(sys.platform, library.platform.machine().lower())
    if content == "half":  # Linux would load it
        whole = (FOLDER / "built" / "linux-x86_64.so").read_bytes()
        content = whole[: len(whole) // 2]
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / name).write_bytes(content)
    monkeypatch.setenv("PLAYGROUND_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", "no-such-compiler")
    found, why = found_in(tmp_path, monkeypatch)
    assert found is None and "be loaded (" in why and "no C compiler" in why
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PLAYGROUND_CACHE", str(made_here))
    if shutil.which("cc"):
        found, why = found_in(tmp_path, monkeypatch)
        assert found and not why


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("gcc"), reason="needs gcc's sanitizers")
def test_sanitizers_find_nothing_over_random_shapes_trees_and_roll_backs(tmp_path):
    made = tmp_path / "built" / build.file_name("linux", library.platform.machine().lower())
    made.parent.mkdir()
    flags = ["-w", *build.FLAGS, *SANITIZERS, "-march=native", "-DENGINE=engine_plain", "-DONLY_NATIVE", "-shared"]
    subprocess.run(["gcc", *flags, "engine.c", "pool.c", "-o", str(made), "-lm", "-lpthread"], cwd=FOLDER, check=True)
    asan = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    quiet = {"LD_PRELOAD": asan, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    code = (
        "import sys, pytest; from pathlib import Path; from playground.models.cpu.native import library; "
        f"library.FOLDER = Path({str(tmp_path)!r}); library.PLAIN = ''; "
        "sys.exit(pytest.main(['-q', '-x', '-n0', '-p', 'no:cacheprovider', 'tests/decoding/test_native.py']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | quiet, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("qemu-aarch64") and find_spec("ziglang")), reason="needs qemu-user and ziglang")
def test_neon_gives_the_bits_of_plain_c(tmp_path):
    """Emulated: products, attention and a whole pass over a tree of the library for arm64 and of plain C."""
    program, flags = tmp_path / "same", [*build.FLAGS, "-fno-sanitize=all"]
    cc = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", "-static"]
    objects = []
    for engine, tuned in (build.ARM | {"plain": []}).items():
        objects.append(str(tmp_path / f"{engine}.o"))
        command = [*cc, *flags, *tuned, f"-DENGINE=engine_{engine}", "-c", "engine.c", "-o", objects[-1]]
        subprocess.run(command, cwd=FOLDER, check=True)
    source = str(Path(__file__).with_name("same.c"))
    command = [*cc, *flags, f"-I{FOLDER}", source, "pool.c", *objects, "-o", str(program), "-lm", "-lpthread"]
    subprocess.run(command, cwd=FOLDER, check=True)
    done = subprocess.run(["qemu-aarch64", str(program)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout.startswith("same"), done.stdout + done.stderr
