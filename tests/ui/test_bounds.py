"""What visitors may send, and what stays of it."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from playground.hosting.access import FOR_VISITORS, Access
from playground.hosting.request_filter import make_room
from tests.ui import fakes

SMALL = Access(public=True, models=(), limits=dataclasses.replace(FOR_VISITORS, upload=10_000, files=15_000))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("files")
        patch.setenv("GRADIO_TEMP_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def url(folder, serve) -> str:
    """The page of a machine that is too busy to answer itself within seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradio.networking.url_ok", lambda url: False)
        return serve(fakes.Backend, SMALL)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_oldest_files_go_first(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    for number in range(4):
        path = tmp_path / str(number) / "trace.json"
        path.parent.mkdir()
        path.write_bytes(b"x" * 100)
        os.utime(path, (number, number))
    make_room(250)
    assert sorted(path.parent.name for path in tmp_path.rglob("*.json")) == ["2", "3"]


def test_what_is_too_large_is_not_read_and_uploads_take_a_bounded_room(folder, url):
    def upload(content: bytes) -> httpx.Response:
        return httpx.post(f"{url}/gradio_api/upload", files={"files": ("trace.json", content)})

    assert upload(b"x" * 20_000).status_code == 413
    for number in range(8):
        assert upload(bytes([number]) * 5_000).status_code == 200
        assert size(folder) <= 15_000 + 10_000
    long = {"data": ["x" * 20_000], "fn_index": 0, "session_hash": "s"}
    assert httpx.post(f"{url}/gradio_api/queue/join", json=long).status_code == 413

    def chunks():
        yield from (b"x" * 1_000 for _ in range(50))

    with pytest.raises(httpx.HTTPError):
        httpx.post(f"{url}/gradio_api/queue/join", content=chunks()).raise_for_status()


def test_the_page_names_neither_folders_nor_host_and_files_of_the_server_cannot_be_had(folder, url):
    for path in ("/", "/config", "/gradio_api/info", "/gradio_api/startup-events"):
        text = httpx.get(f"{url}{path}").text
        for hidden in (str(Path.home()) + "/", str(Path.cwd()), str(folder), socket.gethostname()):
            assert len(hidden) < 5 or hidden not in text
    for path in ("/etc/passwd", "../../../../etc/passwd", "app.py", "tests/ui/fakes.py"):
        assert httpx.get(f"{url}/gradio_api/file={path}").status_code in (403, 404), path


def test_the_page_starts_on_a_machine_that_is_too_busy_to_answer_within_seconds(url):
    assert httpx.get(url).status_code == 200
