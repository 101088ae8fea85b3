"""Drafters over a suite of prompts: tokens per target pass and speed-up over the standard lane, by category.

Each prompt goes through the standard lane and then through every assisted one, in turn, so that a machine that slows
down slows them all alike. Where it does so several times, the quickest run of each lane counts: whatever else uses the
machine makes a run slower, and never quicker. The speed-up of a prompt compares time a token, prefill included,
measured in the loop.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import bootstrap

from playground.decoding.text import encode
from playground.drafting_methods import METHODS
from playground.errors import PlaygroundError
from playground.experiments.compare import LaneRun, room_for
from playground.experiments.environment import describe
from playground.lane import Lane, Request
from playground.models.store import LoadedPair, ModelStore
from playground.presets import Pair, load_suites
from playground.trace import Round

MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
STANDARD = "standard"


@dataclass(frozen=True)
class Question:
    category: str
    request: Request


@dataclass(frozen=True)
class Row:
    """One prompt through one lane: the quickest run. `seconds`: from the prompt's first token in to the last one out.
    `speedup`: time a token of the standard lane, over that of this one. `identical`: every run wrote the same tokens as
    those of the standard lane."""

    question: int
    category: str
    lane: str
    tokens: int
    passes: int
    seconds: float
    drafting_s: float
    accepted: int
    drafted: int
    speedup: float
    identical: bool


@dataclass(frozen=True)
class Summary:
    """Over the prompts of a category. `speedup`: median, `low` and `high`: quartiles. `overall`: the ratio of the time
    a token of all prompts together; `interval`: its 95 % bootstrap interval over prompts, where there are enough."""

    lane: str
    category: str
    prompts: int
    mean_accepted_length: float
    acceptance_rate: float
    speedup: float
    low: float
    high: float
    overall: float
    interval: tuple[float, float] | None
    identical: int


def questions(source: str, per_category: int | None, sampling: dict[str, object]) -> list[Question]:
    """A suite of presets/prompts by its name, or a file of Spec-Bench's form: a JSON object a line, with `category` and
    `turns`, of which the first is asked. MT-Bench's eight categories count as one, as in Spec-Bench's tables.

    Raises:
        PlaygroundError: there is no such suite and no such file, or the file is not of this form.
    """
    suites, _ = load_suites()
    if source in suites:
        found = [Question(p.kind, Request(p.text, system=p.system, **sampling)) for p in suites[source].prompts]
    else:
        try:
            lines = [json.loads(line) for line in Path(source).read_text(encoding="utf-8").splitlines() if line.strip()]
            found = [
                Question(
                    "mt_bench" if line["category"] in MT_BENCH else line["category"],
                    Request(_first(line["turns"]), **sampling),
                )
                for line in lines
            ]
            if not found:
                raise ValueError("it is empty")
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise PlaygroundError(
                f"{source} is no suite ({type(error).__name__}: {error}). Name one of {', '.join(suites)}, or a file "
                'with a JSON object a line: {"category": …, "turns": [prompt, …]}.'
            ) from error
    if per_category is None:
        return found
    groups: dict[str, list[Question]] = {}
    for question in found:
        groups.setdefault(question.category, []).append(question)
    return [question for group in groups.values() for question in _spread(group, per_category)]


def run(
    pair: Pair,
    lanes: Sequence[Lane],
    asked: Sequence[Question],
    runs: int,
    *,
    dtype: str,
    device: str,
    say: Callable[[str], None],
) -> dict:
    """Returns the rows, the summaries and the environment, as JSON takes them.

    Args:
        runs: how often each prompt goes through each lane.

    Raises:
        PlaygroundError: a model that cannot be had, or a prompt that its context does not hold.
    """
    store, quiet = ModelStore(), lambda step: None
    models = {
        lane.drafter: store.get(pair, drafter=lane.drafter, dtype=dtype, device=device, progress=quiet)
        for lane in lanes
    }
    some = next(iter(models.values()))
    standard = Lane("Standard", pair.target)
    in_turn = {STANDARD: (some, standard)} | {label(lane): (models[lane.drafter], lane) for lane in lanes}
    for question in asked:  # before the first run, not in the middle of a long one
        room_for(some.target, encode(some.target.tokenizer, question.request))
    for lane_models, lane in in_turn.values():
        _decode(lane_models, lane, asked[0].request)  # warm up
    environment = describe(some, standard)
    rows: list[Row] = []
    for number, question in enumerate(asked):
        done: dict[str, list[list[Round]]] = {name: [] for name in in_turn}
        for _, (name, (lane_models, lane)) in itertools.product(range(runs), in_turn.items()):
            done[name].append(_decode(lane_models, lane, question.request))
        plain, *assisted = [_row(number, question.category, name, it, done[STANDARD]) for name, it in done.items()]
        rows += [plain, *assisted]
        told = ", ".join(f"{row.lane} {row.speedup:.2f}×" for row in assisted)
        say(f"{number + 1}/{len(asked)} {question.category}: {told}")
    return {
        "environment": dataclasses.asdict(environment),
        "request": dataclasses.asdict(dataclasses.replace(asked[0].request, prompt="…", system="")),
        "runs": runs,
        "lanes": [dataclasses.asdict(lane) for lane in lanes],
        "summaries": [dataclasses.asdict(summary) for summary in summarise(rows)],
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def label(lane: Lane) -> str:
    policy = "" if lane.policy == "constant" else f", {lane.policy}"
    threshold = f" {lane.confidence_threshold:g}" if lane.policy == "confidence" else ""
    tree = f", {lane.nodes} nodes" if METHODS[lane.drafter].tree else ""
    return f"{lane.drafter} {lane.lookahead}{tree}{policy}{threshold}"


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """Every assisted lane over each category and over all prompts, in the order in which they came."""
    plain = {row.question: row for row in rows if row.lane == STANDARD}
    categories = list(dict.fromkeys(row.category for row in rows))
    lanes = list(dict.fromkeys(row.lane for row in rows if row.lane != STANDARD))
    summaries = []
    for lane, category in itertools.product(lanes, [*categories, "all"]):
        here = [row for row in rows if row.lane == lane and category in (row.category, "all")]
        speedups = sorted(row.speedup for row in here)
        quartiles = statistics.quantiles(speedups, n=4, method="inclusive") if len(here) > 1 else speedups * 3
        beside = [plain[row.question] for row in here]
        times = np.array([[a.seconds, a.tokens, b.seconds, b.tokens] for a, b in zip(here, beside, strict=True)])
        summaries.append(
            Summary(
                lane=lane,
                category=category,
                prompts=len(here),
                mean_accepted_length=sum(row.tokens for row in here) / sum(row.passes for row in here),
                acceptance_rate=sum(row.accepted for row in here) / max(1, sum(row.drafted for row in here)),
                speedup=statistics.median(speedups),
                low=quartiles[0],
                high=quartiles[2],
                overall=_overall(*times.T),
                interval=_interval(times) if len(here) >= 8 else None,
                identical=sum(row.identical for row in here),
            )
        )
    return summaries


def _first(turns: list[str]) -> str:
    if not isinstance(turns, list) or not isinstance(turns[0], str):
        raise TypeError("turns is no list of prompts")
    return turns[0]


def _spread(group: list[Question], n: int) -> list[Question]:
    """n of them, evenly from the first to the last."""
    return group if len(group) <= n else [group[i * len(group) // n] for i in range(n)]


def _decode(models: LoadedPair, lane: Lane, request: Request) -> list[Round]:
    prompt_ids = encode(models.target.tokenizer, request)
    max_new_tokens = min(request.max_new_tokens, room_for(models.target, prompt_ids))
    return list(LaneRun(models, lane, request, prompt_ids, max_new_tokens).rounds)


def _seconds(rounds: Sequence[Round]) -> float:
    return rounds[-1].end_s


def _ids(rounds: Sequence[Round]) -> list[int]:
    return [token.id for round_ in rounds for token in round_.tokens]


def _row(number: int, category: str, lane: str, runs: list[list[Round]], plain_runs: list[list[Round]]) -> Row:
    rounds, plain = (min(of_lane, key=_seconds) for of_lane in (runs, plain_runs))
    ids, plain_ids = _ids(rounds), _ids(plain)
    drafted = [token for round_ in rounds for token in round_.drafted]
    return Row(
        question=number,
        category=category,
        lane=lane,
        tokens=len(ids),
        passes=len(rounds),
        seconds=_seconds(rounds),
        drafting_s=sum(round_.draft_s for round_ in rounds),
        accepted=sum(token.decision == "accepted" for token in drafted),
        drafted=len(drafted),
        speedup=(_seconds(plain) / len(plain_ids)) / (_seconds(rounds) / len(ids)),
        identical=all(_ids(run) == plain_ids for run in [*runs, *plain_runs]),
    )


def _overall(seconds: np.ndarray, tokens: np.ndarray, plain_s: np.ndarray, plain_tokens: np.ndarray) -> float:
    return float((plain_s.sum() / plain_tokens.sum()) / (seconds.sum() / tokens.sum()))


def _interval(times: np.ndarray) -> tuple[float, float]:
    ends = bootstrap(
        tuple(times.T), _overall, paired=True, vectorized=False, n_resamples=2000, method="percentile", rng=0
    ).confidence_interval
    return float(ends.low), float(ends.high)
