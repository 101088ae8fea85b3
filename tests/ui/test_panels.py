from __future__ import annotations

import json

import pytest

from playground.ui import panels
from playground.views import charts
from playground.views.table import folded
from tests.ui import fakes

HOSTILE = "<script>alert(1)</script>\"'"


@pytest.mark.parametrize(
    "html",
    [
        panels.status(HOSTILE, "busy", 0.5),
        panels.status(HOSTILE, "error"),
        folded(HOSTILE, ""),
    ],
)
def test_nothing_that_is_shown_can_be_markup(html):
    assert "<script" not in html and HOSTILE not in html
    assert "&lt;script&gt;" in html


def test_a_bar_has_a_value_where_the_end_is_known():
    assert 'value="0.250"' in panels.status("Loading", "busy", 0.25)
    assert "value" not in panels.status("Loading", "busy")
    assert 'role="alert"' in panels.status("No", "error")


def test_a_plot_carries_its_camera():
    plot = json.loads(panels.plot(charts.race(fakes.comparison()), "race").plot)
    assert plot["config"]["modeBarButtons"] == [["toImage"]]
    assert plot["config"]["toImageButtonOptions"]["filename"] == "race"
    assert len(plot["data"]) == 2
