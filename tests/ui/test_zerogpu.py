"""Runs as on ZeroGPU: in a forked process, asked for in a request, stopped from outside."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest
import torch

from playground import ROOT
from playground.experiments.events import (
    Finished,
    LaneFinished,
    LaneSkipped,
    LaneStarted,
    Progress,
    RoundDone,
)
from playground.experiments.work import Compare, Repeat
from playground.hosting import zerogpu
from playground.lane import Lane, Request
from playground.models.load import LoadedModel
from playground.models.networks.trained import TrainedConfig, build, save_trained
from playground.presets import load_pairs
from playground.trace import Comparison
from playground.ui.compare.handlers import Handlers
from tests.examples import drafted_round, plain_round, trace, tree_round
from tests.published import dflash_base, medusa_folder, medusa_heads, zlab_folder
from tests.ui import fakes, zero
from tests.ui.driven import driven
from tests.ui.test_events import asked, last

PAIRS = {"fake": fakes.PAIR}
WORK = Compare([Lane("Standard", "t"), Lane("Assisted", "t", "ngram")], Request("p", max_new_tokens=128))


@pytest.fixture
def spaces(monkeypatch: pytest.MonkeyPatch) -> zero.Spaces:
    stand_in = zero.Spaces(monkeypatch)
    monkeypatch.setitem(sys.modules, "spaces", stand_in)
    return stand_in


def events(backend: type[fakes.Backend] = zero.Backend) -> Handlers:
    """Handlers whose own process cannot decode."""

    def nothing(pair):
        raise AssertionError("a run began in the parent")

    return fakes.handlers(PAIRS, nothing, lambda pair: zerogpu.READY, zerogpu.ZeroGpu(PAIRS, backend))


def test_whatever_goes_between_the_processes_can_be_pickled():
    lane = Lane("Assisted", "t", "tree")
    rounds = (plain_round(1), drafted_round([2, 3], accepted=1, own=4), tree_round())
    comparison = Comparison((trace(rounds[:1]), trace(rounds, "tree")))
    told = [
        Progress("Loading", 0.5),
        LaneStarted(0, lane),
        *(RoundDone(0, round_) for round_ in rounds),
        LaneFinished(0, comparison.lanes[1]),
        LaneSkipped(lane, "It cannot.", 1),
        Finished(comparison),
    ]
    work = [Compare([lane], Request("a prompt")), Repeat(comparison, 3)]
    assert pickle.loads(pickle.dumps([told, work])) == [told, work]


def test_a_run_in_a_process_of_its_own_ends_as_one_in_a_thread(spaces):
    stage, shown = zero.in_a_request(lambda: last(events().stream("mine", asked(max_new_tokens=8))))
    assert "Done" in stage["status"]["text"] and [len(lane.tokens) for lane in shown.comparison.lanes] == [8, 8]
    stage, again = zero.in_a_request(lambda: last(events().repeat("mine", shown)))
    assert len(again.comparison.repeats) == 1 + 3
    assert zero.in_a_request(lambda: asyncio.run(events().compare("mine", asked(max_new_tokens=4)))).comparison.lanes


def test_stop_keeps_what_was_decoded(spaces):
    handlers = events()

    def run() -> tuple:
        updates = driven(handlers.stream("mine", asked(max_new_tokens=5000)))
        for stage, _ in updates:
            if stage["lanes"][0]["log"]:
                break
        handlers.stop("mine")
        return last(updates)

    stage, shown = zero.in_a_request(run)
    assert shown.comparison.standard.finish == "stopped" and shown.comparison.standard.tokens
    assert "Stopped" in stage["status"]["text"]


def test_a_closed_tab_ends_the_process(spaces, tmp_path: Path):
    class Telling(zero.Backend):
        def run(self, lane, request):
            run = super().run(lane, request)
            run.rounds = self._told(run.rounds)
            return run

        def _told(self, rounds: Iterator) -> Iterator:
            try:
                yield from rounds
            finally:
                (tmp_path / "closed").touch()

    def close() -> None:
        updates = driven(events(Telling).stream("mine", asked(max_new_tokens=5000)))
        for stage, _ in updates:
            if stage["lanes"][0]["log"]:
                break
        updates.close()

    zero.in_a_request(close)
    due = time.monotonic() + 60
    while not (tmp_path / "closed").exists():
        assert time.monotonic() < due
        time.sleep(0.05)


@pytest.mark.parametrize(("prompt", "sentence"), [("fail", "memory <b>here</b>"), ("crash", "Internal error")])
def test_an_error_in_the_process_becomes_the_same_sentence(spaces, prompt, sentence):
    stage, shown = zero.in_a_request(lambda: last(events().stream("mine", asked(prompt=prompt))))
    assert sentence in stage["status"]["text"] and shown is None


def test_a_run_ends_by_itself_before_its_time_is_over(spaces, monkeypatch):
    monkeypatch.setattr(zerogpu, "MOST_S", zerogpu.START_S + 1)
    monkeypatch.setattr(zerogpu, "time", SimpleNamespace(monotonic=count(0, 0.1).__next__))  # a batch takes 0.1 s
    stage, shown = zero.in_a_request(lambda: last(events().stream("mine", asked(max_new_tokens=5000))))
    assert spaces.asked == [11] and "11 s of GPU" in stage["status"]["text"]
    assert shown.comparison.standard.finish == "stopped" and shown.comparison.standard.tokens


def test_the_time_asked_for_grows_with_lanes_and_tokens_and_is_capped():
    def seconds(lanes: int, tokens: int) -> int:
        return zerogpu.seconds(Compare([Lane("Standard", "t")] * lanes, Request("p", max_new_tokens=tokens)))

    guide = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert f"{seconds(2, 128)} s for two lanes" in " ".join(guide.split())
    assert seconds(2, 16) < seconds(2, 128) < seconds(8, 128) <= zerogpu.MOST_S == seconds(2, 2048)
    comparison = Comparison((trace([plain_round(1)]), trace([plain_round(1)], "ngram")))
    once = zerogpu.seconds(Compare([lane.lane for lane in comparison.lanes], comparison.standard.request))
    assert once < zerogpu.seconds(Repeat(comparison, 3))


def test_a_visitor_without_quota_is_told_what_to_do(spaces):
    stage, shown = last(events().stream("mine", asked()))  # outside of a request, where nobody has a quota
    assert shown is None and stage["status"]["kind"] == "error"
    assert "GPU limit" in stage["status"]["text"]
    with pytest.raises(gr.Error, match="Sign in"):
        asyncio.run(events().compare("mine", asked()))


@pytest.mark.parametrize("title", [*zerogpu.SAID, "ZeroGPU worker error"])
def test_every_refusal_has_a_sentence_that_says_what_to_do(title):
    said = zerogpu._in_words(gr.Error(zerogpu.ABORTED, title=title), WORK)
    assert isinstance(said, zerogpu.PlaygroundError) and str(said).endswith(".") and len(str(said).split(". ")) > 1


def test_a_quota_that_is_used_up_says_what_it_leaves_and_asks_only_strangers_to_sign_in():
    message = "You have exceeded your {}ZeroGPU quota ({}s requested vs. {}s left). Try again in 3:20:00."
    asked = zerogpu.seconds(WORK)
    for account, left, fits in (("", asked - 4, True), ("free ", 12, False)):
        said = str(
            zerogpu._in_words(gr.Error(message.format(account, asked, left), title="ZeroGPU quota exceeded"), WORK)
        )
        assert f"{left} s of your GPU time at Hugging Face are left, and this run asks for {asked} s." in said
        assert ("of these tokens fits" in said) == fits and ("Sign in" in said) == (account == "")
        assert "ait 3:20:00 hours" in said and "duplicate the Space" in said


def test_models_off_the_list_and_compiled_lanes_are_refused_in_words(spaces):
    own = asked(pair="own", target="somebody/model", drafter="ngram")
    stage, _ = zero.in_a_request(lambda: last(events().stream("mine", own)))
    assert "the pairs" in stage["status"]["text"] and not spaces.asked
    stage, _ = zero.in_a_request(lambda: last(events().stream("mine", asked(compiled="on"))))
    assert "not compiled" in stage["status"]["text"] and not spaces.asked


def test_the_models_of_all_listed_pairs_stay_in_memory(monkeypatch):
    loaded: list[tuple[str, str, str]] = []

    class Store(fakes.Store):
        def get(self, pair, *, drafter, progress, **format_):
            assert threading.current_thread() is threading.main_thread()
            if pair.name == "far":
                raise zerogpu.PlaygroundError("The hub cannot be reached. Connect to the network.")
            loaded.append((pair.name, drafter))
            return drafter

    monkeypatch.setattr(zerogpu, "ModelStore", Store)
    monkeypatch.setattr(zerogpu, "PAIRS", ("fake", "far", "gone"))
    held = zerogpu.Held({**PAIRS, "far": fakes.FAR})
    assert loaded == [("fake", drafter) for drafter in ("ngram", "assistant", "grammar", "none")]
    assert list(held.pairs) == ["fake"]
    assert held.get(fakes.PAIR, drafter="assistant", progress=print) == "assistant"
    with pytest.raises(zerogpu.PlaygroundError, match="ngram, assistant, grammar, none"):
        held.get(fakes.PAIR, drafter="mtp")
    (problem,) = held.problems
    assert problem.startswith("Far pair ") and "The hub" in problem
    assert held.sampling_defaults("fake-target") and held.fit(fakes.PAIR).runs
    with pytest.raises(zerogpu.PlaygroundError, match="No model"):
        zerogpu.Held({"far": fakes.FAR})


def test_the_listed_pairs_need_no_account():
    pairs, _ = load_pairs()
    assert not any(pairs[name].gated for name in zerogpu.PAIRS)


def test_the_real_package_changes_nothing_elsewhere(monkeypatch):
    real = pytest.importorskip("spaces")

    def task():
        yield 1

    assert real.GPU(duration=lambda: 1)(task) is task
    assert not zerogpu.active()
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    assert zerogpu.active()


@pytest.mark.slow
def test_every_network_of_a_space_loads_under_the_real_patch_of_spaces(
    tiny_llama, tiny_tokenizer, tiny_folder, tmp_path
):
    """On ZeroGPU no tensor may be made on the CPU in place of the GPU that `spaces` emulates, nor start CUDA."""
    target = LoadedModel(tiny_llama, tiny_tokenizer, "tiny", "made here")
    sizes = tiny_llama.config.hidden_size, tiny_llama.config.vocab_size
    for kind in ("mtp", "heads"):
        config = TrainedConfig(kind, "tiny", *sizes, draft_vocabulary=40, steps=2)
        save_trained(build(config, target, torch.arange(40)), config, tmp_path / kind, "A card.")
    zlab_folder(tmp_path / "dflash", tiny_llama, dflash_base(tiny_llama))
    medusa_folder(tmp_path / "medusa", medusa_heads(tiny_llama))
    weights = [f"{kind}={tmp_path / kind}" for kind in ("mtp", "heads", "dflash", "medusa")]
    command = [sys.executable, "-m", "tests.ui.spaces_process", str(tiny_folder), *weights]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == ["all loaded"], done.stdout + done.stderr
