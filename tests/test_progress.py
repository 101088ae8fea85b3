from __future__ import annotations

from playground.progress import of_bytes


def test_how_much_of_a_download_has_arrived():
    assert of_bytes(1.23e9, 2.4e9) == "1.2 of 2.4 GB"
    assert of_bytes(41e6, 93e6) == "41 of 93 MB"
