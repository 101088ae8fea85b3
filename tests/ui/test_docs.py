"""The documentation as a page."""

from __future__ import annotations

import re

import pytest

from playground.ui import docs


@pytest.mark.parametrize("name", docs.NAMES)
def test_a_document_links_to_what_this_server_has(name):
    links = re.findall(r"\]\(([^)]+)\)", docs.text(name))
    local = [link for link in links if not link.startswith(("http", "#"))]
    assert all(re.match(r"docs\?page=([\w-]+)", link)[1] in docs.NAMES for link in local)
    assert not docs.text(name).startswith("---")


def test_a_name_that_there_is_not_gives_the_readme():
    assert docs.text("../app") == docs.text(docs.HOME)
