"""Plain values as frozen dataclasses, every one of them checked: the one reader of typed configuration.

Called by `training.config` and `measuring.programs`, and by `bench.spec` and `chaos.spec` for suites. What a value may
be stands in the annotation of its field: its type, and with `Annotated[int, Rule(least=1)]` its range. Lists, tables
and dataclasses within dataclasses are read in the same way, to any depth. Standard library only.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

LINE = 300  # characters of a message at most
SHOWN = 60  # characters of a value that a message shows at most
LISTED = 140  # characters of the allowed names that a message lists at most
LARGEST = 1e15  # of any number: beyond it sums are no longer exact, and no setting means anything

T = TypeVar("T")


class ConfigError(ValueError):
    """The caller's mistake, in one line: what, where, what is allowed. Exit status 2."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


@dataclass(frozen=True)
class Rule:
    """Which values a field may have, beside its type. A list's rule is that of each of its items."""

    one_of: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    above: float | None = None
    pattern: str = ""  # a regular expression that the whole text matches; with `one_of`: what else it may be
    words: str = ""  # what the pattern asks for

    def must_be(self, value: object) -> str:
        """What the value must be, if it is not; else an empty text."""
        if isinstance(value, str):
            if self.one_of:
                allowed = (
                    "one of " + listed([it for it in self.one_of if it]) + (f", or {self.words}" if self.words else "")
                )
                return "" if value in self.one_of or self._matches(value) else allowed
            return self.words if self.pattern and not self._matches(value) else ""
        if not isinstance(value, int | float) or self._within(value):
            return ""
        least = self.least if self.above is None else self.above
        open_end = (self.most if value > 0 else least) is None
        return f"at most {LARGEST:g} in size" if abs(value) > LARGEST and open_end else self.range

    def _matches(self, value: str) -> bool:
        return bool(self.pattern and re.fullmatch(self.pattern, value))

    def _within(self, value: float) -> bool:
        least = -LARGEST if self.least is None else self.least
        most = LARGEST if self.most is None else self.most
        return least <= value <= most and (self.above is None or value > self.above)

    @property
    def bounded(self) -> bool:
        """Whether it says anything about a number."""
        return (self.least, self.most, self.above) != (None, None, None)

    @property
    def range(self) -> str:
        """The range in words."""
        low = f"above {self.above:g}" if self.above is not None else "" if self.least is None else f"{self.least:.15g}"
        if self.most is None:
            return low if self.above is not None else f"at least {low}" if low else f"at most {LARGEST:g} in size"
        return f"{low} and at most {self.most:.15g}" if self.above is not None else f"{low or '−∞'} to {self.most:.15g}"


