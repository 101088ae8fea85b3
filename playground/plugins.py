"""What other packages add: drafting methods and kinds of server, over Python's entry points.

An entry point of the group `playground.drafters` or `playground.backends` names a registration, or a list of them, as
docs/add-a-drafter.md and docs/add-a-backend.md show. Installing the package is all that its user does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from playground.errors import PlaygroundError

logger = logging.getLogger(__name__)


def load_plugins(group: str, add: Callable[[Any, str], None]) -> None:
    """Calls `add` with each registration in a group of entry points and the name of its package, sorted by that name.

    A registration that cannot be loaded, or that `add` raises an exception for, is left out with a warning: other
    people's code must not keep the program from starting.
    """
    found = [(point.dist.name, point) for point in entry_points(group=group) if point.dist]
    for package, point in sorted(found, key=lambda it: (it[0], it[1].name)):
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
        why = " ".join(str(error).split())[:200]
        logger.warning(
            "Left out %s, which the package %s adds to %s: %s. Update the package, or uninstall it.",
            point.value,
            package,
            point.group,
            why if isinstance(error, PlaygroundError) else f"{type(error).__name__}: {why}",
        )
