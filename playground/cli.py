"""The terminal: compare, list the pairs, run the benchmark. It prints what the page would show."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from playground.errors import PlaygroundError
from playground.presets import DTYPES, Pair
from playground.progress_bar import progress_bar
from playground.ways import POLICIES, TARGETS, WAYS, help_for


def main(arguments: Sequence[str] | None = None) -> None:
    """Exits with 0, or with 2 and one sentence on standard error where the user can do something about it."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
        sys.stdout.flush()
    except PlaygroundError as error:
        print(f"playground: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # what reads the output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes as it exits
        sys.exit(141)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m playground", description="Speculative Decoding Playground")
    commands = parser.add_subparsers(required=True, metavar="command")

    compare = commands.add_parser("compare", help="one prompt through standard and assisted decoding")
    compare.set_defaults(command=_compare)
    _add_models(compare)
    compare.add_argument("--drafter", help=f"one of {', '.join(WAYS)} (default: the pair's)")
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
    compare.add_argument("--max-new-tokens", type=int, default=128)
    compare.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    compare.add_argument("--top-p", type=float, default=1.0)
    compare.add_argument("--top-k", type=int, default=0, help="0 keeps every token")
    compare.add_argument("--repetition-penalty", type=float, default=1.0)
    compare.add_argument("--seed", type=int, default=0)
    compare.add_argument("--json", type=Path, metavar="F", help="write the whole trace there; - for standard output")

    pairs = commands.add_parser("pairs", help="the presets, and which of them this machine can run now")
    pairs.set_defaults(command=_pairs)

    drafters = commands.add_parser("drafters", help="the ways of drafting: what they need, and which presets have them")
    drafters.set_defaults(command=_drafters)
    pages = [*WAYS, TARGETS]
    drafters.add_argument("name", nargs="?", choices=pages, metavar="NAME", help=f"its page of help; also {TARGETS}")
    drafters.add_argument("--json", action="store_true", help="for programs")

    bench = commands.add_parser("bench", help="ratios against transformers.generate, from interleaved runs")
    bench.set_defaults(command=_bench)
    _add_models(bench)
    bench.add_argument("--runs", type=_positive, help="interleaved runs of each side (default: 5; with --suite 1)")
    bench.add_argument("--max-new-tokens", type=int, default=128)
    bench.add_argument("--only", nargs="+", metavar="PART", help="standard ngram assistant page long start memory")
    bench.add_argument("--json", type=Path, metavar="F", help="write the result to this file")
    bench.add_argument("--suite", metavar="S", help="drafters over prompts instead: a preset's name or a .jsonl file")
    bench.add_argument("--drafters", nargs="+", help="with --suite: these drafters (default: all of the pair's)")
    bench.add_argument("--lookaheads", nargs="+", type=int, help="with --suite: at each of these (default: the pair's)")
    bench.add_argument("--policy", help=f"with --suite: one of {', '.join(POLICIES)} (default: the pair's)")
    bench.add_argument("--confidence-threshold", type=float, help="with --suite: for that policy (default: the pair's)")
    bench.add_argument("--nodes", type=int, help="with --suite: the most tokens of a draft tree (default: the pair's)")
    bench.add_argument(
        "--per-category", type=_positive, metavar="N", help="with --suite: so many prompts of each category"
    )
    bench.add_argument("--temperature", type=float, default=0.0, help="with --suite: 0 is greedy")

    distil = commands.add_parser("distil", help="train a drafter for a target on what the target writes")
    distil.set_defaults(command=_distil)
    distil.add_argument("kind", choices=["answers", "mtp", "heads", "assistant"], help="answers: only write those")
    distil.add_argument("--target", default="starter", help="a hub id or a folder (default: starter)")
    distil.add_argument("--work", type=Path, required=True, metavar="D", help="folder for answers and checkpoints")
    distil.add_argument("--out", type=Path, metavar="D", help="folder for the drafter (default: WORK/KIND)")
    distil.add_argument(
        "--start-from", nargs="+", default=(), metavar="D", help="drafters of the kind, whose mean is gone on from"
    )
    distil.add_argument("--texts", type=Path, metavar="F", help="passages for prompts that work on a text")
    distil.add_argument(
        "--answers", type=_positive, default=1_000_000, metavar="N", help="tokens that the target writes"
    )
    distil.add_argument("--learn", type=int, default=4_000_000, metavar="N", help="tokens to learn from, in all passes")
    distil.add_argument(
        "--answers-at-once", type=_positive, default=160, metavar="N", help="sequences the target writes at once"
    )
    distil.add_argument("--batch", type=_positive, default=1024, metavar="N", help="tokens in a training step")
    distil.add_argument("--learning-rate", type=float, default=2e-3)
    distil.add_argument("--draft-vocabulary", type=_positive, default=8192, help="tokens that can be drafted")
    distil.add_argument("--seed", type=int, default=0)
    distil.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    distil.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} will not do: give a whole number from 1 on")
    return int(text)


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", help="a preset's name (default: starter, or on a CUDA GPU the largest that fits)")
    parser.add_argument("--target", help="a hub id or a folder, in place of --pair")
    parser.add_argument("--assistant", help="what drafts for it: a hub id or a folder; --drafter tells what it is")
    parser.add_argument(
        "--early-exit", type=int, default=0, metavar="N", help="with --target: its first N layers draft"
    )
    parser.add_argument("--dtype", default="auto", choices=DTYPES)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")


