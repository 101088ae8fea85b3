"""A suite's result as a Markdown table."""

from __future__ import annotations

from playground.results import SuiteResult, Summary


def table(result: SuiteResult) -> str:
    """A line for each lane and category."""
    where, asked = result.environment, result.request
    versions = ", ".join(
        f"{name} {where.versions[name]}" for name in ("torch", "transformers") if name in where.versions
    )
    fastest = f"the fastest of {result.runs} runs; " if result.runs > 1 else ""
    threads = f", {where.threads} threads" if where.threads else ""
    lines = [
        f"{where.device_name}, {where.device}, {where.dtype}{threads}, {versions}; {asked.max_new_tokens} new tokens, "
        f"temperature {asked.temperature:g}; {fastest}speed-up: median over prompts (quartiles); pooled: all prompts "
        "together (95 % bootstrap interval)",
        "",
        "| drafter, lookahead | category | prompts | tokens per pass | accepted | speed-up | pooled |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    return "\n".join([*lines, *map(_line, result.summaries)])


def _line(summary: Summary) -> str:
    pooled = f"{summary.overall:.2f}"
    if summary.interval:
        pooled += " ({:.2f} to {:.2f})".format(*summary.interval)
    cells = [
        summary.lane,
        summary.category,
        str(summary.prompts),
        f"{summary.mean_accepted_length:.2f}",
        "–" if summary.acceptance_rate is None else f"{summary.acceptance_rate:.0%}",
        f"{summary.speedup:.2f} ({summary.low:.2f} to {summary.high:.2f})",
        pooled,
    ]
    return f"| {' | '.join(cells)} |"
