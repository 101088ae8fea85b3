"""llama.cpp's HTTP server out of the wheel xllamacpp, with llama-server's options."""

from __future__ import annotations

import argparse
import threading
from typing import Any

QUIET = -1  # a level of llama.cpp's verbosity


def main() -> None:
    import xllamacpp

    lookups, models = _drafters(xllamacpp)
    options = _parser(lookups, models).parse_args()
    params = xllamacpp.CommonParams()
    params.model.path, params.hostnames, params.port = options.model, [options.host], options.port
    params.n_ctx, params.n_parallel = options.ctx_size, options.parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.endpoint_metrics, params.verbosity = options.metrics, QUIET
    if options.spec_type in models:
        params.speculative.types = [models[options.spec_type]]
        draft = params.speculative.draft
        draft.mparams.path, draft.n_max, draft.p_min = options.model_draft, options.spec_draft_n_max, 0.0
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = options.threads
    elif options.spec_type:
        name = options.spec_type.replace("-", "_")
        params.speculative.types = [lookups[options.spec_type]]
        sizes = getattr(params.speculative, name)
        sizes.size_n, sizes.size_m = (getattr(options, f"spec_{name}_{size}") for size in ("size_n", "size_m"))
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


def _drafters(xllamacpp: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the lookups of this build that have the sizes n and m, and the drafters that use a model or a network, by
    llama-server's names."""
    params, prefix = xllamacpp.CommonParams().speculative, "COMMON_SPECULATIVE_TYPE_"
    kinds = {kind.name.removeprefix(prefix).lower(): kind for kind in xllamacpp.common_speculative_type}
    lookups = [name for name in kinds if hasattr(getattr(params, name, None), "size_n")]
    models = [name for name in kinds if name.startswith("draft_")]
    named = [{name.replace("_", "-"): kinds[name] for name in names} for names in (lookups, models)]
    return named[0], named[1]


def _parser(lookups: dict[str, Any], models: dict[str, Any]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    for name in ("--port", "--ctx-size", "--parallel", "--threads"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--spec-type", choices=[*lookups, *models])
    parser.add_argument("--model-draft", "-md", default="")
    parser.add_argument("--spec-draft-n-max", type=int, default=3)
    for lookup in lookups:
        for size in ("size-n", "size-m"):
            parser.add_argument(f"--spec-{lookup}-{size}", type=int, default=3)
    return parser


if __name__ == "__main__":
    main()
