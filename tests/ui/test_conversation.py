"""Add a turn: both lanes go on from the conversation that is shown."""

from __future__ import annotations

import dataclasses
import time

import gradio as gr
import pytest

from playground.errors import PlaygroundError
from playground.hosting.access import FOR_VISITORS, Access
from playground.ui.compare.handlers import Handlers
from playground.ui.compare.shown import Shown
from tests.ui import fakes
from tests.ui.driven import driven
from tests.ui.test_controls import asked
from tests.ui.test_events import PAIRS, last, unpacked


def handlers(backend=fakes.Backend, access: Access | None = None) -> Handlers:
    return fakes.handlers(PAIRS, backend, access=access or Access())


def first_turn(events: Handlers) -> Shown:
    _, shown = last(events.stream("session", asked(prompt="Compare TCP and UDP.", max_new_tokens=12)))
    assert shown
    return shown


def test_a_turn_goes_on_from_the_baselines_answer_in_the_same_lanes():
    events = handlers()
    shown = first_turn(events)
    stage, then = last(events.turn("session", shown, "And QUIC?"))
    answer = shown.comparison.standard.text
    assert [(it["role"], it["text"]) for it in stage["conversation"]] == [
        ("user", "Compare TCP and UDP."), ("assistant", answer), ("user", "And QUIC?"),
    ]  # fmt: skip
    assert [it.lane for it in then.comparison.lanes] == [it.lane for it in shown.comparison.lanes]
    assert all(it.request.turns[-1].content == "And QUIC?" for it in then.comparison.lanes)
    assert then.id != shown.id and then.repeatable


def test_the_line_of_figures_says_what_came_from_the_cache():
    events = handlers()
    shown = first_turn(events)
    _, then = last(events.turn("session", shown, "And QUIC?"))
    figures = then.screen().value()["lanes"][1]["figures"]
    reused = then.comparison.others[0].reused
    assert figures[0]["label"] == "First token"
    assert (figures[1]["label"], figures[1]["value"]) == ("From cache", f"{reused.tokens:,}")
    assert "MB" in figures[1]["meaning"]
    assert all(it["label"] != "From cache" for it in shown.screen().value()["lanes"][1]["figures"])


def test_what_is_shown_stays_where_the_turn_cannot_be_asked():
    events = handlers()
    shown = first_turn(events)
    for message, sentence in (("  ", "is empty"), ("fail", "memory")):
        stage, then = last(events.turn("session", shown, message))
        assert sentence in stage["status"]["text"] and stage["status"]["kind"] == "error"
        assert stage["lanes"][0]["log"] and (then is None or then.id == shown.id), "or it does not change"


class Waits(fakes.Backend):
    """A second turn begins when it is stopped."""

    def warm_up(self, lane, request, stopped):
        while len(request.turns) > 1 and not stopped():
            time.sleep(0.01)


def test_a_turn_that_was_stopped_before_a_lane_leaves_the_conversation():
    events = handlers(Waits)
    shown = first_turn(events)
    events.begin("session")
    updates = driven(events.turn("session", shown, "And QUIC?"))
    next(updates)
    events.stop("session")
    *_, (stage, then) = updates
    assert then.comparison == shown.comparison and stage["status"]["text"].startswith("Stopped")


def test_strangers_conversations_have_the_same_bounds_as_their_prompts():
    limits = dataclasses.replace(FOR_VISITORS, prompt=60)
    events = handlers(access=Access(public=True, limits=limits))
    shown = first_turn(events)
    stage, then = last(events.turn("session", shown, "And QUIC? " * 9))
    assert "takes 60" in stage["status"]["text"] and stage["lanes"][0]["log"] and then is None


def test_another_backend_error_is_a_sentence_of_the_conversation():
    class Full(fakes.Backend):
        def run(self, lane, request):
            if len(request.turns) > 1:
                raise PlaygroundError("The prompt has 9,000 tokens, and the context holds 8,192.")
            return super().run(lane, request)

    events = handlers(Full)
    shown = first_turn(events)
    stage, then = last(events.turn("session", shown, "And QUIC?"))
    assert "8,192" in stage["status"]["text"] and then.id == shown.id


def test_a_run_that_was_opened_goes_on_where_a_preset_has_its_models():
    """From the history, a link or a file: it is not repeated here, since its times are another machine's."""
    events = handlers()
    comparison = first_turn(events).comparison
    opened = unpacked(events.show(comparison, "the history"))
    stage, shown = opened
    assert stage["goes_on"] and not stage["verdict"]["repeatable"]
    stage, then = last(events.turn("session", shown, "And QUIC?"))
    assert [it["role"] for it in stage["conversation"]] == ["user", "assistant", "user"] and then.repeatable
    _, drawn = last(events.turn("session", shown, "fail"))
    assert drawn.comparison == comparison

    base, drafting = comparison.lanes
    for lanes in (
        (with_lane(base, target="elsewhere"), with_lane(drafting, target="elsewhere")),
        (base, with_lane(drafting, adapter="/a")),
        (base, with_lane(drafting, rule="top-2", name="x (lossy)")),
        (base, dataclasses.replace(drafting, finish="stopped")),
    ):
        stage, shown = unpacked(events.show(dataclasses.replace(comparison, lanes=lanes, repeats=()), "a file"))
        assert not stage["goes_on"]
        with pytest.raises(gr.Error, match="longer kept"):
            events.turn("session", shown, "And QUIC?")


def with_lane(trace, **changes):
    return dataclasses.replace(trace, lane=dataclasses.replace(trace.lane, **changes))
