"""Plain data (YAML, JSON, the arguments of an endpoint) read into dataclasses; errors are sentences that name the key.

pydantic does the checking, in its strict JSON mode: text is not read as a number, nor a number as true or false. Lists
become tuples, whole numbers become floats where a float is expected.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from playground.errors import PlaygroundError
from playground.settings import Setting, settings_of

T = TypeVar("T")
Step = str | int  # a key, or an index of a list
OBJECT = "keys with values"
WHOLE = "the file"

# The expected value, by pydantic's name for the error; for other errors pydantic's own message is shown.
EXPECTED = {
    "string_type": "text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": OBJECT,
    "mapping_type": OBJECT,
    "dataclass_type": OBJECT,
    "none_required": "empty",
}


def read(kind: type[T], data: Any, where: str = "", extra: Literal["forbid", "ignore"] = "forbid") -> T:
    """Build `kind` from data that `json.loads` or `yaml.safe_load` returned.

    Args:
        kind: a dataclass, or any other type that pydantic knows, such as `tuple[Round, ...]` or a model.
        where: the path of `data` in the file, such as "lanes[0]", which error messages then begin with.
        extra: whether keys that a dataclass lacks are errors or are ignored.

    Raises:
        PlaygroundError: "key should be …; it is …." for the first value that does not fit, or its setting's sentence.
            An error that a dataclass raises itself, in `__post_init__`, is passed on as it is.
    """
    try:
        text = json.dumps(data, allow_nan=False, default=_refuse)
    except (TypeError, ValueError, RecursionError) as error:  # a date, an infinite number, a list that holds itself
        expected = "made of text, finite numbers, true and false, in lists and under keys"
        raise PlaygroundError(f"{where or WHOLE} should be {expected} ({error}).") from None
    try:
        adapter = _adapter(kind)  # type: ignore[arg-type]  # mypy doubts that a type is hashable
        return adapter.validate_json(text, strict=True, extra=extra)
    except ValidationError as error:
        raise PlaygroundError(sentence(error, kind, json.loads(text), where)) from None


def plain(value: Any) -> Any:
    """Return a dataclass that `read` builds as data for `json.dumps`: what `dataclasses.asdict` returns in
    forty times the time."""
    adapter: TypeAdapter[Any] = _adapter(type(value))  # type: ignore[arg-type]  # as in `read`
    return adapter.dump_python(value, warnings=False)


def mended(data: Any) -> Any:
    """Replace each unpaired surrogate, which JSON can hold and text cannot, by U+FFFD."""
    match data:
        case str():
            return data.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {mended(key): mended(value) for key, value in data.items()}
        case list() | tuple():
            return [mended(each) for each in data]
    return data


def _refuse(value: object) -> None:
    raise TypeError(f"{value} is a {type(value).__name__}")


@cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)


def sentence(error: ValidationError, kind: Any, data: Any, where: str = "") -> str:
    """Describe the first value in `data` that does not fit `kind`, as "key should be …; it is …."."""
    problems = error.errors(include_url=False)
    first, path = problems[0], _path(problems[0]["loc"], data)
    if first["type"] == "missing":
        return f"{_name([*path, str(first['loc'][-1])], where)} should be there, and is missing."
    if first["type"] == "unexpected_keyword_argument":
        return f"{_name(path, where)} should be one of the known keys: {', '.join(_known(kind, path))}."
    if first["type"] == "json_invalid":  # json.dumps wrote it, so it can only be half of a surrogate pair
        return f"{where or WHOLE} should be valid Unicode, without unpaired surrogates."
    if setting := _setting(kind, path):
        return f"{_name(path, where)}: {setting.refusal(first['input'])}"
    # The branches of a union each have an error; the sentence names everything that is accepted.
    expected = [_expected(problem) for problem in problems if _path(problem["loc"], data) == path]
    return f"{_name(path, where)} should be {' or '.join(dict.fromkeys(expected))}; it is {_shown(first['input'])}."


def _path(loc: Sequence[Step], data: Any) -> list[Step]:
    """Return the steps that lead into the data. pydantic's own path also names the branch of a union and a missing
    key."""
    path: list[Step] = []
    for step in loc:
        if not (isinstance(data, list) if isinstance(step, int) else isinstance(data, dict) and step in data):
            break
        data = data[step]
        path.append(step)
    return path


def _name(path: Sequence[Step], where: str) -> str:
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return (where + "".join(steps)).removeprefix(".") or WHOLE


def _expected(problem: Any) -> str:
    if problem["type"] == "literal_error":
        return f"one of {problem['ctx']['expected']}".replace("'", "").replace(" or ", ", ")
    return EXPECTED.get(problem["type"]) or problem["msg"].removeprefix("Input should be ")


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return OBJECT if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return {None: "empty", True: "true", False: "false"}[value]
    return reprlib.repr(value)


def _known(kind: Any, path: Sequence[Step]) -> list[str]:
    """Return the keys of the dataclass that holds the last key of the path."""
    return [field.name for field in fields(_holder(kind, path))]


def _setting(kind: Any, path: Sequence[Step]) -> Setting | None:
    """Return the setting that the path leads to; None where it leads to something else."""
    holder = _holder(kind, path)
    return settings_of(holder).get(str(path[-1])) if path and holder else None


def _holder(kind: Any, path: Sequence[Step]) -> Any:
    """Return the dataclass that holds the last key of the path."""
    kind = _dataclass_in(kind)
    for step in path[:-1]:
        hints = get_type_hints(kind) if kind else {}  # the options of an experiment are a model without such keys
        kind = (step in hints and _dataclass_in(hints[step])) or kind
    return kind


def _dataclass_in(hint: Any) -> Any:
    """Return the first dataclass of a type hint such as `tuple[Round, ...] | None`."""
    return hint if is_dataclass(hint) else next(filter(None, map(_dataclass_in, get_args(hint))), None)
