"""`--json`: stdout is one JSON document and nothing else, of the shape that docs/machines.md says."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import shell
from tests.reports.faked import ProfiledCluster, case, faked, suite
from tests.reports.recovery import synthetic as chaos
from tests.reports.synthetic import Knobs, make
from tests.search import recorded as search

PAGE = (Path(__file__).parent.parent / "docs/machines.md").read_text()
LINES = {
    "bench list": "",
    "bench doctor": "--cluster fake",
    "bench plan": "--suite smoke --cluster fake --price-per-node-hour 2",
    "bench clean": "--dry-run",
    "bench prune": "--keep 1 --dry-run",
    "chaos list": "--cluster fake",
    "chaos plan": "--suite smoke --cluster fake",
    "reports compare": "scaling scaling",
    "reports trend": "--suite faked",
    "reports forecast": "kill",
    "reports check": "scaling --that throughput>=1",
    "monitoring metrics": "",
    "monitoring alerts": "",
    "monitoring advice": "scaling",
    "monitoring availability": "kill",
    "search list": "",
    "infra check": "local",
    "infra cost": "dev",
}
ROWS = {"bench plan": None, "chaos plan": None, "monitoring advice": None, "reports forecast": "sizes",
        "monitoring alerts": "alerts", "reports compare": "figures"}  # fmt: skip
"""Command → its list of rows, where it is not the last one; None: another page says what they have."""
Call = Callable[[str], tuple[int, str, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("machines") / "runs"
    for number in range(6):
        faked(root, suite(case("one", momentum=0.9), repeats=2), ProfiledCluster(seed=number))
    chaos.make(root)
    make(root, Knobs(nodes=(1, 2), steps=12, scalings=("weak",)))
    search.write(root, search.three())
    return root


@pytest.fixture
def call(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def run(line: str) -> tuple[int, str, str]:
        program, *words = line.split()
        infra = program == "infra"
        module = importlib.import_module("infra.__main__" if infra else f"{program}.cli")
        status = module.main([*words, *(() if infra else ("--runs", str(runs)))])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def documented(command: str) -> tuple[list[str], list[str]]:
    """The keys of a command's document and of its rows, as the page says."""
    line = next(it for it in PAGE.splitlines() if it.startswith("|") and f"`{command}`" in it.split("|")[1])
    keys, row = (re.findall(r"`([\w]+)`", it) for it in line.split("|")[2:4])
    return keys, row


@pytest.mark.parametrize("command", LINES)
def test_stdout_is_the_document_that_the_page_describes(command: str, call: Call) -> None:
    if command == "monitoring advice":
        call("reports scaling --no-html --json")
    status, out, _ = call(f"{command} {LINES[command]} --json")
    assert status == 0
    document = json.loads(out, parse_constant=pytest.fail)  # no NaN
    keys, row = documented(command)
    assert list(document) == ["schema", *keys]
    assert document["schema"] == f"proving-ground/{command.replace(' ', '-')}/1"
    rows = rows_of(command, document)
    assert rows is None or {name for it in rows for name in it} == set(row)


def rows_of(command: str, document: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The rows of a document; None where there are none on this page."""
    lists = [key for key, value in document.items() if isinstance(value, list) and value and isinstance(value[0], dict)]
    name = ROWS.get(command, lists[-1] if lists else None)
    found = document[name] if name else None
    assert found or command in ROWS or command in ("bench clean", "bench prune"), f"{command}: no rows to look at"
    return found


@pytest.mark.parametrize("line", ["reports scaling", "reports kill"])
def test_a_report_is_results_json(line: str, call: Call, runs: Path) -> None:
    _, out, _ = call(f"{line} --no-html --json")
    assert out == (runs / line.split()[1] / "latest" / "results.json").read_text()


@pytest.mark.parametrize("line", ["bench plan --suite smok --json", "reports nothing --json", "infra cost deb --json"])
def test_after_a_mistake_stdout_is_empty(line: str, call: Call) -> None:
    status, out, err = call(line)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1


def test_every_command_on_the_page_has_the_option() -> None:
    commands = {
        it
        for line in PAGE.splitlines()
        if line.startswith("| `")
        for it in re.findall(r"`([a-z]+ [a-z]+)`", line.split("|")[1])
    }
    assert commands >= set(LINES)
    for command in sorted(commands):
        program, word = command.split()
        module = importlib.import_module("infra.commands" if program == "infra" else f"{program}.cli")
        if program == "infra":
            with contextlib.suppress(SystemExit):
                module.run([word, "--json", "--help"])
        elif program == "reports":
            assert "json" in vars(
                importlib.import_module("reports.commands")
                .parser()
                .commands[word]
                .parse_args(["a", "b"][: 1 + (word == "compare")])
            )
        else:
            assert module.parser().commands[word].get_default("json") is False


def test_what_is_no_number_is_null() -> None:
    assert shell.plain({"a": float("nan"), "b": [float("inf"), 1.5], "c": Path("x")}) == {
        "a": None,
        "b": [None, 1.5],
        "c": "x",
    }
