"""Fetches a model's files from the Hugging Face hub, or finds them in its local cache when the hub is unreachable.

It fetches only safetensors, configuration and tokenizer files: neither pickles nor code.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, get_token, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import filter_repo_objects, get_session
from tqdm import tqdm

from playground.errors import PlaygroundError, Stopped, check
from playground.models.fetch.files import ModelFiles, inspect
from playground.presets import HUB
from playground.progress import Progress, of_bytes

FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
COPIES = ["*/*", "consolidated*"]  # copies of the weights in other layouts


@dataclass(frozen=True)
class Terms:
    """The terms on which this process downloads. `anonymous`: no hub token is sent. `cache`: the bytes that the hub's
    cache may grow to."""

    anonymous: bool = False
    cache: float = float("inf")


TERMS = Terms()  # playground/app.py sets others where strangers choose the models


def fetch(repo_id: str, progress: Callable[[Progress], None]) -> ModelFiles:
    """Returns the files of a hub model, fetched if the local cache lacks them. The id may have the prefix HUB, here and
    below.

    Raises:
        PlaygroundError: there is no such id, or the model is gated, unreachable, without safetensors, or too large for
            the cache.
    """
    repo_id = repo_id.removeprefix(HUB)
    bounded = TERMS.cache < float("inf")
    try:
        bar = _bar(f"Fetching {repo_id}", progress)
        local = not reachable() or (bounded and cached(repo_id))
        if bounded and not local:
            _check_room(repo_id)
        folder = _snapshot(repo_id, local_files_only=local, tqdm_class=bar)
    except HFValidationError:
        raise PlaygroundError(
            f"{repo_id!r} is neither a folder on this machine nor the id of a model on the hub. "
            "Type an id as owner/name, or the path of a folder."
        ) from None
    except GatedRepoError:
        raise PlaygroundError(
            f"{repo_id} is gated: only accounts that accepted its terms can download it. Accept them on the model's "
            "page, then set HF_TOKEN or run `hf auth login`."
        ) from None
    except RepositoryNotFoundError:
        raise PlaygroundError(
            f"The hub has no model {repo_id}, or it is private. Check the spelling; for a private model set HF_TOKEN."
        ) from None
    except LocalEntryNotFoundError:
        raise PlaygroundError(
            f"{repo_id} is not in the local hub cache, and the hub cannot be reached. Connect to the network, or type "
            "the path of a folder that holds the model."
        ) from None
    except (Stopped, PlaygroundError):
        raise
    except Exception as error:
        # snapshot_download raises errors of an HTTP client, a file system and threads.
        raise PlaygroundError(
            f"Fetching {repo_id} from the hub failed ({type(error).__name__}: {error}). Try again: the download "
            "resumes where it stopped."
        ) from error
    return inspect(folder, repo_id, f"{repo_id} from the hub, revision {folder.name[:8]}")


def cached(repo_id: str) -> bool:
    """True where the local hub cache holds the model's files."""
    try:
        folder = _snapshot(repo_id, local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError):
        return False
    return any(folder.glob("*.safetensors"))


def size(repo_id: str) -> int:
    """Returns the bytes that `fetch` would download; 0 if the hub does not say within three seconds."""
    try:
        files = (
            HfApi(token=_token()).model_info(repo_id.removeprefix(HUB), files_metadata=True, timeout=3).siblings or []
        )
    except Exception:  # unknown, private, gated, or whatever the HTTP client raises
        return 0
    wanted = filter_repo_objects(files, allow_patterns=FILES, ignore_patterns=COPIES, key=lambda file: file.rfilename)
    return sum(file.size or 0 for file in wanted)


def _snapshot(repo_id: str, **options: Any) -> Path:
    options["token"] = _token()
    return Path(snapshot_download(repo_id.removeprefix(HUB), allow_patterns=FILES, ignore_patterns=COPIES, **options))


def _token() -> bool | None:
    """Returns huggingface_hub's argument `token`: False sends none, None the one that it finds."""
    return False if TERMS.anonymous else None


def _check_room(repo_id: str) -> None:
    """Checks that the cache has room for a model.

    Raises:
        PlaygroundError: the cache would grow too large, or the hub does not state the size.
    """
    wanted, folder = size(repo_id), Path(constants.HF_HUB_CACHE)
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    check(
        0 < wanted <= TERMS.cache - held,
        f"{repo_id} ({f'{wanted / 1e9:.1f} GB' if wanted else 'of a size that the hub does not tell'}) is not "
        "downloaded: this server keeps little room for models. Choose one that is ready.",
    )


def reachable() -> bool:
    """True where the hub answers within three seconds; the request is made at most twice a minute. A download from a
    silent hub would wait for minutes."""
    return not constants.HF_HUB_OFFLINE and _answers(int(time.monotonic() // 30))


@lru_cache(maxsize=1)
def _answers(half_minute: int) -> bool:
    try:
        return get_session().get(f"{constants.ENDPOINT}/api/models/openai-community/gpt2", timeout=3).status_code < 400
    except Exception:  # the HTTP client differs between versions of huggingface_hub
        return False


def has_token() -> bool:
    return not TERMS.anonymous and get_token() is not None


def _bar(label: str, progress: Callable[[Progress], None]) -> type[tqdm]:
    """Returns a progress bar class for huggingface_hub that reports its bytes to `progress` and draws nothing."""

    class Bar(tqdm):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **{**kwargs, "file": io.StringIO()})

        def display(self, *args, **kwargs) -> None:
            if self.unit == "B" and self.total and self.n:
                line = f"{label}: {of_bytes(self.n, self.total)}"
                progress(Progress(line, min(1.0, self.n / self.total)))

    return Bar
