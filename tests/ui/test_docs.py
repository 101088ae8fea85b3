"""The documentation as a page."""

from __future__ import annotations

import re

import pytest

from playground.ui import rooms


@pytest.mark.parametrize("name", rooms.NAMES)
def test_a_document_links_to_what_this_server_has(name):
    links = re.findall(r"\]\(([^)]+)\)", rooms.text(name))
    local = [link for link in links if not link.startswith(("http", "#"))]
    assert all(re.match(r"docs\?page=([\w-]+)", link)[1] in rooms.NAMES for link in local)
    assert not rooms.text(name).startswith("---")


def test_a_name_that_there_is_not_gives_the_readme():
    assert rooms.text("../app") == rooms.text(rooms.DOCS_HOME)
