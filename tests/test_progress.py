from __future__ import annotations

from playground.experiments.events import PromptDone, Watch
from playground.progress import Progress, of_bytes
from playground.results import QuestionResult


def test_how_much_of_a_download_has_arrived():
    assert of_bytes(1.23e9, 2.4e9) == "1.2 of 2.4 GB"
    assert of_bytes(41e6, 93e6) == "41 of 93 MB"


def test_the_fractions_of_parts_are_those_of_the_whole_and_time_is_left_also_after_a_download():
    told: list = []
    answering, checking = Watch(told.append).parts((3, 1), ("Answering", "Checking"))
    answering.progress(Progress("Downloading", 0.9))
    answering.progress(Progress("Prompt 1 of 2", 0.0))
    answering.emit(PromptDone(1, 2, "qa", {}, QuestionResult(0), left_s=0.0, fraction=0.5))
    checking.progress(Progress("Lane 1 of 2", 0.5))
    checking.progress(Progress("Reading"))
    assert [event.fraction for event in told] == [0.675, 0.0, 0.375, 0.875, None]
    assert told[2].stage == "Answering" and told[2].left_s >= 0
    assert told[3].label == "Checking: Lane 1 of 2"
