"""The tables of `python -m benchmarks cpu`."""

from __future__ import annotations

from benchmarks.cpu import TEXTS, Decoder, Reading, long_texts


def test_texts_are_shown_by_the_median_of_their_runs_for_those_who_read_them():
    runs = [Reading(0.2, 0.004), Reading(0.1, 0.002), Reading(0.9, 0.003)]
    read = Decoder("engine", (100.0,), readings=(tuple(runs),) * len(TEXTS))
    table = long_texts([read, Decoder("generate()", (50.0,))])
    assert table.rows == (("engine", *["200.00"] * len(TEXTS), *["3.00"] * len(TEXTS)),)
    assert len(table.columns) == len(table.rows[0])
