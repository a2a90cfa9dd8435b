"""The figures of `results.json`: what one is, and how it is found. Used by every kind of report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Figure = dict[str, Any]
DECIMALS = 9  # below a nanosecond there is only the noise of floating point


def pick(figures: Sequence[Figure], name: str, **where: object) -> Figure | None:
    """The first figure of that name whose `where` has these values."""
    return next((f for f in figures if f["name"] == name and _matches(f["where"], where)), None)


def pick_all(figures: Sequence[Figure], name: str = "", **where: object) -> list[Figure]:
    """All figures of that name (all names, if none is given) whose `where` has these values."""
    return [f for f in figures if name in ("", f["name"]) and _matches(f["where"], where)]


def _matches(where: Mapping[str, Any], wanted: Mapping[str, object]) -> bool:
    return all(where.get(key) == value for key, value in wanted.items())
