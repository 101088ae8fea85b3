"""docs/add-a-backend.md, followed to the letter."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import playground_servers
from playground.backends import connect as kinds
from playground.backends.connect import KINDS, connect
from playground.backends.openai import OpenAiServer
from playground.backends.server import ServerBackend
from playground.commands import main
from playground.errors import PlaygroundError
from playground.plugins import load_plugins
from tests.backends.fake_server import Answer, serve
from tests.packages import files_of, in_python, installed
from tests.packages import registered as written

GUIDE = (Path(__file__).parents[2] / "docs" / "add-a-backend.md").read_text(encoding="utf-8")
FILE, REGISTRATION, TEST = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture
def registered(tmp_path, monkeypatch):
    """The guide's backend, as the file and the registration that the guide shows."""
    (tmp_path / "tiny.py").write_text(FILE, encoding="utf-8")
    monkeypatch.setattr(playground_servers, "__path__", [*playground_servers.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "playground_servers.tiny", raising=False)
    scope = {kind.__name__: kind for kind in (ServerBackend, *KINDS)}
    exec(REGISTRATION, scope)
    *known, added = scope["KINDS"]
    assert known == playground_servers.KINDS and added is scope["TinyServer"]
    KINDS.append(added)
    yield
    KINDS.remove(added)


def test_the_guide_s_backend_passes_the_guide_s_test(registered, capsys):
    code: dict = {}
    exec(TEST, code)
    (test,) = (value for name, value in code.items() if name.startswith("test_"))
    test(capsys)


def test_a_registered_kind_is_named_wherever_kinds_are(registered, capsys):
    with (
        serve({}) as server,
        pytest.raises(PlaygroundError, match=r"llama-server, .*, tiny-server"),
    ):
        connect(server.url)
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    assert "Ollama, tiny-server or" in " ".join(capsys.readouterr().out.split())


def test_a_package_of_its_own_adds_a_kind_once_it_is_installed(tmp_path):
    site = installed(tmp_path, {**files_of(GUIDE), "playground_tiny/__init__.py": FILE})
    code: dict = {}
    exec(TEST, code)
    with serve(code["tiny"](drafted=True)) as server:
        asked = f"from playground.backends.connect import connect; print(connect({server.url!r}).name)"
        assert in_python(site, "-c", asked).startswith("tiny-server at http")


OF_PACKAGES = {
    "broken": "import no_such_module",
    "half": "class IT(ServerBackend): kind, how_to_speculate = 'half-server', ''",
    "nosy": "class IT(OpenAiServer): kind, is_at = 'nosy-server', classmethod(lambda cls, http, _: http.get('/a'))",
    "other": "IT = 3",
    "second": "class IT(OpenAiServer): kind = 'vLLM'",
}


def test_what_is_wrong_with_a_package_s_kind_ends_in_a_warning(tmp_path, monkeypatch, caplog):
    given = (
        "from playground.backends.openai import OpenAiServer\nfrom playground.backends.server import ServerBackend\n"
    )
    written(tmp_path, "playground.backends", {name: given + text for name, text in OF_PACKAGES.items()})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(kinds, "KINDS", [*KINDS])
    load_plugins("playground.backends", kinds._add)
    assert [kind.kind for kind in kinds.KINDS] == [*(kind.kind for kind in KINDS), "nosy-server"]
    for package, reason in (
        ("broken", "no_such_module"),
        ("half", "answer, encode"),
        ("other", "of ServerBackend"),
        ("second", "named vLLM"),
    ):
        (warning,) = (line for line in caplog.messages if f"the package {package} adds" in line)
        assert reason in warning
    listing = {"data": [{"id": "m", "owned_by": "somebody"}]}
    with serve({"/v1/models": Answer(listing)}) as server:  # which has no /a
        assert connect(server.url).kind == OpenAiServer.kind
