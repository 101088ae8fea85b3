"""The one error that is meant for people: it says what happened, why, and what to do."""


class PlaygroundError(Exception):
    """Something the user can act on. Its text is shown as it is, in the page and in the terminal."""
