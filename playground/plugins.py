"""The parts that other packages add: drafting methods, kinds of server and commands, over Python's entry points.

An entry point of the group `playground.drafters`, `playground.backends` or `playground.commands` names a registration,
or a list of them, as docs/add-a-drafter.md, docs/add-a-backend.md and CONTRIBUTING.md show. Installing the package is
all that its user does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from playground.errors import PlaygroundError, on_one_line

logger = logging.getLogger(__name__)
PROJECT = "speculative-decoding-playground"


def load_plugins(group: str, add: Callable[[Any, str], None], first: str = "") -> None:
    """Calls `add` with each registration in a group of entry points and the name of its package, sorted by that name.
    `first`: the value of this project's own entry point, which pyproject.toml names too; "" for none.

    A registration that cannot be loaded, or that `add` raises an exception for, is left out with a warning: other
    people's code must not keep the program from starting.
    """
    found = {point.value: (point.dist.name, point) for point in entry_points(group=group) if point.dist}
    if first:  # a checkout that is not installed has no entry points
        found.setdefault(first, (PROJECT, EntryPoint("own", first, group)))
    for package, point in sorted(found.values(), key=lambda it: (it[1].value != first, it[0], it[1].name)):
        with _left_out(package, point):
            loaded = point.load()
            for registration in loaded if isinstance(loaded, (list, tuple)) else [loaded]:
                with _left_out(package, point):
                    add(registration, package)


@contextmanager
def _left_out(package: str, point: EntryPoint) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # importing it runs the package's own code, which can raise anything
        why = on_one_line(error)
        logger.warning(
            "Left out %s, which the package %s adds to %s: %s. Update the package, or uninstall it.",
            point.value,
            package,
            point.group,
            why if isinstance(error, PlaygroundError) else f"{type(error).__name__}: {why}",
        )
