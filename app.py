"""Builds the page and serves it: `python app.py [--host H] [--port P] [--share] [--pair NAME] [--mcp] [--trusted]`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib.util import find_spec
from typing import Any

if find_spec("spaces"):
    import spaces  # noqa: F401  # on ZeroGPU, before whatever starts CUDA

from playground.backends.local import LocalBackend
from playground.errors import PlaygroundError
from playground.experiments.history import open_history
from playground.hosting import zerogpu
from playground.hosting.access import access_for, addresses_of, strangers_can_reach
from playground.models.fetch import hub
from playground.models.fit import default_pair
from playground.models.store import ModelStore
from playground.presets import load_pairs, load_suites
from playground.ui import page


def main() -> None:
    pairs, problems = load_pairs()
    suites, more_problems = load_suites()
    parser = argparse.ArgumentParser(description="Serves the Speculative Decoding Playground.")
    parser.add_argument("--host", help="address to listen on (default: GRADIO_SERVER_NAME, else 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, help="port (default: GRADIO_SERVER_PORT, else the first free port from 7860)"
    )
    parser.add_argument("--share", action="store_true", default=None, help="also create a public link")
    parser.add_argument("--pair", choices=pairs, help="the pair to load at startup")
    parser.add_argument("--mcp", action="store_true", default=None, help="also serve the endpoints as tools over MCP")
    audience = parser.add_mutually_exclusive_group()
    audience.add_argument(
        "--public",
        action="store_true",
        default=None,
        help="limits for strangers; on by itself with --share, on a Space, and on a host that is not loopback",
    )
    audience.add_argument("--trusted", dest="public", action="store_false", help="no limits for those who reach it")
    parser.add_argument(
        "--allow-models",
        nargs="+",
        default=(),
        metavar="NAME",
        help="the models that strangers may type, or any for every id on the hub (default: none)",
    )
    args = parser.parse_args()
    if args.mcp and find_spec("mcp") is None:
        raise PlaygroundError('--mcp needs the MCP package. Install it: pip install "gradio[mcp]".')
    addresses = addresses_of(args.host or os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1")
    share = args.share or os.environ.get("GRADIO_SHARE", "").lower() == "true"
    access = access_for(
        strangers_can_reach(addresses, share) if args.public is None else args.public, args.allow_models
    )
    hub.TERMS = hub.Terms(anonymous=access.public, cache=access.limits.hub_cache)
    # A folder of its own, from which old files may be deleted.
    os.environ.setdefault("GRADIO_TEMP_DIR", os.path.join(tempfile.gettempdir(), "speculative-decoding-playground"))
    examples = suites["first"].prompts if "first" in suites else ()
    problems += more_problems
    store: Any = ModelStore()
    elsewhere = None
    if zerogpu.active():
        store = zerogpu.Held(pairs)
        pairs, problems = store.pairs, problems + store.problems
        # A forked process would have to capture all graphs anew.
        elsewhere = zerogpu.ZeroGpu(pairs, lambda pair: LocalBackend(store, pair, compiled="off"))
    default = pairs.get(args.pair) or default_pair(pairs)
    blocks = page.build(
        store,
        pairs,
        default,
        examples,
        problems=problems,
        elsewhere=elsewhere,
        access=access,
        history=None if access.public else open_history(),
    )
    try:
        blocks.launch(
            server_name=args.host,
            server_port=args.port,
            share=args.share,
            mcp_server=args.mcp,
            ssr_mode=False,  # which Spaces switch on: the page is made and tested without it
            **page.look(access),
            **page.bounds(access),
        )
    except (OSError, OverflowError) as error:
        raise PlaygroundError(
            f"Cannot serve the page: {' '.join(str(error).split())} Choose another --host or --port."
        ) from None


if __name__ == "__main__":
    try:
        main()
    except PlaygroundError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)  # a model may be loading in another thread, which a plain exit aborts with a message of its own
