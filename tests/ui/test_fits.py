from __future__ import annotations

from playground.hosting.access import Access
from playground.models.fit import Fit
from playground.ui.compare.controls import OWN, _described, pair_choices
from playground.ui.preload import Fits
from tests.ui import fakes


def test_the_list_says_which_pairs_run_here():
    fits = Fits(fakes.PAIRS, fakes.Store().fit)
    fits.wait()
    assert pair_choices(fits, Access()) == [
        *((f"{pair.title} · {fakes.FITS.get(name, fakes.READY).label}", name) for name, pair in fakes.PAIRS.items()),
        ("Your own models …", OWN),
    ]


def test_a_pair_that_cannot_be_judged_is_listed_by_its_title_alone():
    def fit_of(pair) -> Fit:
        raise OSError("no disk")

    fits = Fits({"fake": fakes.PAIR}, fit_of)
    fits.wait()
    assert fits.of("fake") is None and fits.choices() == [("Fake pair", "fake")]


def test_choosing_one_that_cannot_run_says_why_at_once():
    info = _described(fakes.PAIRS["large"], fakes.FITS["large"])[0]["info"]
    assert "82 GB" in info
    assert _described(fakes.PAIR, fakes.READY)[0]["info"] is None