def chosen_pair(options: argparse.Namespace) -> Pair:
    """The pair that --pair, or --target and --assistant, name.

    Raises:
        PlaygroundError: both were given, or there is no such pair.
    """
    from playground.models.memory import default_pair
    from playground.presets import custom_pair, load_pairs

    if options.target is not None or options.assistant:
        if options.pair or options.target is None:
            raise PlaygroundError("Give either --pair, or --target with or without --assistant.")
        return custom_pair(options.target, options.assistant, getattr(options, "drafter", None), options.early_exit)
    pairs, _ = load_pairs()
    if options.pair is None:
        return default_pair(pairs)
    if options.pair not in pairs:
        raise PlaygroundError(f"There is no pair {options.pair!r}. There are: {', '.join(pairs)}.")
    return pairs[options.pair]


def _compare(options: argparse.Namespace) -> None:
    from playground import export
    from playground.experiments.compare import assisted_lane, run
    from playground.models.store import ModelStore
    from playground.trace import Request
    from playground.views import report

    request = Request(
        prompt=options.prompt if options.prompt is not None else _read(options.prompt_file),
        system=options.system,
        chat_template=not options.no_chat_template,
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
    )
    _check_writable(options.json)
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
        comparison = run(
            ModelStore(),
            pair,
            lane,
            request,
            stop=threading.Event(),
            emit=emit,
            dtype=options.dtype,
            device=options.device,
        )
    document = json.dumps(export.to_json(comparison), indent=1)
    if options.json == Path("-"):
        print(document)
        return
    if options.json:
        _write(options.json, document)
    print(report.table(comparison))


def _pairs(options: argparse.Namespace) -> None:
    from playground.models.device import resolve_device
    from playground.models.memory import fits
    from playground.presets import load_pairs

    pairs, problems = load_pairs()
    device = resolve_device("auto")
    width = max(map(len, pairs), default=0)
    for pair in pairs.values():
        runs, why = fits(pair, device)
        print(f"{pair.name:<{width}}  {'yes' if runs else 'no ':<3}  {why}")
        print(f"{'':<{width}}       {pair.title}; drafters: {', '.join(pair.drafters)}")
        if pair.note:
            print(f"{'':<{width}}       {pair.note}")
    for problem in problems:
        print(f"playground: {problem}", file=sys.stderr)


