"""A result worth citing, as one small file: what ran on what, how often, the counts and times, and how sure it is.

A record holds no text of the prompts unless that is wanted, no address of a server and no path of a machine. Its sums
are checked wherever it is read, so that one edited by hand does not pass unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from math import isclose
from pathlib import Path
from typing import Any, Literal

from playground import ROOT, __version__, metrics, validation
from playground.errors import PlaygroundError, check
from playground.format import count
from playground.lane import LOCAL, Lane, Request, label, names, verified_by
from playground.metrics import PositionAcceptance, Timed
from playground.presets import SHIPPED
from playground.results import STANDARD as BASELINE
from playground.results import Interval, Result, Row, SuiteResult, from_json, speedups
from playground.settings import SETTINGS, AnswerSettings, DraftSettings
from playground.trace import Comparison

RECORDS = ROOT / "records"
SCHEMA = 1
RUN = re.compile(r"assets/(\w[\w.-]*/)*\w[\w.-]*\.json")  # names no folder above
CLOSE = 1e-3  # by how much of itself a speed-up may differ from that of the times


@dataclass(frozen=True)
class Times:
    """All runs of a lane together: their new tokens, and their seconds of decoding."""

    tokens: int
    seconds: float


@dataclass(frozen=True)
class DraftCounts:
    """The counts of one run of each prompt: output tokens, verify passes, draft tokens and those accepted. `positions`:
    acceptance by position; empty where it is unknown. In a tree the tokens of one depth share a position."""

    tokens: int
    passes: int
    drafted: int
    accepted: int
    positions: tuple[PositionAcceptance, ...] = ()


@dataclass(frozen=True)
class Drafted:
    """A drafter of a record. `weights`: the SHA-256 of its weights, shortened; None where unknown. `speedup`: the
    baseline's time per token over the lane's, with its 95 % interval over `over`. `identical`: how many of the outputs
    are those of standard decoding. `mean_accepted_length`: of a published figure, which has neither times nor
    counts."""

    name: str
    drafter: str
    speedup: float
    interval: Interval | None = None
    over: Literal["prompts", "runs"] | None = None
    weights: str | None = None
    settings: dict[str, str | int | float | bool] | None = None
    times: Times | None = None
    counts: DraftCounts | None = None
    identical: int | None = None
    mean_accepted_length: float | None = None

    @property
    def length(self) -> float | None:
        """Tokens a pass, the target's own included."""
        counts = self.counts
        return metrics.mean_accepted_length(counts.tokens, counts.passes) if counts else self.mean_accepted_length


@dataclass(frozen=True)
class Record:
    """One result. `source`: "measured" with the playground, or "published" by others and not measured here, with the
    `url` of where. `target`: its name, with its `weights`. `engine`: what decoded. `suite`: its name or what it is.
    `categories`: the number of outputs of each kind of prompt. `noise`: the median, over the prompts and lanes that ran
    more than once, of the fastest run's speed over the slowest's. `url` of a measured one: where the run behind it can
    be opened; `run`: the file with it in this repository; neither where it was not kept. `prompts`: their text, if
    wanted.

    Raises:
        PlaygroundError: the sums do not agree.
    """

    source: Literal["measured", "published"]
    target: str
    hardware: str
    engine: str
    suite: str
    lanes: tuple[Drafted, ...]
    created: str = ""
    versions: dict[str, str] | None = None
    weights: str | None = None
    dtype: str | None = None
    threads: int | None = None
    settings: dict[str, str | int | float | bool] | None = None
    categories: dict[str, int] | None = None
    runs: int | None = None
    noise: float | None = None
    baseline: Times | None = None
    url: str = ""
    run: str = ""
    note: str = ""
    prompts: tuple[str, ...] = ()
    schema_version: int = SCHEMA

    def __post_init__(self) -> None:
        check(self.schema_version == SCHEMA, f"This record has schema version {self.schema_version}, not {SCHEMA}.")
        check(bool(self.lanes), "The record has no drafter.")
        check(not self.url or self.url.startswith("https://"), "url should begin with https://.")
        check(not self.run or RUN.fullmatch(self.run) is not None, "run should be a .json file below assets/.")
        if self.source == "published":
            check(bool(self.url), "A published figure needs the url of its source.")
        for lane in self.lanes:
            self._check(lane)

    @property
    def outputs(self) -> int | None:
        """The number of outputs of each lane in one run; None for a published figure without it."""
        return sum(self.categories.values()) if self.categories else None

    @property
    def here(self) -> bool:
        """Whether the file of the run behind it is on this machine."""
        return bool(self.run) and (ROOT / self.run).is_file()

    def _check(self, lane: Drafted) -> None:
        check(lane.speedup > 0, f"{lane.name}: the speed-up should be above 0; it is {lane.speedup}.")
        if lane.interval:
            low, high = lane.interval
            check(
                low <= lane.speedup <= high,
                f"{lane.name}: the interval {low:.3f} to {high:.3f} does not hold the speed-up {lane.speedup:.3f}.",
            )
        if self.source == "published":
            return
        if not (lane.times and self.baseline and self.categories and self.runs):
            raise PlaygroundError(f"{lane.name}: a measured record needs times, a baseline, categories and runs.")
        base, ours = self.baseline, lane.times
        check(min(base.tokens, base.seconds, ours.tokens, ours.seconds) > 0, f"{lane.name}: times should be above 0.")
        found = base.seconds / base.tokens * ours.tokens / ours.seconds
        check(
            isclose(found, lane.speedup, rel_tol=CLOSE),
            f"{lane.name}: the speed-up is given as {lane.speedup:.3f}, and its times make {found:.3f}.",
        )
        outputs = sum(self.categories.values())
        check(
            lane.identical is None or 0 <= lane.identical <= outputs,
            f"{lane.name}: {lane.identical} outputs are identical, of {outputs}.",
        )
        if lane.counts:
            _check_counts(lane.name, lane.counts, ours.tokens)


