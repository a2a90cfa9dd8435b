"""Judges a fault's evidence by the conditions that came with it in the plan. Called by `reports.recovery.evidence`.

No fault is known by name here: `chaos/faults` says what proves each, `chaos/README.md` explains the words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from proving_ground.reports.recovery.incidents import Incident
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN

Found = dict[tuple[str, ...], Any]
"""Keys that stood for the `*` of a path → the value there."""

MOST_SHOWN = 60  # characters of a value
NEAR = 0.01  # of what a value should be: the kernel rounds rates and shares


class MissingError(LookupError):
    """A path leads nowhere in what was recorded."""


def answer(one: Incident, *, idle: bool = False) -> tuple[str, str]:
    """Whether a fault happened, by its evidence alone, and why; `idle`: the job made no step meanwhile."""
    return judged(one.traits.get("proof") or (), known(one), idle=idle)


def judged(asked: Sequence[Mapping[str, Any]], about: Mapping[str, Any], *, idle: bool = False) -> tuple[str, str]:
    """Fail if one of the conditions does not hold, unknown if one cannot be told or none is asked; and why."""
    if not asked:
        return UNKNOWN, "the plan does not say what would prove it"
    answers = [judge(condition, about, idle=idle) for condition in asked]
    for value in (FAIL, UNKNOWN):
        if why := next((why for found, why in answers if found == value), ""):
            return value, why
    return PASS, ""


def known(one: Incident) -> Mapping[str, Any]:
    """What conditions may ask about."""
    begin, end = ((record or {}).get("evidence") for record in (one.begin, one.end))
    return {"begin": begin, "end": end, "args": one.traits.get("args"), "target": one.target}


def judge(condition: Mapping[str, Any], about: Mapping[str, Any], *, idle: bool) -> tuple[str, str]:
    """One condition."""
    means = str(condition.get("means"))
    try:
        met = holds(condition, about)
    except MissingError as error:
        return UNKNOWN, f"not recorded: {error} ({means})"
    except (KeyError, TypeError, ValueError) as error:
        return UNKNOWN, f"cannot be told: {means} ({type(error).__name__}: {error})"
    if met:
        return PASS, ""
    at = str(condition["at"])
    told = f"{means}? {at} is {shown(values(at, about))}"
    if idle and condition.get("by_the_job") is True:
        return UNKNOWN, f"the job made no step meanwhile, which would show it: {told}"
    return FAIL, f"the evidence denies it: {told}"


def shown(found: Found) -> str:
    """What was there instead, as short as it can be read."""
    text = ", ".join(str(value) for value in found.values())
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def holds(condition: Mapping[str, Any], about: Mapping[str, Any]) -> bool:
    """Whether a condition is met.

    Raises:
        MissingError: something that it asks about was not recorded.
        KeyError, TypeError, ValueError: it makes no sense, or the value is of another kind than it should be.
    """
    test, than = TESTS[str(condition["must"])], str(condition.get("than") or "")
    others = values(than, about) if than else {}
    times, plus = float(condition.get("times", 1)), float(condition.get("plus", 0))
    return all(
        test(value, other(key, others) if than else condition.get("value"), times, plus)
        for key, value in values(str(condition["at"]), about).items()
    )


def other(key: tuple[str, ...], others: Found) -> Any:  # noqa: ANN401 - as recorded
    """What belongs to the same item, or the one value that all are compared with."""
    if key in others:
        return others[key]
    if () in others:
        return others[()]
    raise MissingError(f"nothing to compare {'.'.join(key)} with")


def values(path: str, about: Mapping[str, Any]) -> Found:
    """What a path leads to, by the keys that stood for its `*`.

    Raises:
        MissingError: nothing is there.
    """
    found: Found = {(): about}
    for name in path.split("."):
        found = dict(each(found, name, path))
    return found


def each(found: Found, name: str, path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """One part of a path further."""
    for key, value in found.items():
        if name == "*":
            yield from (((*key, inner), it) for inner, it in items(value, path))
        elif name == "+":
            yield key, sum(number(it) for _, it in items(value, path))
        elif isinstance(value, Mapping) and name in value:
            yield key, value[name]
        else:
            raise MissingError(path)


def items(value: object, path: str) -> list[tuple[str, Any]]:
    """The items of a table or a list, with their keys."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list):
        return [(str(at), it) for at, it in enumerate(value)]
    raise MissingError(path)


def number(value: object) -> float:
    """The value, if it is a number.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def names(value: object) -> Sequence[object]:
    """A text, the items of a list, or the keys of a table."""
    return [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple | Mapping) else [None]


def limit(value: object) -> float:
    """A limit; None: there is none."""
    return math.inf if value is None else number(value)


def near(value: object, than: object, times: float, plus: float) -> bool:
    """Whether a number is what it should be, but for `plus` (never half of it), or else for rounding."""
    if value is None:
        return False
    right = times * number(than)
    return abs(number(value) - right) <= (min(plus, abs(right) / 2) if plus else NEAR * abs(right))


def touches(value: object, than: object, *_: float) -> bool:
    """Whether one of the two nodes of a direction, such as `n1>n2`, is among others."""
    return not set(str(value).split(">")).isdisjoint(map(str, names(than)))


Test = Callable[[Any, Any, float, float], bool]
TESTS: dict[str, Test] = {
    "some": lambda it, *_: bool(it),
    "empty": lambda it, *_: not it,
    "equal": lambda it, than, *_: bool(it == than),
    "differ": lambda it, than, *_: bool(it != than),
    "above": lambda it, than, times, plus: number(it) > times * number(than) + plus,
    "below": lambda it, than, times, plus: limit(it) < times * limit(than) + plus,
    "at_most": lambda it, than, times, plus: number(it) <= times * number(than) + plus,
    "near": near,
    "touches": touches,
    "among": lambda it, than, *_: bool(names(it)) and set(names(it)) <= set(names(than)),
}
"""Word of a condition → whether a value meets it, beside what it is compared with."""
