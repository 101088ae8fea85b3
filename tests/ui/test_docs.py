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


def test_strangers_see_no_rooms_that_refuse_them_and_a_space_leads_to_its_copy_and_sign_in(monkeypatch):
    here, public = rooms.markup(rooms.HOME), rooms.markup(rooms.HOME, public=True)
    assert ">Best drafter<" in here and ">Serve<" in here and "huggingface" not in here
    assert ">Best drafter<" not in public and ">Serve<" not in public and ">History<" in public
    monkeypatch.setenv("SPACE_ID", "someone/space")
    space = "https://huggingface.co/spaces/someone/space"
    assert f'href="{space}?duplicate=true"' in rooms.markup("docs") and "Sign in" not in rooms.markup("docs")
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    assert 'href="https://huggingface.co/login?next=/spaces/someone/space"' in rooms.markup(rooms.HOME, public=True)
