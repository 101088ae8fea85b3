"""The one error that is meant for people: what happened, why, and what to do. And the end that they asked for."""

INTERNAL = "Internal error; your input is fine. The log says more."


class PlaygroundError(Exception):
    """Something the user can act on. Its text is shown as it is, in the page and in the terminal."""


class Stopped(Exception):
    """What `progress` raises in whatever takes long, where nobody waits for it any more."""


def check(condition: bool, message: str) -> None:
    """Raises a PlaygroundError with the message where the condition does not hold."""
    if not condition:
        raise PlaygroundError(message)


def install_hint(name: str) -> str:
    """How to install the packages of an extra, as a sentence."""
    return f'Install the extra: pip install "speculative-decoding-playground[{name}]", in a checkout ".[{name}]".'
