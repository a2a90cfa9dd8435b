"""No test says that something has to be over soon: a busy machine breaks it, and nothing else is wrong.

What counts events, follows an order or stands a clock in finds the same defects. Only where a defect makes something
hang, a generous number of seconds is right. The time of the processor is no better: on a core that is shared with
others it has been three times as long.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CLOCKS = {"time.monotonic", "time.perf_counter", "time.time", "time.process_time"}
LEAST_S = 30  # that a test grants


def looks(node: ast.AST) -> bool:
    """Whether a clock is looked at."""
    return any(isinstance(it, ast.Call) and ast.unparse(it.func) in CLOCKS for it in ast.walk(node))


def passed(node: ast.AST, names: set[str]) -> bool:
    """Whether this is a time that has passed: a difference from now, or a name for one."""
    differences = (it for it in ast.walk(node) if isinstance(it, ast.BinOp) and isinstance(it.op, ast.Sub))
    named = any(isinstance(it, ast.Name) and it.id in names for it in ast.walk(node))
    return named or any(map(looks, differences))


def names_of(function: ast.AST) -> set[str]:
    """Names for times that have passed, and for lists of them."""
    found = set[str]()
    for it in ast.walk(function):
        if isinstance(it, ast.Assign) and passed(it.value, found):
            found |= {target.id for target in it.targets if isinstance(target, ast.Name)}
        if isinstance(it, ast.Call) and any(passed(one, found) for one in it.args):
            whole, _, verb = ast.unparse(it.func).rpartition(".")
            found |= {whole} if verb == "append" else set()
    return found


def bounds(function: ast.AST) -> Iterator[tuple[ast.Compare, ast.expr]]:
    """Each comparison that a test asserts, and what a time that has passed has to be below in it."""
    names = names_of(function)
    asserted = (it.test for it in ast.walk(function) if isinstance(it, ast.Assert))
    for whole in (one for it in asserted for one in ast.walk(it) if isinstance(one, ast.Compare)):
        for operator, (one, other) in zip(whole.ops, pairwise([whole.left, *whole.comparators]), strict=True):
            if isinstance(operator, ast.Lt | ast.LtE) and passed(one, names):
                yield whole, other


def hurries(code: str) -> list[str]:
    """The lines of tests that grant something less than long."""
    functions = (it for it in ast.walk(ast.parse(code)) if isinstance(it, ast.FunctionDef))
    return [
        f"{whole.lineno}: {ast.unparse(whole)}"
        for function in functions for whole, most in bounds(function)
        if not (isinstance(most, ast.Constant) and isinstance(most.value, int | float) and most.value >= LEAST_S)
    ]  # fmt: skip


def test_no_test_fails_because_a_machine_is_slow() -> None:
    files = [it for it in TESTS.rglob("*.py") if TESTS / "benchmarks" not in it.parents]
    assert {str(path): found for path in files if (found := hurries(path.read_text()))} == {}


@pytest.mark.parametrize(
    ("asserted", "is_one"),
    [
        ("time.monotonic() - begin < 3", True),
        ("0.2 <= time.perf_counter() - begin <= PATIENCE_S", True),
        ("abs(found - time.time()) < 2", True),
        ("took < 3", True),
        ("min(taken) < 0.3", True),
        ("time.monotonic() - begin < 60", False),
        ("time.monotonic() - begin >= 0.2", False),
        ("time.process_time() - begin < 3", True),
        ("other < 3", False),
    ],
)
def test_who_grants_less_than_long_is_seen(asserted: str, is_one: bool) -> None:  # noqa: FBT001 - a table's column
    before = ("begin = time.monotonic()", "took = time.monotonic() - begin", "taken.append(took)", "other = 2.0")
    body = "\n".join(f"    {it}" for it in (*before, f"assert {asserted}"))
    assert len(hurries(f"def test() -> None:\n{body}\n")) == is_one
