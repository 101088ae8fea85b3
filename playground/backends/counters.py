"""A server's own counts, from /metrics, by one name for both kinds of server."""

from __future__ import annotations

from collections.abc import Sequence

from playground.backends.prometheus import Sample, samples
from playground.errors import check
from playground.metrics.serving import Counts

PREFIXES = ("vllm:", "llamacpp:")


def counters(text: str) -> Counts:
    """Reads what vLLM or llama-server shows at /metrics. Several engines of a server are added up.

    Raises:
        PlaygroundError: these are the metrics of another program.
    """
    found = [
        sample._replace(name=sample.name.removeprefix(prefix))
        for sample in samples(text)
        for prefix in PREFIXES
        if sample.name.startswith(prefix)
    ]
    check(bool(found), "The server's /metrics has no counters of vLLM or llama-server.")
    by_position: dict[int, int] = {}
    for sample in found:
        if sample.name == "spec_decode_num_accepted_tokens_per_pos_total":
            position = int(sample.labels.get("position", 0))
            by_position[position] = by_position.get(position, 0) + int(sample.value)
    return Counts(
        drafts=_total(found, "spec_decode_num_drafts_total"),
        drafted=_total(found, "spec_decode_num_draft_tokens_total"),
        accepted=_total(found, "spec_decode_num_accepted_tokens_total"),
        accepted_at=tuple(by_position[position] for position in sorted(by_position)),
        tokens=_total(found, "generation_tokens_total", "tokens_predicted_total") or 0,
        running=_total(found, "num_requests_running", "requests_processing") or 0,
        waiting=_total(found, "num_requests_waiting", "requests_deferred") or 0,
    )


def _total(found: Sequence[Sample], *names: str) -> int | None:
    """The sum over labels; None if there is no such sample."""
    values = [sample.value for sample in found if sample.name in names]
    return int(sum(values)) if values else None
