"""Speculative Decoding Playground: a prompt and a model pair go in, rounds come out."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playground.api import compare

__all__ = ["compare"]
__version__ = "0.2.0"

# The folder of presets/, assets/, docs/ and README.md: the checkout, or one in the package that a wheel installed.
PACKAGE = Path(__file__).resolve().parent
ROOT = next(folder for folder in (PACKAGE / "files", PACKAGE.parent) if (folder / "presets").is_dir())

# On a CPU torch's threads wait for each other many hundred times a pass, and by default spin long before they sleep.
# Where anything else wants a core (a browser, the page's own server), all then wait for a thread that is not running,
# and a pass takes many times as long. This shorter spin costs nothing where the cores are free. torch reads the
# variable when it is loaded, so it is set here.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def __getattr__(name: str) -> Any:
    """Import `compare` only when it is used: every command and every process that reads a grammar imports this file."""
    if name == "compare":
        from playground.api import compare

        return compare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
