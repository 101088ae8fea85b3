from __future__ import annotations

import pytest

from playground.views import why
from tests.ui import fakes


def test_the_price_follows_from_the_rate():
    table = why.cost_table(fakes.comparison(60).lanes, 3.6)
    assert table.columns == ("lane", "tokens/s", "price per million tokens")
    for _, speed, price in table.rows:
        assert float(price) == pytest.approx(1000 / float(speed), rel=0.01)
