"""The one reader of typed configuration: types to any depth, ranges, and messages that fit a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proving_ground.training.typed import LINE, ConfigError, Rule, read

Count = Annotated[int, Rule(least=1, most=9)]


@dataclass(frozen=True)
class Inner:
    """A table within."""

    size: Count


@dataclass(frozen=True)
class Outer:
    """One of everything."""

    word: str
    share: float = 0.5
    counts: tuple[Count, ...] = ()
    rows: tuple[tuple[int, ...], ...] = ()
    inner: Inner | None = None
    several: tuple[Inner, ...] = ()
    table: Mapping[str, Count] = field(default_factory=dict)
    either: str | bool | None = None
    free: Mapping[str, Any] = field(default_factory=dict)


def test_values_are_read_to_any_depth() -> None:
    made = read(
        Outer,
        {"word": "a", "share": 1, "counts": [1, 9], "rows": [[1], []], "inner": {"size": 2},
         "several": [{"size": 3}], "table": {"x": 4}, "either": True, "free": {"any": [None]}},
        "x",
    )  # fmt: skip
    assert made == Outer(
        "a", 1.0, (1, 9), ((1,), ()), Inner(2), (Inner(3),), {"x": 4}, either=True, free={"any": [None]}
    )
    assert type(made.share) is float


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"wrd": "a"}, "x: unknown key 'wrd'; allowed: word, share, counts, rows, inner, several, table"),
        ({"wrd": "a"}, "; did you mean 'word'?"),
        ({"word": None}, "x: word = None: must be a text"),
        ({"share": True}, "x: share = True: must be a number"),
        ({"share": float("inf")}, "x: share = inf: must be a number"),
        ({"share": 10**400}, "x: share = 1"),
        ({"share": 10**5000}, "x: share = a number of thousands of digits: must be at most 1e+15 in size"),
        ({"counts": [1, True]}, "x: counts, item 2 = True: must be a whole number"),
        ({"counts": [1, 10]}, "x: counts, item 2 = 10: must be 1 to 9"),
        ({"counts": {"a": 1}}, "x: counts = {'a': 1}: must be a list"),
        ({"rows": [[1], ["b"]]}, "x: rows, item 2, item 1 = 'b': must be a whole number"),
        ({"inner": {}}, "x: inner: key 'size' is missing"),
        ({"inner": 3}, "x: inner: must be a table, not 3"),
        ({"several": [{"size": 0}]}, "x: several, item 1: size = 0: must be 1 to 9"),
        ({"table": {"x": "y"}}, "x: table.x = 'y': must be a whole number"),
        ({"either": 2.5}, "x: either = 2.5: must be a text or true or false"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(Outer, {"word": "a", **change}, "x")
    assert words in str(refused.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=400), inner, max_size=4),
)


@given(st.dictionaries(st.sampled_from(["word", *Outer.__dataclass_fields__]) | st.text(), JSON))
def test_anything_is_read_or_refused_in_a_line(table: dict[str, object]) -> None:
    said = ""
    try:
        read(Outer, table, "x")
    except ConfigError as error:
        said = str(error)
    assert len(said) <= LINE
    assert said.isprintable()
