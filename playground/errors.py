"""The errors that are shown to users, and the exception that stops a run."""

INTERNAL = "Internal error; your input is fine. The log says more."


class PlaygroundError(Exception):
    """An error that the user can act on. Its text is shown as it is, in the page and in the terminal."""


class Stopped(Exception):
    """Raised by `progress` to end a long operation whose result is no longer wanted."""


def check(condition: bool, message: str) -> None:
    """Raise a PlaygroundError with the message where the condition does not hold."""
    if not condition:
        raise PlaygroundError(message)


def on_one_line(error: BaseException, most: int = 200) -> str:
    """Return the beginning of an error's message on one line, or the name of its class where it has no message."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def install_hint(name: str) -> str:
    """Return a sentence on how to install the packages of an extra."""
    return f'Install the extra: pip install "speculative-decoding-playground[{name}]", in a checkout ".[{name}]".'


class MadeForAnother(PlaygroundError):
    """A drafter is whole, and was made for another target."""