def _check_counts(name: str, it: DraftCounts, all_tokens: int) -> None:
    check(it.tokens <= all_tokens, f"{name}: one run of each prompt has {it.tokens} tokens, and all {all_tokens}.")
    check(
        0 <= it.accepted <= it.drafted,
        f"{name}: {it.accepted} tokens are accepted, of {it.drafted} drafted.",
    )
    check(
        it.accepted <= it.tokens <= it.accepted + it.passes,
        f"{name}: {it.accepted} accepted tokens and {it.passes} passes, which add one each at most, do not make "
        f"{it.tokens} tokens.",
    )
    if not it.positions:
        return
    by_position = sum(at.accepted for at in it.positions)
    check(
        by_position == it.accepted,
        f"{name}: the positions add up to {by_position} accepted tokens, and the counts say {it.accepted}.",
    )
    least = sum(at.drafted for at in it.positions)
    check(least <= it.drafted, f"{name}: the positions add up to {least} drafted tokens, more than {it.drafted}.")
    for at in it.positions:
        check(
            0 <= at.accepted <= at.reached <= at.drafted <= it.passes,
            f"{name}, position {at.position}: accepted, reached, drafted and passes should not fall; they are "
            f"{at.accepted}, {at.reached}, {at.drafted} and {it.passes}.",
        )


def read(text: str | bytes, where: str = "") -> Record:
    """Read a record.

    Raises:
        PlaygroundError: it is none, or its sums do not agree.
    """
    try:
        data = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        raise PlaygroundError(f"{where or 'This file'} is not JSON. Choose a file that `record make` wrote.") from None
    try:
        return validation.read(Record, data)
    except PlaygroundError as error:
        raise PlaygroundError(f"{where}: {error}" if where else str(error)) from None


def load(folder: Path = RECORDS) -> dict[str, Record]:
    """Read all records of a folder, by their files' stems."""
    return {path.stem: read(path.read_bytes(), path.name) for path in sorted(folder.glob("*.json"))}


def run_of(record: Record) -> Result | Comparison | None:
    """Read the run behind a record; None where its file is not here.

    Raises:
        PlaygroundError: the file is no result.
    """
    if not record.here:
        return None
    return from_json(json.loads((ROOT / record.run).read_text(encoding="utf-8")))


def differing(record: Record, result: SuiteResult) -> list[str]:
    """Return the names of the fields that the run behind a record gives other values."""
    made = of(result)
    fields_ = ("baseline", "categories", "runs", "noise", "lanes")
    return [name for name in fields_ if _measured(getattr(record, name)) != _measured(getattr(made, name))]


def _measured(it: Any) -> Any:
    """Return a field's value as far as it was measured, to nine digits: machines round the last ones differently."""
    if isinstance(it, float):
        return f"{it:.9g}"
    if isinstance(it, tuple):
        return [_measured(each) for each in it]
    if is_dataclass(it):
        return [_measured(getattr(it, field.name)) for field in fields(it) if field.name != "weights"]
    return it


def text(record: Record) -> str:
    """Return the record as its file's text, without what is not known."""
    return json.dumps(_known(validation.plain(record)), indent=1, ensure_ascii=False) + "\n"


