"""The command `export-drafter`, which writes a trained drafter for other engines."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from playground.commands.arguments import DEFAULT
from playground.commands.progress_bar import progress_bar
from playground.errors import PlaygroundError, check

if TYPE_CHECKING:  # torch would slow every command down
    from torch import Tensor

    from playground.models.load import LoadedModel
    from playground.views.engines import Settings


LAYOUTS = ("speculators", "z-lab")


def add(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "export-drafter",
        help="write a trained drafter for vLLM, SGLang or llama.cpp",
        description="Writes a drafter in a layout that other engines read, checks it by loading it again, and prints "
        "how they serve it. vLLM reads the layout of speculators; llama.cpp and SGLang read DFlash in z-lab's.",
    )
    parser.set_defaults(command=_export)
    parser.add_argument("drafter", metavar="DRAFTER", help="a folder, also one of assets/drafters")
    parser.add_argument("--target", default="starter", metavar="MODEL", help=f"its target {DEFAULT}")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder for it")
    parser.add_argument("--layout", default=LAYOUTS[0], choices=LAYOUTS, help=f"z-lab: for DFlash only {DEFAULT}")


def _export(options: argparse.Namespace) -> None:
    from playground.drafting_methods import METHODS
    from playground.models.device import resolve_device
    from playground.models.fetch.shipped import written_out
    from playground.models.load import Format, load
    from playground.presets import folder_of, kind_of
    from playground.views import engine_commands, engines

    folder = folder_of(options.drafter)
    check((folder / "config.json").is_file(), f"There is no drafter at {options.drafter}. Name the folder of one.")
    kind = kind_of(options.drafter) or "assistant"
    if kind in engine_commands.ONLY_HERE:
        advice = "`distil eagle3 --start-from` makes an EAGLE-3 head of an MTP layer, which engines read."
        raise PlaygroundError(f"{options.drafter} cannot be exported. {engine_commands.ONLY_HERE[kind]} {advice}")
    check(options.layout == LAYOUTS[0] or kind == "dflash", f"z-lab's layout is DFlash's; {options.drafter} is {kind}.")
    check(not options.out.exists(), f"{options.out} exists already. Name a new folder.")

    import torch

    device = resolve_device("cpu")
    with progress_bar(0) as emit:
        target = load(options.target, Format(torch.float32, device), emit)
        whole = written_out(folder, emit)
    shutil.copytree(whole, options.out)
    if kind == "assistant":
        from playground.models.networks.made_for import check_same_tokenizer

        check_same_tokenizer(target, load(str(options.out), Format(torch.float32, device), emit))
    else:
        loader = resolve_name(METHODS[kind].loader)
        if options.layout == "z-lab":
            _write_zlab(options.out, target)
        wrote, had = (loader(str(it), target, emit).network.state_dict() for it in (options.out, folder))
        _check_same(wrote, had)
    print(f"{options.out} holds a drafter ({kind}, layout: {options.layout}) that loads and has the same weights.\n")
    print(engines.text(_commands(options, kind)))


def _write_zlab(folder: Path, target: LoadedModel) -> None:
    from playground_distil.speculators import as_zlab, published_state, save_speculators, shares_head

    config, state = json.loads((folder / "config.json").read_text(encoding="utf-8")), published_state(str(folder))
    check(
        "aux_hidden_state_layer_ids" in config and not config.get("sample_from_anchor"),
        "Only a DFlash drafter in the layout of speculators, whose first slot drafts nothing, converts to z-lab's.",
    )
    check(
        shares_head(state, target.model),
        "This drafter's head is not the target's, and z-lab's layout has no head of its own. Export it for vLLM.",
    )
    layers = target.model.config.get_text_config(decoder=True).num_hidden_layers
    zlab, kept = as_zlab({**config, "num_target_layers": layers}, state)
    card = folder / "README.md"
    save_speculators(folder, zlab, kept, card.read_text(encoding="utf-8") if card.is_file() else "")


def _check_same(wrote: Mapping[str, Tensor], had: Mapping[str, Tensor]) -> None:
    """Checks that a written drafter has the tensors of the original.

    Raises:
        PlaygroundError: a written tensor differs, or the original has none of its name.
    """
    odd = [name for name in wrote if name not in had or not wrote[name].equal(had[name])]
    check(not odd, f"What was written is not what was read: {', '.join(odd[:3])} differ. The folder is not complete.")


def _commands(options: argparse.Namespace, kind: str) -> list[Settings]:
    """Returns the settings of each engine that can serve the drafter, and why others cannot."""
    from playground.lane import Lane
    from playground.views import engines

    config = json.loads((options.out / "config.json").read_text(encoding="utf-8"))
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    k = methods[0].get("speculative_tokens") or max(1, config.get("block_size", 5) - 1)
    found = engines.settings(Lane("drafter", options.target, kind, str(options.out), lookahead=k))
    written = [it for it in found if it.engine in ("vLLM", "SGLang", "llama-server")]
    return [_readable(it, options, kind) for it in written]


def _readable(command: Settings, options: argparse.Namespace, kind: str) -> Settings:
    """Returns the command with the conversion before it; without it, where the engine does not read the written
    format."""
    from playground.views.engine_commands import READ_BY

    readers = READ_BY.get((options.layout, kind), ("vLLM",))
    if command.text and command.engine not in readers:
        other = " Export it with --layout z-lab." if kind == "dflash" and options.layout == LAYOUTS[0] else ""
        return replace(command, text="", note=f"It does not read {kind} in the layout of {options.layout}.{other}")
    if command.engine != "llama-server" or not command.text:
        return command
    convert = "python convert_hf_to_gguf.py"
    of = "" if kind == "assistant" else " --target-model-dir TARGET"
    out = shlex.quote(str(options.out))
    steps = f"{convert} TARGET --outfile MODEL.gguf\n{convert} {out}{of} --outfile DRAFTER.gguf\n"
    note = f"TARGET is a folder with {options.target}; the converter is in llama.cpp's sources."
    return replace(command, text=steps + command.text, note=note)
