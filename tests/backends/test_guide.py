"""docs/add-a-backend.md, followed to the letter."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from playground import backends
from playground.backends.connect import connect
from playground.backends.kinds import KINDS
from playground.backends.server import ServerBackend
from playground.commands import main
from playground.errors import PlaygroundError
from tests.backends.fake_server import serve

GUIDE = Path(__file__).parents[2] / "docs" / "add-a-backend.md"
FILE, REGISTRATION, TEST = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def registered(tmp_path, monkeypatch):
    """The guide's backend, as the file and the registration that the guide shows."""
    (tmp_path / "tiny.py").write_text(FILE, encoding="utf-8")
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "playground.backends.tiny", raising=False)
    scope = {kind.__name__: kind for kind in (ServerBackend, *KINDS)}
    exec(REGISTRATION, scope)
    *known, added = scope["KINDS"]
    assert known == KINDS and added is scope["TinyServer"]
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
        pytest.raises(PlaygroundError, match=r"so it is no llama-server, vLLM, .*, tiny-server or"),
    ):
        connect(server.url)
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    assert "Ollama, tiny-server or OpenAI-compatible server" in " ".join(capsys.readouterr().out.split())
