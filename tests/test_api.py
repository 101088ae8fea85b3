"""`playground.compare`, and docs/python.md to the letter, on a tiny model."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import playground
from playground.errors import PlaygroundError

GUIDE = Path(__file__).parent.parent / "docs" / "python.md"


@pytest.fixture
def compare(tiny_folder):
    """`compare` on the tiny model, unless another is named."""
    return partial(playground.compare, target=str(tiny_folder), drafter="ngram", dtype="float32", max_new_tokens=4)


def test_the_guide_s_code_runs(compare, tiny_folder, tmp_path, monkeypatch, capsys):
    def on_the_tiny_model(prompt, **settings):
        return compare(prompt, **settings | {"pair": None, "drafter": "ngram", "target": str(tiny_folder)})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(playground.__dict__, "compare", on_the_tiny_model)
    code: dict = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, code)
    assert code["again"] == code["comparison"]
    assert len(code["comparison"].others) == 1 and len(code["own"].repeats) >= 1
    assert "the same tokens" in capsys.readouterr().out


def test_settings_reach_the_lane_and_the_request(compare):
    comparison = compare(
        messages=[{"role": "user", "content": "The waves?"}], lookahead=3, temperature=0.5, stop_strings="waves"
    )
    (lane,) = comparison.others
    assert (lane.lane.drafter, lane.lane.lookahead) == ("ngram", 3)
    request = lane.request
    assert (request.prompt, request.temperature, request.stops) == ("The waves?", 0.5, ("waves",))
    assert request.max_new_tokens == 4


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_tokens": 4}, "'max_tokens'"),
        ({"lookahead": 0}, "Lookahead"),
        ({"dtype": "float4"}, "'float4'"),
        ({"pair": "starter"}, "pair, or"),
        ({"drafter": "psychic"}, "'psychic'"),
        ({"target": None, "pair": "nothing"}, "'nothing'"),
    ],
)
def test_what_is_not_accepted_is_a_sentence(compare, settings, named):
    with pytest.raises(PlaygroundError, match=named):
        compare("The waves", **settings)


def test_to_import_the_package_and_its_call_loads_no_torch():
    code = "import sys; from playground import compare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
