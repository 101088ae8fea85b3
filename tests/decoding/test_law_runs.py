"""Sampled answers of whole runs, as page and terminal start them, follow the target's law along each path: weights of
eight and four bits, an adapter's lane, compiled passes, lanes that take turns, answers that end at a stop string."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path as Folder

import pytest
import torch

from playground.backends.local import LocalBackend
from playground.decoding import verify
from playground.decoding.sampling import Sampler
from playground.experiments.events import Watch
from playground.experiments.race import Race
from playground.lane import LOCAL, Lane, Request, adapted, assisted_lane, standard_lane
from playground.models.store import ModelStore
from playground.presets import Pair, custom_pair
from tests.decoding.law import LENGTH, agrees, continuations, law_of
from tests.decoding.test_law import all_accepted
from tests.engine import small
from tests.models.test_adapter import write_adapter
from tests.selection import selected

SAMPLED = dict(temperature=1.0, top_k=2, chat_template=False, max_new_tokens=LENGTH)
DRAWS = 120


@dataclass(frozen=True)
class Path:
    dtype: str = "float32"
    compiled: str = "off"
    drafters: tuple[str, ...] = ("assistant",)
    adapter: bool = False
    by_turns: bool = False
    stop: bool = False


PATHS = {
    "float32": Path(),
    "int8": Path("int8"),
    "int4": Path("int4"),
    "bfloat16": Path("bfloat16"),
    "compiled": Path(compiled="on"),
    "adapter": Path(adapter=True),
    "by turns": Path(drafters=("none", "assistant", "ngram"), by_turns=True),
    "stop string": Path(stop=True),
    "most at once": Path(drafters=("none", "assistant"), adapter=True, by_turns=True, stop=True),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_tokenizer) -> Folder:
    """A target, an adapter, and an assistant that is near the target, so that about half of its drafts are accepted."""
    folder = tmp_path_factory.mktemp("law")
    model = small(head=32, groups=4, vocab_size=len(tiny_tokenizer), initializer_range=0.05)
    for name in ("target", "assistant"):
        model.save_pretrained(folder / name)
        tiny_tokenizer.save_pretrained(folder / name)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * parameter.std() * torch.randn_like(parameter))
    write_adapter(folder / "adapter", wide=128)
    return folder


def started(path: Path, folders: Folder) -> tuple[LocalBackend, list[Lane], Request]:
    pair: Pair = custom_pair(str(folders / "target"), str(folders / "assistant"), "assistant")
    pair = replace(pair, compiled=path.compiled)
    lanes = [
        standard_lane(pair) if each == "none" else assisted_lane(pair, each, 2, policy="constant")
        for each in path.drafters
    ]
    lanes = [adapted(lane, str(folders / "adapter")) for lane in lanes] if path.adapter else lanes
    backend, request = LocalBackend(ModelStore(), pair, path.dtype, "cpu"), Request("The waves count", **SAMPLED)
    if not path.stop:
        return backend, lanes, request
    likeliest = sorted(law(backend, lanes[0], request).items(), key=lambda it: -it[1])
    texts = "".join(backend.models(lanes[0]).target.tokenizer.decode(ids[:2]) for ids, _ in likeliest)
    stop = next(letter for letter in texts if letter.isascii() and letter.isalnum())
    return backend, lanes, replace(request, stop_strings=stop)


def law(backend: LocalBackend, lane: Lane, request: Request) -> dict[tuple[int, ...], float]:
    """The chance of each answer, by plain passes over whole texts."""
    prompt, loaded = backend.run(lane, request).prompt_ids, backend.models(lane).target

    def ends(text: tuple[int, ...]) -> bool:
        said = loaded.tokenizer.decode(text, skip_special_tokens=True)
        return any(stop in said for stop in request.stops) or text[-1:] in [(id_,) for id_ in loaded.eos_ids]

    sampler = Sampler(request, torch.device("cpu"), prompt)
    return continuations(law_of(loaded.model), sampler, prompt, ends=ends)


def answers(
    path: Path, backend: LocalBackend, lanes: list[Lane], request: Request, draws: int = DRAWS
) -> dict[str, Counter]:
    found = {lane.name: Counter() for lane in lanes}
    for seed in range(1_000, 1_000 + draws):
        race = Race({LOCAL: backend}, replace(request, seed=seed), Watch())
        traces = race.run(lanes) if path.by_turns else [race.run([lane])[0] for lane in lanes]
        for lane, trace in zip(lanes, traces, strict=True):
            assert trace.schedule == ("by turns" if path.by_turns else "alone")
            found[lane.name][trace.token_ids] += 1
    return found


def follows(counts: Counter, chances: dict[tuple[int, ...], float]) -> bool:
    return counts.keys() <= chances.keys() and agrees(
        [counts[text] for text in chances], torch.tensor(list(chances.values()))
    )


QUICK = ("most at once", 60)


@pytest.mark.parametrize(("name", "draws"), selected([QUICK, *((name, DRAWS) for name in PATHS)], [QUICK]))
def test_answers_follow_the_targets_law(name, draws, folders):
    path = PATHS[name]
    backend, lanes, request = started(path, folders)
    chances = law(backend, lanes[0], request)
    assert len(chances) > 4 and (min(map(len, chances)) < LENGTH) == path.stop
    for counts in answers(path, backend, lanes, request, draws).values():
        assert follows(counts, chances)
    if path.adapter:
        assert not follows(counts, law(backend, replace(lanes[0], adapter=""), request)), "the law of its own target"


@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
def test_drafts_accepted_unseen_are_caught(name, folders, monkeypatch):
    monkeypatch.setitem(verify.RULES, "token", all_accepted)
    path = PATHS[name]
    backend, lanes, request = started(path, folders)
    (lane,) = [lane for lane in lanes if lane.drafter == "assistant"]
    found = answers(path, backend, lanes, request)
    assert not follows(found[lane.name], law(backend, lane, request))
