"""What makes the host wait for a CUDA device is seen on a CPU, with and without inference mode."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.waits import Waits
from tests.far import FAR, FarDevice, FarTensor

X = torch.arange(42.0).reshape(6, 7)
ROW, ROWS, MASK = torch.tensor(2), torch.tensor([1, 2]), torch.arange(6) > 2

WAIT = {
    "item": lambda: X[0, 0].item(),
    "float": lambda: float(X[0, 0]),
    "int": lambda: int(ROW),
    "bool": lambda: bool(MASK[0]),
    "if": lambda: 1 if MASK.any() else 0,
    "is_nonzero": lambda: torch.is_nonzero(ROW),
    "in": lambda: 2 in ROWS,
    "format": lambda: f"{X[0, 0]:.2f}",
    "print": lambda: repr(ROW),
    "tolist": lambda: X.tolist(),
    "cpu": lambda: X.cpu(),
    "numpy": lambda: X.numpy(),
    "as an array": lambda: np.asarray(X),
    "equal": lambda: torch.equal(X, X),
    "index of no dimensions": lambda: X[ROW],
    "a later index of no dimensions": lambda: X[0, ROW],
    "written at an index of no dimensions": lambda: X.clone().__setitem__(ROW, 0.0),
    "end of a slice": lambda: X[:ROW],
    "narrow": lambda: X.narrow(0, ROW, 1),
    "range": lambda: range(ROW),
    "arange": lambda: torch.arange(ROW),
    "list": lambda: X[[1, 2]],
    "list after a number": lambda: X[0, [1, 2]],
    "range as an index": lambda: X[range(2)],
    "array as an index": lambda: X[np.array([1, 2])],
    "written at a list": lambda: X.clone().__setitem__([1, 2], 0.0),
    "boolean index": lambda: X[MASK],
    "written at a boolean index": lambda: X.clone().__setitem__(MASK, X[:3]),
    "nonzero": lambda: MASK.nonzero(),
    "argwhere": lambda: torch.argwhere(MASK),
    "where of a condition": lambda: torch.where(MASK),
    "masked_select": lambda: X.masked_select(X > 3),
    "bincount": lambda: ROWS.bincount(),
    "unique": lambda: ROWS.unique(),
    "unique_consecutive": lambda: torch.unique_consecutive(ROWS),
    "repeat_interleave": lambda: ROWS.repeat_interleave(ROWS),
    "tensor on a device": lambda: torch.tensor([1, 2], device="cpu"),
    "tensor like another": lambda: X.new_tensor([1.0]),
}
QUEUED = {
    "index": lambda: X[ROWS],
    "two indices": lambda: X[ROWS, ROWS],
    "index_select": lambda: X.index_select(0, ROW[None]),
    "gather": lambda: X.gather(1, ROW.expand(6, 1)),
    "numbers as indices": lambda: X[0, 1:3],
    "new dimensions": lambda: X[None, ..., 0],
    "written at an index": lambda: X.clone().__setitem__((0, ROWS), X[0, :2]),
    "one number written at a boolean index": lambda: X.clone().__setitem__(MASK, 0.0),
    "where of three": lambda: torch.where(MASK[:, None], X, 0.0),
    "masked_fill": lambda: X.masked_fill(MASK[:, None], 0.0),
    "repeated by a number": lambda: ROWS.repeat_interleave(2),
    "a dtype": lambda: X.to(torch.float64),
    "copy": lambda: X.clone().copy_(X),
    "tensor on the host": lambda: torch.tensor([1, 2]),
    "arange on a device": lambda: torch.arange(3, device="cpu"),
    "rows": lambda: list(X),
    "topk, sort, sum": lambda: (X.topk(2), X.sort(), X.cumsum(-1)),
}


def waits_of(work) -> list[str]:
    seen: list[str] = []
    with Waits(seen.append):
        work()
    return seen


@pytest.mark.parametrize("inference", [False, True], ids=["plain", "inference mode"])
@pytest.mark.parametrize("what", WAIT)
def test_a_wait_is_seen_once(what, inference):
    with torch.inference_mode(inference):
        assert len(waits_of(WAIT[what])) == 1


@pytest.mark.parametrize("inference", [False, True], ids=["plain", "inference mode"])
@pytest.mark.parametrize("what", QUEUED)
def test_what_is_queued_is_no_wait(what, inference):
    with torch.inference_mode(inference):
        assert waits_of(QUEUED[what]) == []


@pytest.mark.parametrize("inference", [False, True], ids=["plain", "inference mode"])
@pytest.mark.parametrize(
    ("copy", "waits"),
    [
        pytest.param(lambda far: X.to(FAR), 1, id="there"),
        pytest.param(lambda far: X.to(device=FAR, non_blocking=True), 0, id="there, queued"),
        pytest.param(lambda far: far.to("cpu"), 1, id="back"),
        pytest.param(lambda far: far.copy_(X), 1, id="into a buffer"),
        pytest.param(lambda far: far.copy_(X, non_blocking=True), 0, id="into a buffer, queued"),
        pytest.param(lambda far: far.copy_(far), 0, id="on the device"),
        pytest.param(lambda far: far.tolist(), 1, id="a list"),
    ],
)
def test_a_copy_between_devices_waits_unless_it_is_queued(copy, waits, inference):
    with FarDevice(), torch.inference_mode(inference):
        far = FarTensor(X.clone())
        assert len(waits_of(lambda: copy(far))) == waits


def test_a_wait_can_be_refused():
    def refuse(name: str) -> None:
        raise RuntimeError(name)

    with pytest.raises(RuntimeError, match="tolist"), Waits(refuse):
        X.tolist()