def of(
    result: SuiteResult, *, suite: str = "", hardware: str = "", url: str = "", note: str = "", prompts: bool = False
) -> Record:
    """Make a record of a suite.

    Args:
        suite: its name; "" for how many prompts it has.
        hardware: what decoded, where the result does not say it, as a server's.
        prompts: include their text.

    Raises:
        PlaygroundError: a lane is lossy or its verdicts are drawn, or no prompt could be run.
    """
    check(bool(result.rows), "No prompt of this result could be run.")
    for lane in result.lanes:
        exact = lane.rule == "exact" and not lane.forced_rates
        check(exact, f"{lane.name} is not exact decoding, and a record holds no other.")
    where, base = result.environment, [row for row in result.rows if row.lane == BASELINE]
    categories = dict(Counter(row.category or "prompt" for row in base))
    questions = len({row.question for row in base})
    weights = where.weights[0].partition(f" in {where.device_name}")[0] if where.weights else None  # without an address
    engines = dict.fromkeys("playground" if lane.backend == LOCAL else lane.program for lane in result.lanes)
    return Record(
        source="measured",
        target=_public(result.lanes[0].target),
        hardware=hardware or (where.device and where.device_name) or where.device or "unknown",
        engine=", ".join(engines),
        suite=suite or count(questions, "prompt"),
        lanes=tuple(_drafted(lane, result) for lane in result.lanes),
        created=where.created[:10],
        versions=where.versions,
        weights=weights if weights and not Path(weights).is_absolute() else None,
        dtype=where.dtype,
        threads=where.threads,
        settings=_settings(result.request, AnswerSettings),
        categories=categories,
        runs=max(len(row.timed.seconds) for row in base),  # earlier releases kept the fastest alone
        noise=_noise(result.rows),
        baseline=_times(base),
        url=url,
        note=note,
        prompts=result.prompts if prompts else (),
    )


def _drafted(lane: Lane, result: SuiteResult) -> Drafted:
    ours = [row for row in result.rows if row.lane == label(lane)]
    check(bool(ours), f"{lane.name} has no rows.")
    found = speedups(result.rows)[label(lane)]
    settings = _settings(lane, DraftSettings) | {"verification": verified_by(lane)}
    return Drafted(
        name=names(result.lanes)[label(lane)],
        drafter=lane.drafter,
        speedup=found.speedup,
        interval=found.interval,
        over=found.over,
        weights=_digest(lane) if result.environment.versions.get("playground") == __version__ else None,
        settings=settings if lane.backend == LOCAL else {"lookahead": lane.lookahead},
        times=_times(ours),
        counts=_counts(ours),
        identical=sum(row.identical for row in ours) if result.request.greedy else None,
    )


def _counts(rows: Sequence[Row]) -> DraftCounts | None:
    """Return the sums; None where a server does not report one."""
    sums = {}
    for name in ("tokens", "passes", "drafted", "accepted"):
        known = [getattr(row, name) for row in rows]
        if None in known:
            return None
        sums[name] = sum(known)
    return DraftCounts(**sums, positions=tuple(metrics.add_positions(row.positions for row in rows)))


def _times(rows: Sequence[Row]) -> Times:
    return Times(sum(sum(row.timed.tokens) for row in rows), sum(sum(row.timed.seconds) for row in rows))


def _noise(rows: Sequence[Row]) -> float | None:
    several = [_speeds(row.timed) for row in rows if len(row.timed.seconds) > 1]
    return statistics.median(max(speeds) / min(speeds) for speeds in several) if several else None


def _speeds(timed: Timed) -> list[float]:
    return [tokens / seconds for tokens, seconds in zip(timed.tokens, timed.seconds, strict=True)]


def _settings(of: Request | Lane, kind: type) -> dict[str, str | int | float | bool]:
    """Return the settings that are numbers, switches or choices: others hold somebody's text."""
    found = {field.name: getattr(of, field.name) for field in fields(kind)}
    return {name: value for name, value in found.items() if isinstance(value, int | float) or SETTINGS[name].choices}


def _digest(lane: Lane) -> str | None:
    """Return the hash of a drafter's weights on this machine."""
    name = lane.assistant or ""
    folder = next((it for it in (SHIPPED / name, Path(name)) if name and it.is_dir()), None)
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.safetensors.gz")]) if folder else []
    found = hashlib.sha256()
    for path in files:
        found.update(path.read_bytes())
    return found.hexdigest()[:16] if files else None


def _public(name: str) -> str:
    """Return a model's name without the folders of the machine."""
    return Path(name).name if Path(name).is_absolute() else name


def _known(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _known(value) for key, value in data.items() if value not in (None, "", (), [], {})}
    return [_known(each) for each in data] if isinstance(data, (list, tuple)) else data
