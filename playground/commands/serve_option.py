"""`--serve`: a model server that is started for a command, first without speculation, then with it."""

from __future__ import annotations

import argparse
import shlex
from functools import partial
from pathlib import Path

from playground.backends.launch import HOST, LOOKUPS, free_port, start_llama, start_vllm
from playground.backends.llama_server import LlamaServer
from playground.backends.restarted import Restarted, Start
from playground.backends.server import UNREPORTED, lane_of
from playground.backends.vllm import VllmServer
from playground.commands.arguments import DEFAULT
from playground.lane import Lane
from playground.progress import Progress
from playground.settings import default

NGRAM = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 3}'


def add_serve(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--serve",
        choices=("llama", "vllm"),
        help="start such a server here without speculation, run its lane, and restart it with speculation",
    )
    parser.add_argument(
        "--serve-model", metavar="MODEL", help="a GGUF file; for vLLM an id or a folder (default: the starter)"
    )
    parser.add_argument("--lookup", choices=LOOKUPS, default=LOOKUPS[0], help=f"how llama.cpp speculates {DEFAULT}")
    parser.add_argument(
        "--speculative-config", default=NGRAM, metavar="JSON", help="how vLLM speculates (default: prompt lookup)"
    )
    parser.add_argument(
        "--serve-options", default="", metavar="TEXT", help='more options of vLLM, such as "--tensor-parallel-size 2"'
    )


def served(options: argparse.Namespace) -> tuple[Lane, Lane, Restarted]:
    """The standard lane and the assisted one, and what runs both. Nothing is started yet."""
    port = free_port()
    url = f"http://{HOST}:{port}"
    lookahead = options.lookahead or default("lookahead")
    standard: Start
    assisted: Start
    if options.serve == "llama":
        gguf = _gguf(options.serve_model)
        lane = partial(lane_of, LlamaServer.kind, url, gguf.name)
        lanes = lane("none", lookahead), lane(options.lookup, lookahead)
        standard = partial(start_llama, gguf, port=port)
        assisted = partial(start_llama, gguf, port=port, lookup=options.lookup, lookahead=lookahead)
    else:
        name = options.serve_model or default("pair")
        lane = partial(lane_of, VllmServer.kind, url, name)
        lanes = lane("none"), lane(UNREPORTED)
        model = options.serve_model or _starter()
        more = shlex.split(options.serve_options)
        standard = partial(start_vllm, model, served_name=name, options=more, port=port)
        assisted = partial(standard, speculative_config=options.speculative_config)
    return *lanes, Restarted(dict(zip(lanes, (standard, assisted), strict=True)))


def _gguf(path: str | None) -> Path:
    from playground.models.fetch import starter

    return Path(path) if path else starter.fetch_gguf(_quiet)


def _starter() -> str:
    from playground.models.fetch import starter

    return str(starter.fetch(_quiet).folder)


def _quiet(step: Progress) -> None:
    """The starter is fetched once, in some seconds."""