ANY = Rule()
NOT_EMPTY = "a list with at least one value"
SCALARS: dict[type, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def read(kind: type[T], table: object, where: str) -> T:
    """An instance of a dataclass from a table, with every key, type and range checked.

    Raises:
        ConfigError: one line with the first thing that is wrong; it begins with `where`.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: must be a table, not {shown(table)}")
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    for name in table:
        if name not in known:
            raise ConfigError(f"{where}: {unknown('key', name, known)}")
    for name, item in known.items():
        if name not in table and item.default is item.default_factory is MISSING:
            raise ConfigError(f"{where}: key {name!r} is missing")
    return kind(**{name: value_of(kind, name, value, where) for name, value in table.items()})


def value_of(kind: Any, name: str, value: object, where: str) -> Any:  # noqa: ANN401 - the field's type decides
    """The value, if the field `name` of a dataclass may have it. Lists become tuples, whole numbers floats.

    Raises:
        ConfigError: it may not; says what is allowed.
    """
    rule: Rule = field_of(kind, name).metadata.get("rule", ANY)
    return checked(hints(kind)[name], rule, value, where, name)


def field_of(kind: type[Any], name: str) -> Field[Any]:
    """A field of a dataclass."""
    found: Field[Any] = kind.__dataclass_fields__[name]
    return found


@cache
def hints(kind: type[object]) -> dict[str, Any]:
    """The annotations of a dataclass, as types."""
    return get_type_hints(kind, include_extras=True)


def checked(hint: Any, rule: Rule, value: Any, where: str, name: str) -> Any:  # noqa: ANN401 - any type, any value
    """The value as the type `hint` has it, if the rule allows it; `name` says what it is of."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return checked(args[0], args[1], value, where, name)
    if origin is not None:
        made: Callable[..., Any] = GENERICS.get(origin, entries)
        return made(args, rule, value, where, name)
    if hasattr(hint, "__dataclass_fields__"):
        return value if isinstance(value, hint) else read(hint, value, f"{where}: {name}")
    return value if hint is Any else scalar(hint, rule, value, where, name)


def any_of(kinds: tuple[Any, ...], rule: Rule, value: object, where: str, name: str) -> Any:  # noqa: ANN401 - same
    """Of several scalar types the one that the value has; None where that is one of them."""
    if value is None and NoneType in kinds:
        return None
    given = {
        get_args(kind)[0] if get_origin(kind) is Annotated else kind: kind for kind in kinds if kind is not NoneType
    }
    kind = next(iter(given.values())) if len(given) == 1 else given.get(type(value))
    if kind is None:
        raise refused(where, name, value, " or ".join(SCALARS[it] for it in given))
    return checked(kind, rule, value, where, name)


def bare(kind: Any) -> Any:  # noqa: ANN401 - any type
    """A type without its rule."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def items(kinds: tuple[Any, ...], rule: Rule, value: object, where: str, name: str) -> tuple[Any, ...]:
    """A list of one type."""
    if not isinstance(value, list | tuple):
        raise refused(where, name, value, "a list")
    return tuple(checked(kinds[0], rule, item, where, f"{name}, item {at}") for at, item in enumerate(value, 1))


def entries(kinds: tuple[Any, ...], rule: Rule, value: object, where: str, name: str) -> dict[str, Any]:
    """A table with names of one type and values of another."""
    if not isinstance(value, Mapping):
        raise refused(where, name, value, "a table")
    return {
        checked(kinds[0], ANY, key, where, f"a name in {name}"): checked(kinds[1], rule, it, where, f"{name}.{key}")
        for key, it in value.items()
    }


GENERICS: dict[Any, Callable[..., Any]] = {Union: any_of, UnionType: any_of, tuple: items}
"""How lists and choices are read; any other generic is a mapping."""


def scalar(kind: type, rule: Rule, value: Any, where: str, name: str) -> Any:  # noqa: ANN401 - same
    """A text, a number or a truth value; a whole number passes for a number, no number is NaN or infinite."""
    if type(value) not in ((int, float) if kind is float else (kind,)):
        raise refused(where, name, value, SCALARS[kind])
    if isinstance(value, float) and not math.isfinite(value):
        raise refused(where, name, value, SCALARS[kind])
    if problem := rule.must_be(value):
        raise refused(where, name, value, problem)
    return float(value) if kind is float else value


def refused(where: str, name: str, value: object, problem: str) -> ConfigError:
    """What is wrong with a value."""
    return ConfigError(f"{where}: {shortened(name)} = {shown(value)}: must be {problem}")


def unknown(what: str, name: object, known: Collection[str]) -> str:
    """That there is no such name, those there are, and which one may have been meant."""
    near = difflib.get_close_matches(str(name), known, 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {shown(name)}; allowed: {listed(known)}{meant}"


def listed(names: Collection[str]) -> str:
    """Names with commas; where they are too many, the first of them."""
    text, left = "", list(names)
    while left and len(text) + len(left[0]) <= LISTED:
        text += (", " if text else "") + left.pop(0)
    return f"{text}, and {len(left)} more" if left else text


def shown(value: object) -> str:
    """A value as a message shows it."""
    try:
        return shortened(repr(value))
    except ValueError:  # a whole number of more digits than Python likes to print
        return "a number of thousands of digits"


def shortened(text: str, most: int = SHOWN) -> str:
    """The text; where it is too long, its beginning and its end."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]}…{text[len(text) - most + most * 2 // 3 + 1 :]}"


def one_line(text: str) -> str:
    """The text in one line that a terminal can show, `LINE` characters at most."""
    flat = " ".join(text.split())
    return shortened("".join(it if it.isprintable() else "�" for it in flat), LINE)
