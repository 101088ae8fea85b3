"""The command `app`, which builds the page and serves it."""

from __future__ import annotations

import argparse
import atexit
import os
import signal
import socket
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from playground.errors import PlaygroundError, install_hint
from playground.presets import pair_of

if TYPE_CHECKING:  # torch would slow every command down
    from playground.hosting.access import Access


def add(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("app", help="open the page", description="Serves the Speculative Decoding Playground.")
    parser.set_defaults(command=_serve)
    parser.add_argument("--host", help="address to listen on (default: GRADIO_SERVER_NAME, else 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, help="port (default: GRADIO_SERVER_PORT, else the first free port from 7860)"
    )
    parser.add_argument("--share", action="store_true", default=None, help="also create a public link")
    parser.add_argument("--pair", metavar="NAME", help="the pair to load at startup")
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
    parser.add_argument(
        "--allow-hosts",
        nargs="+",
        default=(),
        metavar="NAME",
        help="names of this server, for example a proxy's; others are refused (default: any for strangers, else the "
        "machine's own)",
    )


def _serve(options: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C or SIGTERM.

    Raises:
        PlaygroundError: an unknown pair, no pairs, or no MCP package for --mcp.
    """
    from playground.backends.local import LocalBackend
    from playground.experiments.history import TemporaryFolder, open_history
    from playground.hosting import zerogpu
    from playground.models.fetch import hub
    from playground.models.fit import default_pair, on_page
    from playground.models.store import ModelStore
    from playground.presets import load_pairs, load_suites
    from playground.ui import page

    signal.signal(signal.SIGTERM, lambda *_: _leave(0))
    pairs, problems = load_pairs()
    pairs = {name: on_page(pair) for name, pair in pairs.items()}
    suites, more_problems = load_suites()
    problems += more_problems
    if options.pair:
        pair_of(pairs, options.pair)
    if options.mcp and find_spec("mcp") is None:
        raise PlaygroundError(f"--mcp needs the package mcp. {install_hint('mcp')}")
    access = _access(options)
    hub.TERMS = hub.Terms(anonymous=access.public, cache=access.limits.hub_cache)
    try:
        files = TemporaryFolder(os.environ.get("GRADIO_TEMP_DIR"))
    except OSError as error:
        raise PlaygroundError(
            f"No folder can be made for uploads and saved files ({error}). Make room, or set TMPDIR to another folder."
        ) from None
    os.environ["GRADIO_TEMP_DIR"] = str(files.path)  # deleted with this process, old files in it earlier
    store: Any = ModelStore()
    elsewhere = None
    if zerogpu.active():
        store = zerogpu.Held(pairs)
        pairs, problems = store.pairs, problems + store.problems
        # Each forked process would have to capture all graphs again.
        elsewhere = zerogpu.ZeroGpu(pairs, lambda pair: LocalBackend(store, replace(pair, compiled="off")))
    blocks = page.build(
        store,
        pairs,
        pairs.get(options.pair) or default_pair(pairs),
        suites["first"].prompts if "first" in suites else (),
        problems=problems,
        elsewhere=elsewhere,
        access=access,
        history=None if access.public else open_history(),
    )
    try:
        blocks.launch(
            server_name=options.host,
            server_port=options.port,
            share=options.share,
            mcp_server=options.mcp,
            ssr_mode=False,  # on by default in Spaces; the page is tested without it
            **page.look(access),
            **page.bounds(access),
        )
    except (OSError, OverflowError) as error:
        reason = " ".join(str(error).split())
        print(f"Cannot serve the page: {reason} Choose another --host or --port.", file=sys.stderr, flush=True)
        _leave(2)
    except KeyboardInterrupt:
        _leave(130)
    _leave(0)


def _access(options: argparse.Namespace) -> Access:
    """Return what visitors may do, by the options and by the addresses at which the page is served."""
    from playground.hosting.access import access_for, addresses_of, strangers_can_reach

    addresses = addresses_of(options.host or os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1")
    share = options.share or os.environ.get("GRADIO_SHARE", "").lower() == "true"
    public = strangers_can_reach(addresses, share) if options.public is None else options.public
    hosts = [*options.allow_hosts]
    if not public:  # a public page accepts any name, unless some are given
        hosts += [options.host or "", socket.gethostname(), f"{socket.gethostname()}.local"]
        hosts.append(urlsplit(os.environ.get("GRADIO_ROOT_PATH", "")).netloc)
    return access_for(public, options.allow_models, hosts)


def _leave(status: int, server: int = os.getpid()) -> None:
    """End the process: delete the visitors' files, and end the servers that were started. A plain exit would abort with
    a message of its own while another thread loads a model."""
    if os.getpid() == server:  # not a process that was forked for a run
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        atexit._run_exitfuncs()
    os._exit(status)
