"""Trains drafters on their target's answers: prompts, answers, training, the drafter's weights and model card; and
writes them for other engines (export.py).

The playground gets the commands `distil` and `export-drafter` over an entry point, as from any package.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from playground.commands.arguments import DEFAULT, count, positive, read
from playground.commands.progress_bar import progress_bar
from playground_distil import export


def add(commands: argparse._SubParsersAction) -> None:
    distil = commands.add_parser(
        "distil",
        help="train a drafter for a target on the target's own answers",
        description="Has the target write answers, then trains a drafter on them. A run that was stopped continues "
        "from its last checkpoint in --work.",
    )
    distil.set_defaults(command=_distil)
    distil.add_argument(
        "kind",
        choices=["answers", "mtp", "heads", "assistant", "eagle3", "dflash", "dspark"],
        help="drafter to train; answers: only write answers",
    )
    distil.add_argument("--target", default="starter", metavar="MODEL", help=f"a Hugging Face id or a folder {DEFAULT}")
    distil.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder for answers and checkpoints")
    distil.add_argument("--out", type=Path, metavar="DIR", help="folder for the drafter (default: WORK/KIND)")
    distil.add_argument(
        "--start-from",
        nargs="+",
        default=(),
        metavar="DIR",
        help="checkpoints to initialise from (averaged if several)",
    )
    distil.add_argument("--texts", type=Path, metavar="FILE", help="passages to build prompts from, such as summaries")
    distil.add_argument(
        "--answers", type=positive, default=1_000_000, metavar="N", help=f"tokens that the target writes {DEFAULT}"
    )
    distil.add_argument(
        "--learn", type=count, default=4_000_000, metavar="N", help=f"tokens to train on, over all epochs {DEFAULT}"
    )
    distil.add_argument(
        "--answers-at-once", type=positive, default=64, metavar="N", help=f"answers written in one batch {DEFAULT}"
    )
    distil.add_argument("--batch", type=positive, default=1024, metavar="N", help=f"tokens per step {DEFAULT}")
    distil.add_argument("--learning-rate", type=_rate, default=2e-3, metavar="X", help=f"peak learning rate {DEFAULT}")
    distil.add_argument(
        "--draft-vocabulary", type=positive, default=8192, metavar="N", help=f"tokens that can be drafted {DEFAULT}"
    )
    distil.add_argument("--seed", type=int, default=0, metavar="N", help=DEFAULT)
    distil.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"], help=DEFAULT)
    distil.add_argument("--device", default="auto", help=f"auto, cpu, cuda, cuda:1 or mps {DEFAULT}")


def _rate(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and 1")


def _distil(options: argparse.Namespace) -> None:
    from playground.models.device import resolve_device, resolve_dtype
    from playground.models.load import Format, load
    from playground.views import engine_commands
    from playground_distil.recipe import check_start, train_drafter, write_answers
    from playground_distil.train import Plan

    check_start(options.kind, options.start_from)
    if options.kind in engine_commands.ONLY_HERE:
        print(
            f"{engine_commands.ONLY_HERE[options.kind]} For engines train eagle3, dflash, dspark or an assistant.",
            flush=True,
        )
    texts = read(options.texts) if options.texts else ""
    device = resolve_device(options.device)
    with progress_bar(0) as emit:
        target = load(options.target, Format(resolve_dtype(options.dtype, device), device), emit)
    write_answers(target, options.work, options.answers, options.answers_at_once, options.seed, texts)
    if options.kind == "answers":
        return
    plan = Plan(options.learn, options.batch, options.learning_rate, seed=options.seed)
    out = options.out or options.work / options.kind
    vocabulary = options.draft_vocabulary
    start_from = options.start_from
    train_drafter(options.kind, target, options.work, out, plan, vocabulary=vocabulary, start_from=start_from)
    print(f"The drafter is in {out}. Try it: python -m playground compare --target {options.target} --assistant {out}")


COMMANDS = [add, export.add]
