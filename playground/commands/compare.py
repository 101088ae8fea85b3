"""`compare`: one prompt through standard and assisted decoding."""

from __future__ import annotations

import argparse
import json
import threading
from dataclasses import asdict
from pathlib import Path

from playground.commands.arguments import (
    PRESETS_OWN,
    add_models,
    add_settings,
    check_writable,
    chosen_pair,
    flag,
    read,
    write,
)
from playground.commands.progress_bar import progress_bar
from playground.drafting_methods import METHODS
from playground.settings import PRESET

ANSWER = (
    "max_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "repetition_penalty",
    "seed",
    "system",
    "chat_template",
)


def add(commands: argparse._SubParsersAction) -> None:
    compare = commands.add_parser(
        "compare",
        help="run one prompt with standard and with speculative decoding",
        description="Runs one prompt with standard and with speculative decoding, and prints both side by side.",
    )
    compare.set_defaults(command=_compare)
    prompt = compare.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt")
    prompt.add_argument("--prompt-file", type=Path, metavar="FILE", help="a UTF-8 file with the prompt; - for stdin")
    compare.add_argument("--json", type=Path, metavar="FILE", help="write the full trace to FILE; - for stdout")
    add_models(compare)
    drafting = compare.add_argument_group("drafting")
    drafting.add_argument("--drafter", metavar="NAME", help=f"{', '.join(METHODS)} (default: {PRESETS_OWN})")
    add_settings(drafting, *PRESET, default=PRESETS_OWN)
    add_settings(drafting, "keep_free_gb")
    add_settings(compare.add_argument_group("answer"), *ANSWER)


def _compare(options: argparse.Namespace) -> None:
    from playground import export
    from playground.backends.local import LocalBackend
    from playground.experiments.compare import run
    from playground.lane import LOCAL, Request, assisted_lane, standard_lane
    from playground.models.sampling_defaults import differing
    from playground.models.store import ModelStore
    from playground.views import report

    text = options.prompt if options.prompt is not None else read(options.prompt_file)
    request = Request(text, **{name: getattr(options, name) for name in ANSWER})
    check_writable(options.json)
    pair = chosen_pair(options)
    lane = assisted_lane(pair, **{name: getattr(options, name) for name in ("drafter", *PRESET, "keep_free_gb")})
    store = ModelStore()
    with progress_bar(options.max_new_tokens) as emit:
        backends = {LOCAL: LocalBackend(store, pair, options.dtype, options.device)}
        comparison = run([standard_lane(pair), lane], request, backends, stop=threading.Event(), emit=emit)
    assert comparison, "nobody stops it"
    document = json.dumps(export.to_json(comparison), indent=1)
    if options.json == Path("-"):
        print(document)
        return
    if options.json:
        write(options.json, document)
    print(report.table(comparison))
    if differ := differing(store.sampling_defaults(pair.target), asdict(request)):
        flags = " ".join(f"{flag(name)} {value:g}" for name, value in differ.items())
        print(f"The model comes with other sampling settings: {flags}")
