"""One prompt through standard and assisted decoding."""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path

from playground.commands.arguments import DEFAULT, add_models, check_writable, chosen_pair, read, write
from playground.commands.progress_bar import progress_bar
from playground.drafting_methods import METHODS
from playground.settings import POLICIES


def add(commands: argparse._SubParsersAction) -> None:
    compare = commands.add_parser("compare", help="one prompt through standard and assisted decoding")
    compare.set_defaults(command=_compare)
    add_models(compare)
    compare.add_argument("--drafter", help=f"one of {', '.join(METHODS)} (default: the pair's)")
    prompt = compare.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", help="the prompt's text")
    prompt.add_argument("--prompt-file", type=Path, metavar="F", help="a UTF-8 file; - for standard input")
    compare.add_argument("--system", default="", help="system prompt")
    compare.add_argument("--no-chat-template", action="store_true", help="give the prompt to the model as it is")
    compare.add_argument("--lookahead", type=int, help="tokens to draft a round (default: the pair's)")
    compare.add_argument("--policy", help=f"one of {', '.join(POLICIES)} (default: the pair's)")
    compare.add_argument("--confidence-threshold", type=float, help="for the policy confidence (default: the pair's)")
    compare.add_argument("--nodes", type=int, help="the most tokens of a draft tree (default: the pair's)")
    compare.add_argument("--keep-free", type=float, default=0.0, metavar="GB", help="drafts shrink to keep this free")
    compare.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help=DEFAULT)
    compare.add_argument("--temperature", type=float, default=0.0, metavar="T", help=f"0 is greedy {DEFAULT}")
    compare.add_argument("--top-p", type=float, default=1.0, metavar="P", help=f"1 keeps every token {DEFAULT}")
    compare.add_argument("--top-k", type=int, default=0, metavar="K", help=f"0 keeps every token {DEFAULT}")
    compare.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X", help=f"1 is none {DEFAULT}")
    compare.add_argument("--seed", type=int, default=0, help=DEFAULT)
    compare.add_argument("--json", type=Path, metavar="F", help="write the whole trace there; - for standard output")


def _compare(options: argparse.Namespace) -> None:
    from playground import export
    from playground.backends.local import LocalBackend
    from playground.experiments.compare import run
    from playground.lane import LOCAL, Request, assisted_lane, standard_lane
    from playground.models.store import ModelStore
    from playground.views import report

    request = Request(
        prompt=options.prompt if options.prompt is not None else read(options.prompt_file),
        system=options.system,
        chat_template=not options.no_chat_template,
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
    )
    check_writable(options.json)
    pair = chosen_pair(options)
    lane = assisted_lane(
        pair,
        options.drafter,
        options.lookahead,
        options.policy,
        options.confidence_threshold,
        options.nodes,
        options.keep_free,
    )
    with progress_bar(options.max_new_tokens) as emit:
        backends = {LOCAL: LocalBackend(ModelStore(), pair, options.dtype, options.device)}
        comparison = run([standard_lane(pair), lane], request, backends, stop=threading.Event(), emit=emit)
    document = json.dumps(export.to_json(comparison), indent=1)
    if options.json == Path("-"):
        print(document)
        return
    if options.json:
        write(options.json, document)
    print(report.table(comparison))
