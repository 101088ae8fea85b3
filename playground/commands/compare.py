"""The commands `compare`, which runs a prompt with and without speculation, and `why`, which explains the speed-up."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from playground.backends.connect import Servers, programs
from playground.commands.arguments import (
    PRESETS_OWN,
    STDOUT,
    add_models,
    add_outputs,
    add_settings,
    check_writable,
    chosen_pair,
    count,
    positive_number,
    read,
    show,
    text_or_file,
    value_of,
    write,
)
from playground.commands.progress_bar import follow
from playground.commands.servers import add_serve, served
from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError, check
from playground.lane import LOCAL, Lane
from playground.settings import ANSWER, PRESET, differing, flag

if TYPE_CHECKING:  # torch would slow every command down
    from playground.backends.base import Backend
    from playground.models.store import ModelStore
    from playground.trace import Comparison


def add(commands: argparse._SubParsersAction) -> None:
    compare = commands.add_parser(
        "compare",
        help="run one prompt with standard and with speculative decoding",
        description="Runs one prompt with standard and with speculative decoding, and prints both side by side.",
    )
    compare.set_defaults(command=_compare)
    prompt = compare.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt")
    prompt.add_argument("--prompt-file", type=Path, metavar="FILE", help="a UTF-8 file with the prompt; - for stdin")
    add_settings(compare, "messages")
    add_outputs(compare, "the full trace", "a page with the replay")
    compare.add_argument(
        "--repeat",
        type=count,
        default=0,
        metavar="N",
        help="run all lanes N times more, interleaved, so that the speed-up has a narrower interval (default: 0)",
    )
    add_models(compare)
    servers = compare.add_argument_group("servers", f"{programs()}, each found by asking it; docs/servers.md")
    servers.add_argument("--server", metavar="URL", help="add a lane that this server decodes")
    servers.add_argument(
        "--baseline-server", metavar="URL", help="compare with this server's lane; without it, with the pair's own"
    )
    servers.add_argument(
        "--model", default="", metavar="NAME", help="the name of the server's model, if it has several"
    )
    add_serve(servers)
    drafting = compare.add_argument_group("drafting")
    drafting.add_argument(
        "--all-drafters", action="store_true", help="run every drafter of the pair, and say which one is fastest here"
    )
    drafting.add_argument(
        "--adapter",
        metavar="FOLDER",
        help="a LoRA adapter for the target: add a lane on the target with it, the drafter unchanged",
    )
    drafting.add_argument("--drafter", metavar="NAME", help=f"{', '.join(METHODS)} (default: {PRESETS_OWN})")
    add_settings(drafting, *PRESET, default=PRESETS_OWN)
    add_settings(drafting, "keep_free_gb")
    drafting.add_argument(
        "--force-acceptance", type=_rates, metavar="RATES", default=(),
        help="adds a synthetic lane whose verdicts are drawn: the chance to accept at each position, such as 0.8,0.6",
    )  # fmt: skip
    add_settings(compare.add_argument_group("answer"), *ANSWER)


def _compare(options: argparse.Namespace) -> None:
    from playground.experiments.events import Finished
    from playground.experiments.session import Run
    from playground.experiments.work import Compare
    from playground.lane import read_request
    from playground.models.store import ModelStore

    check(not (options.all_drafters and options.drafter), "Give either --drafter or --all-drafters.")
    check(
        not (options.all_drafters and options.force_acceptance),
        "Forced acceptance is of one drafter: leave --all-drafters out.",
    )
    check(
        options.prompt is not None or bool(options.prompt_file or options.messages),
        "Give a prompt with --prompt or --prompt-file, or a conversation with --messages.",
    )
    text = read(options.prompt_file) if options.prompt_file else options.prompt or ""
    request = read_request(text, text_or_file(options.messages), {name: value_of(options, name) for name in ANSWER})
    check_writable(options.json, options.html)
    store = ModelStore()
    lanes, backends, baseline = _lanes(options, store)
    work = Compare(lanes, request, skip=options.all_drafters, baseline=baseline, repeats=options.repeat)
    run = Run(partial(work, backends))
    run.begin()
    try:
        error = follow(run, options.max_new_tokens)
    finally:
        for backend in backends.values():
            backend.close()
    found = [event.comparison for event in run.events if isinstance(event, Finished)]
    if found:  # an error in a later lane does not discard the earlier lanes
        _keep(found[-1])
        show(found[-1], options)
    if error:
        raise error
    if run.watch.stopped():
        sys.exit(130)
    targets = {lane.target for lane in lanes if lane.backend == LOCAL}
    for target in targets if options.json != STDOUT else ():
        if differ := differing(store.sampling_defaults(target), asdict(request)):
            flags = " ".join(f"{flag(name)} {value:g}" for name, value in differ.items())
            print(f"The model recommends different sampling settings: {flags}")


def _lanes(options: argparse.Namespace, store: ModelStore) -> tuple[list[Lane], dict[str, Backend], str]:
    """Returns the lanes, their backends, and the name of the baseline."""
    from playground.backends.local import LocalBackend
    from playground.lane import adapted, lanes_of, synthetic
    from playground.models.device import keeps_blocks, resolve_device

    lanes: list[Lane] = []
    backends: dict[str, Backend] = {}
    if options.pair or options.target or not (options.server or options.serve):
        pair = chosen_pair(options)
        lanes = lanes_of(pair, vars(options), every=options.all_drafters)
        if options.force_acceptance:
            lanes.append(synthetic(lanes[-1], options.force_acceptance))
        dtype = options.dtype
        if options.adapter:
            lanes.append(adapted(lanes_of(pair, vars(options))[1], options.adapter))
            # A GGUF file's 4-bit blocks take no adapter, and the lanes must differ by the adapter alone.
            asked = pair.dtype if dtype == "auto" else dtype
            dtype = "float16" if asked == "auto" and keeps_blocks(asked, resolve_device(options.device)) else dtype
        backends[LOCAL] = LocalBackend(store, pair, dtype, options.device, by_turns=not options.one_after_the_other)
    if options.serve:
        check(not (options.server or options.baseline_server), "Give either --serve, or the addresses of servers.")
        standard, assisted, server = served(options)
        return [standard, *lanes, assisted], {**backends, standard.backend: server}, standard.name
    servers = Servers(options.server or "", options.baseline_server or "", options.model, options.lookahead)
    lanes, in_servers, baseline = servers.with_local(lanes)
    backends |= in_servers
    if options.server and lanes[-1].drafter == "none":
        plain = in_servers[lanes[-1].backend]
        print(f"playground: {plain.name} does not speculate. {plain.how_to_speculate}", file=sys.stderr)
    check(len(lanes) > 1, "One server is no comparison. Add --baseline-server URL, or --pair NAME.")
    return lanes, backends, baseline


def _rates(text: str) -> tuple[float, ...]:
    """Reads rates such as "0.8,0.6"."""
    return tuple(map(float, text.split(",")))


def _keep(comparison: Comparison) -> None:
    """Stores the comparison in the history, unless a lane was stopped. A folder that cannot be written does not fail
    the comparison."""
    from playground.experiments.history import open_history
    from playground.experiments.session import keep
    from playground.views import drafters

    if any(trace.finish == "stopped" for trace in comparison.lanes):
        return
    try:
        keep(open_history(), comparison, drafters.of(comparison)[0].lane)
    except PlaygroundError as error:
        print(f"playground: {error}", file=sys.stderr)


def add_why(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "why",
        help="explain a measured speed-up",
        description="Explains the speed-up of a saved comparison: what tokens per check would allow, what drafting, "
        "wider verify passes and the rest cost, and what another lookahead would have given.",
    )
    parser.set_defaults(command=_why)
    parser.add_argument("trace", type=Path, metavar="FILE", help="a trace, as `compare --json` or the page writes it")
    parser.add_argument("--published", type=positive_number, metavar="X", help="a published speed-up to compare with")
    parser.add_argument(
        "--published-length",
        type=positive_number,
        metavar="TOKENS",
        help="its tokens per check (mean accepted length), where it is published",
    )
    parser.add_argument(
        "--hourly-rate", type=positive_number, metavar="PRICE", help="what the machine costs an hour: price per million"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE; - for stdout")


def _why(options: argparse.Namespace) -> None:
    from playground import export

    check(options.published or not options.published_length, "--published-length goes with --published.")
    comparison = export.load(read(options.trace))
    results = [_lane(comparison, options, i) for i in range(len(comparison.others))]
    if options.json:
        write(options.json, json.dumps(results, indent=1))
    if options.json != STDOUT:
        print("\n\n".join(result["text"] for result in results))


def _lane(comparison: Comparison, options: argparse.Namespace, i: int) -> dict:
    from playground import metrics, theory
    from playground.theory.lookahead import asynchronous
    from playground.views import why

    name = comparison.others[i].lane.name
    measured = metrics.measured(comparison, name)
    other, both = measured.ours, (measured.base, measured.ours)
    found = theory.attribute(measured)
    if found is None:
        raise PlaygroundError(f"{other.lane.name} has too few rounds with a draft to explain.")
    lines = [other.lane.name, why.paragraph(measured)]
    result: dict = {"lane": other.lane.name, "attribution": asdict(found)}
    if options.published and (decoding := theory.decoding(*both)):
        against = theory.published(decoding, options.published, options.published_length)
        result["published"] = asdict(against)
        lines.append(why.against(decoding, against))
    if whatif := theory.what_if(*both):
        result["lookahead"] = asdict(whatif)
        lines += [why.lookahead(whatif, other), why.table(whatif).text()]
    if ahead := asynchronous(measured):
        result["second_device"] = asdict(ahead)
        lines.append(why.second_device(ahead))
    if points := theory.batches_of(*both):
        result["by_batch"] = [asdict(point) for point in points]
        lines.append(why.batches(points))
    if loads := theory.loads_of(*both):
        result["under_load"] = [asdict(point) for point in loads]
        lines.append(why.load(loads))
    lines += filter(None, map(why.limit, both))
    if options.hourly_rate:
        prices = {lane.lane.name: theory.price_of(lane, options.hourly_rate) for lane in both}
        result["price_per_million"] = prices
        lines.append(why.cost_table(both, options.hourly_rate).text())
    return {**result, "text": "\n".join(lines)}