def _drafters(options: argparse.Namespace) -> None:
    from playground.presets import load_pairs

    if options.name:
        print(help_for(options.name))
        return
    pairs, _ = load_pairs()
    rows = [
        {
            "name": name,
            "label": way.label,
            "needs": way.needs,
            "exact": True,
            "paper": way.paper,
            "presets": [pair.name for pair in pairs.values() if name == "none" or name in pair.drafters],
        }
        for name, way in WAYS.items()
    ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    width = max(map(len, WAYS))
    for row in rows:
        print(f"{row['name']:<{width}}  {row['label']}; exact; needs {row['needs']}")
        print(f"{'':<{width}}  {row['paper']}; in {', '.join(row['presets']) or 'no preset'}")


def _bench(options: argparse.Namespace) -> None:
    from playground.experiments import bench

    _check_writable(options.json)
    if options.suite:
        result = _bench_suite(options)
        if options.json:
            _write(options.json, json.dumps(result))
        return
    result = bench.run(
        chosen_pair(options),
        runs=options.runs or 5,
        max_new_tokens=options.max_new_tokens,
        only=options.only,
        dtype=options.dtype,
        device=options.device,
        say=print,
    )
    if options.json:
        _write(options.json, json.dumps(result, indent=1))


def _bench_suite(options: argparse.Namespace) -> dict:
    from playground.experiments import suite
    from playground.experiments.compare import assisted_lane
    from playground.views import report

    pair = chosen_pair(options)
    lanes = [
        assisted_lane(pair, drafter, lookahead, options.policy, options.confidence_threshold, options.nodes)
        for drafter in options.drafters or pair.drafters
        for lookahead in options.lookaheads or [pair.lookahead]
    ]
    sampling = {"max_new_tokens": options.max_new_tokens, "temperature": options.temperature}
    asked = suite.questions(options.suite, options.per_category, sampling)
    result = suite.run(pair, lanes, asked, options.runs or 1, dtype=options.dtype, device=options.device, say=print)
    print(report.suite_table(result))
    return result


def _distil(options: argparse.Namespace) -> None:
    from playground.distil.recipe import check_start, train_drafter, write_answers
    from playground.distil.train import Plan
    from playground.models.device import resolve_device, resolve_dtype
    from playground.models.load import load

    check_start(options.kind, options.start_from)
    texts = _read(options.texts) if options.texts else ""
    device = resolve_device(options.device)
    with progress_bar(0) as emit:
        target = load(options.target, resolve_dtype(options.dtype, device), device, emit)
    write_answers(target, options.work, options.answers, options.answers_at_once, options.seed, texts)
    if options.kind == "answers":
        return
    plan = Plan(options.learn, options.batch, options.learning_rate, seed=options.seed)
    out = options.out or options.work / options.kind
    vocabulary = options.draft_vocabulary
    start_from = options.start_from
    train_drafter(options.kind, target, options.work, out, plan, vocabulary=vocabulary, start_from=start_from)
    print(f"The drafter is in {out}. Try it: python -m playground compare --target {options.target} --assistant {out}")


def _read(path: Path) -> str:
    """Raises:
    PlaygroundError: the file cannot be read, or is no UTF-8 text.
    """
    try:
        return sys.stdin.read() if path == Path("-") else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlaygroundError(f"The file {path} cannot be read ({error}). Give a UTF-8 text file.") from error


def _check_writable(path: Path | None) -> None:
    """Before a long run, not behind it.

    Raises:
        PlaygroundError: there is no folder to write into, or a folder stands where the file would.
    """
    if path and path.is_dir():
        raise PlaygroundError(f"{path} is a folder. Name a file to write.")
    if path and not path.parent.is_dir():
        raise PlaygroundError(
            f"There is no folder {path.parent} to write {path.name} into. Make it, or choose another."
        )


def _write(path: Path, text: str) -> None:
    """Raises:
    PlaygroundError: the file cannot be written.
    """
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise PlaygroundError(f"{path} cannot be written ({error}). Choose another file.") from error
