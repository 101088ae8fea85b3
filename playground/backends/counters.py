"""A server's own counts of what it decoded, from /metrics, by one name for both kinds of server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from playground.backends.prometheus import Sample, samples

PREFIXES = ("vllm:", "llamacpp:")


@dataclass(frozen=True)
class Counters:
    """Counts since the server started, over all requests. None where it does not report them.

    `drafts`: verify steps that had a draft. `accepted_at`: accepted tokens by position in the draft, the first
    position first. `running` and `waiting` are requests now.
    """

    drafts: int | None
    drafted: int | None
    accepted: int | None
    accepted_at: tuple[int, ...]
    tokens: int
    running: int
    waiting: int


def counters(text: str) -> Counters:
    """Reads what vLLM or llama-server shows. Several engines of a server are added up."""
    found = [
        sample._replace(name=sample.name.removeprefix(prefix))
        for sample in samples(text)
        for prefix in PREFIXES
        if sample.name.startswith(prefix)
    ]
    by_position: dict[int, int] = {}
    for sample in found:
        if sample.name == "spec_decode_num_accepted_tokens_per_pos_total":
            position = int(sample.labels.get("position", 0))
            by_position[position] = by_position.get(position, 0) + int(sample.value)
    return Counters(
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
