"""The page of a training run: what it says of the run so far, and that it ends."""

from __future__ import annotations

from playground_distil import train
from playground_distil.train import TrainingReport

LOG = [{"tokens": 400, "accepted": [0.5, 0.25], "mean_accepted_length": 1.75}]


def test_the_page_shows_the_run_and_stops_reloading_at_its_end(tmp_path, monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(train.time, "monotonic", lambda: next(clock))
    page = tmp_path / "run.html"
    training = TrainingReport(page, "mtp <x>", 1000)
    training.step(250, 4.0, [])
    text = page.read_text()
    assert "250 of 1,000 tokens" in text and "left" in text and 'http-equiv="refresh"' in text
    assert "mtp &lt;x&gt;" in text and "mtp <x>" not in text
    training.step(1000, 2.0, LOG)
    text = page.read_text()
    assert "Done." in text and "refresh" not in text
    assert "position 2 0.25" in text and "1.75 tokens" in text
    assert "steps 2.00" in text


def test_a_long_run_is_drawn_as_means_of_its_steps():
    line = [(float(i), float(i % 2)) for i in range(1, 4 * train.POINTS + 1)]
    drawn = train._means(line)
    assert len(drawn) == train.POINTS
    assert {y for _, y in drawn} == {0.5}
