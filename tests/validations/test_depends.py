"""A table that outlived its code says so: what is recorded with a measurement, and when it is no longer true."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.capabilities import offers
from proving_ground.bench.clusters.local.cluster import LocalCluster
from proving_ground.chaos.faults import batch, pods, processes, withheld
from tests.validations import depends, tables
from tests.validations.depends import CODE, ROOT, fingerprint, has_changed, measured_by, record, words
from tests.validations.sitting import MEASURED, keep

PATHS = ("live*.py", "exact.py")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("live.py", "live_lines.py", "exact.py", "other.py"):
        (tmp_path / name).write_text(f"name = '{name}'\n")
    return tmp_path


def document(root: Path) -> dict[str, Any]:
    return {"code": [{"commit": "a1", "paths": list(PATHS), "sha256": fingerprint(PATHS, root)}]}


def test_a_table_says_by_itself_that_its_code_has_changed(root: Path) -> None:
    measured = document(root)
    (root / "other.py").write_text("not_behind = it\n")
    assert words(measured, root) == "Measured at a1. Its code is still the same."
    (root / "live_lines.py").write_text("changed = True\n")
    assert words(measured, root) == "Measured at a1. Its code has changed since."


SAYS = '"""A module."""\n\nAT = "# no comment"  # a comment\n"""What it is."""\n\n\ndef f() -> str:\n    {}return AT\n'


def test_a_fault_whose_code_is_behind_no_table_cannot_come_on_this_machine() -> None:
    files = {it.stem for it in (ROOT / "chaos/faults").glob("*.py")}
    behind = {it.stem for pattern in depends.BREAKING for it in ROOT.glob(pattern) if it.parent.name == "faults"}
    assert files == behind | set(depends.ELSEWHERE)
    assert not behind & set(depends.ELSEWHERE)
    cluster, families = LocalCluster(), (batch, pods, withheld)
    can = {fault.key: all(offers(cluster, it) for it in fault.needs) for family in families for fault in family.FAULTS}
    assert can == dict.fromkeys(can, False)
    assert all(offers(cluster, it) for fault in processes.FAULTS for it in fault.needs), "others can"


def test_comments_and_docstrings_change_nothing_that_was_measured() -> None:
    bare = depends.code_of(SAYS.format(""))
    assert bare == 'AT = "# no comment"\ndef f() -> str:\n    return AT'
    for more in ('"""Give it."""\n    ', '"""Give it,\n\n    whole."""\n\n    ', "# say why\n    "):
        assert depends.code_of(SAYS.format(more)) == bare
    for more in ('print("""Give it.""")\n    ', "del AT; "):
        assert depends.code_of(SAYS.format(more)) != bare


def test_an_import_is_the_same_on_one_line_and_on_several() -> None:
    code = "def f():\n    from a import (  # why\n        b,\n        c as d,\n    )\n    return b\n"
    assert depends.code_of(code) == "def f():\n    from a import b, c as d\n    return b"
    assert depends.code_of(code.replace("b,", "x,")) != depends.code_of(code)


@pytest.mark.parametrize("change", ["new", "gone", "moved"])
def test_files_that_come_go_or_move_are_changes(root: Path, change: str) -> None:
    measured = document(root)
    if change == "new":
        (root / "live_members.py").touch()
    else:
        (root / "exact.py").rename(root / ("live_exact.py" if change == "moved" else "gone.txt"))
    assert has_changed(measured, root)


def test_of_several_states_of_the_code_all_must_be_the_present_one(root: Path) -> None:
    measured = document(root)
    measured["code"].append({"commit": "b2", "paths": list(PATHS), "sha256": "0" * 16})
    assert words(measured, root) == "Measured at a1 to b2, with 2 states of its code. Its code has changed since."


def test_what_was_not_recorded_is_not_known() -> None:
    assert words({"command": "it"}) == "Which code this was measured with was not recorded."


def test_each_state_of_the_code_is_kept_once(tmp_path: Path) -> None:
    file, made = tmp_path / "soak.json", dict[str, Any](command="nox -s validate -- soak", cells={})
    for _ in range(2):
        keep(file, made)
    (state,) = json.loads(file.read_text())["code"]
    assert (state["paths"], state["sha256"]) == (list(CODE["soak"]), fingerprint(CODE["soak"]))
    assert not has_changed(made)
    made["code"] = [state | {"sha256": "0" * 16}]
    record(made)
    assert [it["sha256"] for it in made["code"]] == ["0" * 16, state["sha256"]]


def test_every_table_has_its_code_and_every_path_is_there() -> None:
    assert {name.removesuffix("-targets") for name in tables.TABLES} == set(CODE)
    assert [(name, path) for name, paths in CODE.items() for path in paths if not any(ROOT.glob(path))] == []


def test_whatever_the_judge_imports_is_behind_the_tables_or_decides_nothing() -> None:
    """So that the list cannot rot: a module that a verdict begins to rest on has to be named here or there."""
    judge = {file for file in imported("reports/recovery/results.py") if file.startswith("reports/recovery/")}
    assert len(judge) > 15
    assert judge - covered(depends.JUDGING) == set(depends.DECIDES_NOTHING)
    for name in ("restart", "recovery", "shootout", "trainers", "tampering", "soak", "effective"):
        assert judge - covered(CODE[name]) <= set(depends.DECIDES_NOTHING), name


def test_every_table_depends_on_the_validation_that_makes_it() -> None:
    own = {name: f"tests/validations/{name.replace('-', '_')}.py" for name in CODE}
    assert {name: it for name, it in own.items() if (ROOT / it).exists() and it not in covered(CODE[name])} == {}


def covered(patterns: tuple[str, ...]) -> set[str]:
    """The files that the patterns match."""
    return {str(file.relative_to(ROOT)) for pattern in patterns for file in ROOT.glob(pattern)}


def imported(start: str) -> set[str]:
    """A file of ours and all that it imports, directly or not."""
    found: set[str] = set()
    todo = [start]
    while todo:
        file = todo.pop()
        if file not in found and (ROOT / file).exists():
            found.add(file)
            todo += [
                f"{name.removeprefix('proving_ground.').replace('.', '/')}.py"
                for name in modules(ast.parse((ROOT / file).read_text()))
            ]
    return found


def modules(tree: ast.Module) -> Iterator[str]:
    """The names that import statements may mean a module by."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (it.name for it in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{it.name}" for it in node.names))


