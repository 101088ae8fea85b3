"""llama.cpp's HTTP server out of the wheel xllamacpp, with llama-server's options."""

from __future__ import annotations

import argparse
import threading
from typing import Any

QUIET = -1  # a level of llama.cpp's verbosity
SIZES = ("size_n", "size_m", "n_match", "n_min", "n_max")  # of lookups; each has two or three of them


def main() -> None:
    import xllamacpp

    kinds = _drafters(xllamacpp)
    params = xllamacpp.CommonParams()
    options = _parser(params, kinds).parse_args()
    params.model.path, params.hostnames, params.port = options.model, [options.host], options.port
    params.n_ctx, params.n_parallel = options.ctx_size, options.parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.endpoint_metrics, params.verbosity = options.metrics, QUIET
    if options.spec_type:
        params.speculative.types = [kinds[name] for name in options.spec_type]
    draft = params.speculative.draft
    draft.mparams.path, draft.n_max, draft.p_min = options.model_draft, options.spec_draft_n_max, 0.0
    draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = options.threads
    for lookup, size in _sizes(params, kinds):
        name = lookup.replace("-", "_")
        setattr(getattr(params.speculative, name), size, getattr(options, f"spec_{name}_{size}"))
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


def _drafters(xllamacpp: Any) -> dict[str, Any]:
    """Returns the lookups of this build that have sizes, and the drafters that use a model or a network, by
    llama-server's names."""
    params, prefix = xllamacpp.CommonParams().speculative, "COMMON_SPECULATIVE_TYPE_"
    kinds = {kind.name.removeprefix(prefix).lower(): kind for kind in xllamacpp.common_speculative_type}
    sized = {name for name in kinds for size in SIZES if hasattr(getattr(params, name, None), size)}
    return {name.replace("_", "-"): kind for name, kind in kinds.items() if name in sized or name.startswith("draft_")}


def _sizes(params: Any, kinds: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the sizes of each lookup, by llama-server's name."""
    of = {name: getattr(params.speculative, name.replace("-", "_"), None) for name in kinds}
    return [(name, size) for name, sizes in of.items() for size in SIZES if hasattr(sizes, size)]


def _parser(params: Any, kinds: dict[str, Any]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    for name in ("--port", "--ctx-size", "--parallel", "--threads"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--spec-type", type=lambda text: _types(text, kinds), metavar="TYPE,…")
    parser.add_argument("--model-draft", "-md", default="")
    parser.add_argument("--spec-draft-n-max", type=int, default=3)
    for lookup, size in _sizes(params, kinds):
        usual = getattr(getattr(params.speculative, lookup.replace("-", "_")), size)
        parser.add_argument(f"--spec-{lookup}-{size.replace('_', '-')}", type=int, default=usual)
    return parser


def _types(text: str, kinds: dict[str, Any]) -> list[str]:
    """Reads drafters such as "ngram-mod,draft-mtp", which are tried in this order."""
    names = text.split(",")
    if unknown := [name for name in names if name not in kinds]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(kinds)}")
    return names


if __name__ == "__main__":
    main()
