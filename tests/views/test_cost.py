from __future__ import annotations

from dataclasses import replace

import pytest

from playground.views import why
from tests.ui import fakes


def test_the_price_follows_from_the_rate_and_the_energy_is_shown_where_it_was_measured():
    comparison = fakes.comparison(60)
    plain = why.cost_table(comparison.lanes, None)
    assert plain.columns == ("lane", "tokens/s") and not why.measured(comparison.lanes)
    metered = [replace(trace, joules=30.0) for trace in comparison.lanes]
    table = why.cost_table(metered, 3.6)
    assert [column.split()[0] for column in table.columns[2:]] == ["price", "J"]
    (_, speed, price, joules), _ = table.rows
    assert float(price) == pytest.approx(1000 / float(speed), rel=0.01) and joules == "0.50"
