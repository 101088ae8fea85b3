"""The history as the page has it: whose it is, what is kept, and what is done with it."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
from pathlib import Path

import pytest

from playground import export
from playground.errors import PlaygroundError
from playground.experiments.history import History
from playground.hosting.access import FOR_VISITORS, Access
from playground.trace import Comparison
from playground.ui import past as tab
from playground.ui.compare.shown import Opened, Shown
from playground.ui.past import VisibleHistory
from tests.ui import fakes

PUBLIC = Access(public=True, models=(), limits=FOR_VISITORS)
MINE, YOURS = "1" * 64, "2" * 64


def shown(tokens: int = 8) -> Shown:
    comparison = fakes.comparison(tokens)
    return Shown(comparison, comparison.others[0].lane.name, fakes.PAIR)


def kept(past: VisibleHistory, owner: str, number: int) -> list[str]:
    for _ in range(number):
        past.keep(owner, shown())
    return [entry.id for entry in past.history.entries(owner)]


def test_a_repeat_takes_the_place_of_what_it_repeats_and_a_stopped_run_is_not_kept():
    past, first = VisibleHistory(History(None), Access()), shown()
    past.keep("", first)
    again = dataclasses.replace(first, held=dataclasses.replace(first.comparison, repeats=(first.comparison.lanes,)))
    past.keep("", again)
    (entry,) = past.history.entries("")
    assert entry.status == "finished" and "Compare TCP" in entry.title
    assert past.comparison("", entry.id) == again.comparison
    past.keep("", dataclasses.replace(first, pair=None))
    past.keep("", None)
    assert len(past.history.entries("")) == 1


def test_on_a_public_link_nobody_reads_deletes_or_replaces_what_is_another_s():
    past = VisibleHistory(History(None), PUBLIC)
    assert past.owner(MINE) == MINE
    strange = [past.owner(key) for key in ("", "1" * 63, None, {"a": 1}, 7)]
    assert len({*strange}) == len(strange), "whoever has no key shares no history"
    run = shown()
    past.keep(MINE, run)
    past.keep("", shown())
    past.keep(YOURS, dataclasses.replace(shown(4), id=run.id))
    assert past.history.entries(YOURS) == past.history.entries("") == []
    assert past.comparison(MINE, run.id) == run.comparison
    for look in (
        past.opened,
        past.comparison,
        lambda *of: past.saved(*of, ".json"),
        lambda o, n: past.history.delete(n, o),
    ):
        with pytest.raises(PlaygroundError, match="no experiment"):
            look(YOURS, run.id)
    past.history.clear(YOURS)
    assert "no experiment" in tab.side_by_side(past, YOURS, [run.id, run.id])
    assert [entry.id for entry in past.history.entries(MINE)] == [run.id]


def test_the_history_of_visitors_is_bounded_in_number_bytes_and_age():
    past = VisibleHistory(History(None, each=2), PUBLIC)
    newest = kept(past, MINE, 3)
    assert len(newest) == 2 and len(kept(past, YOURS, 1)) == 1
    past = VisibleHistory(History(None, room=1), PUBLIC)
    assert kept(past, MINE, 1) == []
    size = len(json.dumps(export.to_json(fakes.comparison(8))))
    past = VisibleHistory(History(None, each_bytes=2.5 * size), PUBLIC)
    assert len(kept(past, YOURS, 1)) == 1 and len(kept(past, MINE, 3)) == 2
    assert len(past.history.entries(YOURS)) == 1, "another visitor's stay"
    past = VisibleHistory(History(None, max_age_s=0), PUBLIC)
    assert kept(past, MINE, 1) == []


def test_a_shared_run_is_kept_once_and_found_by_a_name_of_128_bits_alone():
    past, run = VisibleHistory(History(None, each=1), PUBLIC), shown()
    link = past.share(MINE, run)
    assert past.share(MINE, run) == link and re.fullmatch("shared=[0-9a-f]{32}", link)
    with pytest.raises(PlaygroundError, match="no experiment"):
        past.share(YOURS, run)  # as a browser that makes itself new keys, to fill the disk with one run
    assert kept(past, MINE, 2) and past.linked(YOURS, {"shared": link[7:]}) == run.comparison
    assert len(past.history.entries(MINE)) == 2, "the one that is shared, and the last"
    past.history.delete(run.id, MINE)
    with pytest.raises(PlaygroundError, match="or deleted"):
        past.linked(MINE, {"shared": link[7:]})
    owner = past.client("8.8.8.8")
    names = {past.share(owner, shown()) for _ in range(2)}
    assert len(names) == 2 and past.owner(owner) != owner, "no browser lists the runs of a program"


def test_a_run_that_was_stopped_or_opened_can_be_shared_but_no_stranger_shares_a_file():
    lanes = tuple(dataclasses.replace(lane, finish="stopped") for lane in shown().comparison.lanes)
    stopped = dataclasses.replace(shown(), held=Comparison(lanes))
    file = Shown(Opened(1e9, 2).keep(pickle.dumps(shown().comparison)), shown().chosen)
    here, public = VisibleHistory(History(None), Access()), VisibleHistory(History(None), PUBLIC)
    for run in (stopped, file):
        assert here.linked("", {"id": here.share("", run).removeprefix("id=")}) == run.comparison
    link = public.share(MINE, stopped)
    again = dataclasses.replace(shown(), link=link)
    assert public.share(YOURS, again) == link, "as it came"
    for nothing, why in ((file, "Save it as HTML"), (None, "no run")):
        with pytest.raises(PlaygroundError, match=why):
            public.share(MINE, nothing)


def test_two_runs_are_seen_side_by_side_and_their_words_stay_text(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    past = VisibleHistory(History(None), Access())
    names = kept(past, "", 2)
    found = tab.side_by_side(past, "", names)
    assert "the same" in found and "tokens per check" in found
    suffix = fakes.comparison(8)
    ours = suffix.lanes[1]
    suffix = Comparison(
        (suffix.lanes[0], dataclasses.replace(ours, lane=dataclasses.replace(ours.lane, name="Suffix")))
    )
    other = dataclasses.replace(shown(), held=suffix, chosen="Suffix")
    past.keep("", other)
    found = tab.side_by_side(past, "", [names[0], other.id])
    assert "Drafting: Prompt lookup, 4 ahead and Suffix, 4 ahead." in found and "Speculative: speed-up" in found
    evil = dataclasses.replace(shown(), held=fakes.comparison(8, prompt="<img src=x>"))
    past.keep("", evil)
    found = tab.side_by_side(past, "", [names[0], evil.id])
    assert "prompts differ" in found and "<img" not in found
    assert Path(past.saved("", names[0], ".csv")["value"]).is_file()
