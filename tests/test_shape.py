"""The code's own budgets: sizes of functions, typical sizes of files, and names that say nothing."""

from __future__ import annotations

import ast
import re
import statistics
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = (
    "infra", "training", "bench", "chaos", "reports", "monitoring", "search", "serving", "loop", "proving_ground",
)  # fmt: skip
MEDIAN_FILE = 150
MAX_FUNCTION, MOST_FUNCTIONS, MEDIAN_FUNCTION = 60, 30, 10
MAX_INFRA_FUNCTION = 40
EMPTY_NAMES = {"util", "utils", "helpers", "common", "manager", "base", "misc"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def lines_of_functions(path: Path) -> dict[str, int]:
    """Name → lines of body, without the docstring: what has to be read."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            size = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            found[f"{path.relative_to(ROOT)}:{node.name}"] = size
    return found


def test_a_file_is_as_long_as_its_subject_and_most_are_short() -> None:
    sizes = [len(path.read_text().splitlines()) for path in sources(*FOLDERS, "tests")]
    assert statistics.median(sizes) <= MEDIAN_FILE


def test_functions_are_short() -> None:
    sizes = {name: size for path in sources(*FOLDERS) for name, size in lines_of_functions(path).items()}
    assert {name: size for name, size in sizes.items() if size > MAX_FUNCTION} == {}
    assert sum(size <= MOST_FUNCTIONS for size in sizes.values()) >= 0.9 * len(sizes)
    assert statistics.median(sizes.values()) <= MEDIAN_FUNCTION


def test_no_function_of_infra_is_longer_than_a_page() -> None:
    sizes = {name: size for path in sources("infra") for name, size in lines_of_functions(path).items()}
    assert {name: size for name, size in sizes.items() if size > MAX_INFRA_FUNCTION} == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(path) for path in sources(*FOLDERS, "tests") if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_no_name_says_nothing() -> None:
    assert [str(path) for path in sources(*FOLDERS, "tests") if path.stem in EMPTY_NAMES] == []


def test_nothing_prints_text_as_markup() -> None:
    """Gloo's "[…]:33" ended a report: all that prints in colour is a `bench.terminal.Terminal`."""
    own = [path.name for path in sources(*FOLDERS) if re.search(r"rich\.console import .*Console\b", path.read_text())]
    assert own == ["terminal.py"]
