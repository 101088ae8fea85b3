"""`serve`: a model server on this machine, for lanes and load tests."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from playground.backends.launch import LOOKUPS, start_llama, start_vllm
from playground.commands.arguments import DEFAULT, add_settings, positive
from playground.progress import Progress
from playground.settings import default

if TYPE_CHECKING:
    from playground.backends.launch import Running


def add(commands: argparse._SubParsersAction) -> None:
    serve = commands.add_parser(
        "serve",
        help="start a llama.cpp or vLLM server on the starter, on this machine only",
        description="Starts a model server on this machine's loopback until Ctrl-C; docs/servers.md.",
    )
    kinds = serve.add_subparsers(required=True, metavar="kind")
    llama = kinds.add_parser("llama", help="llama-server from the PATH, or the one in the wheel xllamacpp")
    llama.set_defaults(command=_llama)
    llama.add_argument("--gguf", type=Path, metavar="FILE", help="the model (default: the starter's)")
    llama.add_argument("--lookup", choices=("none", *LOOKUPS), default="none", help=f"prompt lookup {DEFAULT}")
    add_settings(llama, "lookahead")
    llama.add_argument("--slots", type=positive, default=4, metavar="N", help=f"requests at the same time {DEFAULT}")
    llama.add_argument("--context", type=positive, default=2048, metavar="N", help=f"tokens of a slot {DEFAULT}")
    llama.add_argument("--threads", type=positive, metavar="N", help="CPU threads (default: half of the cores)")
    llama.add_argument("options", nargs="*", metavar="OPTION", help="after --: more options of llama-server")
    vllm = kinds.add_parser("vllm", help="vLLM, from the PATH")
    vllm.set_defaults(command=_vllm)
    vllm.add_argument("--target", metavar="MODEL", help="a Hugging Face id or a folder (default: the starter)")
    vllm.add_argument("--speculative-config", default="", metavar="JSON", help="as vLLM takes it (default: none)")
    vllm.add_argument("options", nargs="*", metavar="OPTION", help="after --: more options of vLLM")
    for kind in (llama, vllm):
        kind.add_argument("--port", type=positive, metavar="N", help="port (default: a free one)")


def _llama(options: argparse.Namespace) -> None:
    from playground.models.fetch import starter

    _until_interrupted(
        start_llama(
            options.gguf or starter.fetch_gguf(_say),
            _say,
            lookup=options.lookup,
            lookahead=options.lookahead,
            slots=options.slots,
            context=options.context,
            threads=options.threads,
            extra=options.options,
            port=options.port,
        )
    )


def _vllm(options: argparse.Namespace) -> None:
    from playground.models.fetch import starter

    _until_interrupted(
        start_vllm(
            options.target or str(starter.fetch(_say).folder),
            _say,
            speculative_config=options.speculative_config,
            served_name="" if options.target else default("pair"),
            options=options.options,
            port=options.port,
        )
    )


def _until_interrupted(server: Running) -> None:
    print(f"{server.url} is ready. Ctrl-C ends it.", flush=True)
    try:
        server.process.wait()
        print(f"playground: the server ended. The end of its log:\n{server.log()}", file=sys.stderr)
    finally:
        server.stop()


def _say(step: Progress) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{step.label}\r", end="", file=sys.stderr, flush=True)
