"""The page, for a Space and in a checkout: `python app.py` is `python -m playground app` and has its options."""

from __future__ import annotations

import sys
from importlib.util import find_spec

if find_spec("spaces"):
    import spaces  # noqa: F401  # on ZeroGPU, before whatever starts CUDA

from playground.commands import main

if __name__ == "__main__":
    main(["app", *sys.argv[1:]])
