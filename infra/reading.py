"""Plain data (YAML, JSON) into frozen dataclasses, with messages for people. For `infra.config`, `infra.outputs`.

The dataclass is the schema: its fields are the allowed keys, its annotations the allowed types. Standard library only.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Collection, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class ConfigError(ValueError):
    """The caller's mistake: one line that names the key, what is wrong, and what is allowed. Exit status 2."""


def build(cls: type[T], data: object, where: str) -> T:
    """An instance of the dataclass `cls` from a mapping; `where` is the mapping's own key, for the messages.

    Raises:
        ConfigError: not a mapping, an unknown or missing key, or a value of another type.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: must be a mapping, not {data!r}")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise ConfigError(f"{_join(where, key)}: unknown key; {allowed(key, fields)}")
    missing = [name for name, field in fields.items() if name not in data and _required(field)]
    if missing:
        raise ConfigError(f"{_join(where, missing[0])}: missing; it has no default")
    hints = get_type_hints(cls)
    return cls(**{key: convert(hints[key], value, _join(where, key)) for key, value in data.items()})


def convert(hint: Any, value: object, where: str) -> Any:  # noqa: ANN401 - a type of any kind in, its value out
    """`value` as the annotation `hint` asks for it.

    Raises:
        ConfigError: it is of another type.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else convert(next(kind for kind in inner if kind is not type(None)), value, where)
    if origin is Literal:
        return _one_of(inner, value, where)
    if origin is tuple:
        items = _checked(list, value, where, "a list")
        return tuple(convert(inner[0], item, f"{where}[{number}]") for number, item in enumerate(items))
    if origin is Mapping:
        pairs = _checked(dict, value, where, "a mapping")
        return {str(key): convert(inner[1], item, _join(where, str(key))) for key, item in pairs.items()}
    if dataclasses.is_dataclass(hint):
        return build(hint, value, where)  # type: ignore[arg-type]
    return _scalar(hint, value, where)


def _scalar(hint: type, value: object, where: str) -> object:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, bool) and hint is not bool:
        raise ConfigError(f"{where}: must be {_NAMES[hint]}, not {value!r}")
    return _checked(hint, value, where, _NAMES[hint])


_NAMES: dict[type, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def _checked(kind: type, value: object, where: str, name: str) -> Any:  # noqa: ANN401 - of type `kind`
    if not isinstance(value, kind):
        raise ConfigError(f"{where}: must be {name}, not {value!r}")
    return value


def _one_of(choices: tuple[Any, ...], value: object, where: str) -> object:
    if value not in choices:
        raise ConfigError(f"{where}: {value!r} is not allowed; {allowed(value, [str(it) for it in choices])}")
    return value


def allowed(name: object, known: Collection[str]) -> str:
    """The names there are, and which one may have been meant."""
    near = difflib.get_close_matches(str(name), known, 1)
    return f"allowed: {', '.join(known)}" + (f"; did you mean {near[0]!r}?" if near else "")


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _join(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)
