"""How often the doctor is right: faults made in the shipped drafters, and drafters that have none.

    python -m benchmarks doctor                 # all of them, a quarter of an hour
    python -m benchmarks doctor --only eagle3   # those whose name holds this

Thresholds were chosen on the faults that are not held out. A fault is *right* where the verdict names its cause,
*undecided* where it says that something is wrong and not what (collapsed, cause unknown), *calmed* where it is called
healthy or weak, and *wrong* where another cause is named.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch
from safetensors.torch import load_file, save_file

from benchmarks.faults import FAULTS, HEALTHY, Case, Outcome, State
from playground.backends.local import LocalBackend
from playground.commands.arguments import check_writable, write
from playground.decoding import estimate, trials
from playground.decoding.runners.eager import EagerRunner
from playground.experiments import suite
from playground.experiments.events import Watch
from playground.experiments.kinds.doctor import DoctorOptions, examine
from playground.lane import LOCAL, assisted_lane, standard_lane
from playground.models.fetch import shipped
from playground.models.store import ModelStore
from playground.presets import SHIPPED, custom_pair
from playground.results import Diagnosis, SuiteResult
from playground.views.doctor import headline
from playground.views.table import Table

TOKENS, LOOKAHEAD = 96, 5


@functools.cache
def source(kind: str) -> tuple[Path, State, dict[str, Any]]:
    """Returns the folder of a shipped drafter, its tensors and its config.json."""
    folder = shipped.written_out(SHIPPED / f"starter-{kind}", lambda step: None)
    return folder, load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text("utf-8"))


def changed(case: Case) -> tuple[State, dict[str, Any]]:
    """Returns the tensors and the config.json of a case."""
    _, shared, raw = source(case.kind)
    state, config = dict(shared), copy.deepcopy(raw)
    case.change(state, config)
    return state, config


@contextmanager
def made(case: Case) -> Iterator[Path]:
    """Writes the files of a case, as long as the context lasts."""
    state, config = changed(case)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(shutil.copytree(source(case.kind)[0], Path(parent) / f"starter-{case.kind}"))
        tensors = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield folder


def answers(store: ModelStore, prompts: tuple[str, ...] = ()) -> SuiteResult:
    """Has the starter answer the prompts, by default the examples."""
    pair = custom_pair("starter", None)
    _, questions = DoctorOptions(prompts=prompts, max_new_tokens=TOKENS).read()
    backends, watch = {LOCAL: LocalBackend(store, pair, "auto", "cpu")}, Watch()
    return suite.whole(suite.run(standard_lane(pair), [], questions, backends, watch), watch)


class _Remembering(EagerRunner):
    """Reads each text once: all cases have the same target, and its passes would take most of the time."""

    read: ClassVar[dict[Any, tuple[torch.Tensor, torch.Tensor | None]]] = {}
    layers: tuple[int, ...] = ()

    def watch(self, layers: Sequence[int]) -> None:
        super().watch(layers)
        self.layers = tuple(layers)

    def forward(self, ids: Any, keep: int, tree: Any = None) -> torch.Tensor:
        key = id(self.model), tuple(ids), keep, self.layers
        if key not in self.read:
            self.read[key] = super().forward(ids, keep, tree), self._hidden
        logits, self._hidden = self.read[key]
        return logits


def examined(case: Case, store: ModelStore, answered: SuiteResult) -> Diagnosis:
    """Returns what the doctor says of a case."""
    with made(case) as folder:
        pair = custom_pair("starter", str(folder), case.kind)
        backend = LocalBackend(store, pair, "auto", "cpu")
        with (
            mock.patch.multiple(estimate, EagerRunner=_Remembering),
            mock.patch.multiple(trials, EagerRunner=_Remembering),
        ):
            return examine(answered, pair, assisted_lane(pair, case.kind, LOOKAHEAD), backend, Watch())


def add(commands: argparse._SubParsersAction) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="how often the doctor names what is wrong with a drafter",
        description="Makes faults in the drafters that ship, and has the doctor examine each.",
    )
    doctor.set_defaults(command=_doctor)
    doctor.add_argument("--only", default="", metavar="WORD", help="cases whose name holds this")
    doctor.add_argument("--chosen", action="store_true", help="without those that are held out")
    doctor.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")


def _doctor(options: argparse.Namespace) -> None:
    check_writable(options.json)
    store = ModelStore()
    answered, found = answers(store), list[tuple[Case, Diagnosis]]()
    for case in (*FAULTS, *HEALTHY):
        if options.only in str(case) and not (options.chosen and case.held_out):
            found.append((case, examined(case, store, answered)))
            print(case.outcome(found[-1][1]), case, headline(found[-1][1]), sep=" | ", flush=True)
    print(table(found).text())
    print(rates(found))
    if options.json:
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in table(found).rows]
        write(options.json, json.dumps(rows, indent=1))


COLUMNS = ("drafter", "what was done", "held out", "verdict", "outcome", "said")


def table(found: Sequence[tuple[Case, Diagnosis]]) -> Table:
    """Returns a row for each case."""
    rows = tuple(
        (
            case.kind, case.name, "yes" if case.held_out else "", result.verdict, case.outcome(result),
            headline(result)[:160],
        )
        for case, result in found
    )  # fmt: skip
    return Table("What the doctor says", COLUMNS, rows, numbers=0)


def rates(found: Sequence[tuple[Case, Diagnosis]]) -> str:
    """Returns how often each outcome came."""
    of = {
        "of the faults": [it for it in found if it[0].cause and not it[0].held_out],
        "of those held out": [it for it in found if it[0].cause and it[0].held_out],
        "of the healthy": [it for it in found if not it[0].cause],
    }
    outcomes: tuple[Outcome, ...] = ("right", "undecided", "calmed", "wrong")
    lines = []
    for words, some in of.items():
        counted = Counter(case.outcome(result) for case, result in some)
        lines.append(f"{len(some)} {words}: " + ", ".join(f"{counted[it]} {it}" for it in outcomes))
    return "\n".join(lines)