def test_a_measured_file_is_known_by_the_command_that_made_it() -> None:
    made = {file.stem: measured_by(json.loads(file.read_text())) for file in MEASURED.glob("*.json")}
    assert {name: by for name, by in made.items() if name in CODE and by not in CODE} == {}


def test_without_history_the_number_of_commits_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"code": [{"commit": "a1", "paths": ["noxfile.py"], "sha256": "0" * 16}]}
    monkeypatch.setattr(depends, "git", lambda *_words: None)
    assert depends.commits_since(old).endswith("Cannot tell how many commits: this clone has no history.")
    monkeypatch.setattr(depends, "git", lambda *_words: "17")
    assert depends.commits_since(old).endswith("Commits that changed it: 17.")


def test_the_line_stands_below_every_table_and_a_missing_file_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    text = tables.rendered("<!-- measured: restart -->\nold\n<!-- end -->")
    assert text.splitlines()[-2].startswith("Measured at ")
    monkeypatch.setattr(tables, "measured", lambda _name: {})
    assert "\nNot measured yet.\n" in tables.rendered("<!-- measured: restart -->\nold\n<!-- end -->")


def test_the_documents_tables_are_those_of_the_measured_values_and_of_the_code() -> None:
    stale = [str(path) for path in tables.DOCUMENTS if tables.rendered(path.read_text()) != path.read_text()]
    assert stale == [], "nox -s validate -- tables"
