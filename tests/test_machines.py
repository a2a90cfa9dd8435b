"""`--json`: stdout is one JSON document and nothing else, of the shape that docs/machines.md says."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proving_ground.__main__ import PROGRAMS
from proving_ground.bench import shell
from proving_ground.bench.clusters import POOLS
from proving_ground.infra import outputs
from proving_ground.training.device.batch import Tried
from proving_ground.training.measuring import programs
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
    "reports advise": "faked",
    "loop status": "",
    "training plan": "--ranks 2 --memory 1GiB",
    "training batch": "",
    "monitoring metrics": "",
    "monitoring alerts": "",
    "monitoring advice": "scaling",
    "monitoring availability": "kill",
    "search list": "",
    "infra check": "local",
    "infra cost": "dev",
    "infra outputs": "dev",
    "bench calibrate": "--nodes 2 --cluster fake",
}
ROWS = {"bench plan": None, "chaos plan": None, "monitoring advice": None, "reports forecast": "sizes",
        "monitoring alerts": "alerts", "reports compare": "figures", "loop status": None,
        "infra outputs": None}  # fmt: skip
"""Command → its list of rows, where it is not the last one; None: another page says what they have."""
MEASURING = tuple(programs.PROGRAMS)
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
        alone = program in ("infra", "training")
        module = importlib.import_module(
            f"proving_ground.{program}.__main__" if alone else f"proving_ground.{program}.cli"
        )
        status = module.main([*words, *(() if alone else ("--runs", str(runs)))])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def made_outputs() -> outputs.StackOutputs:
    """What a stack exports."""
    more = {"claim": "c", "rendezvous_port": 1, "pools": [], "prometheus": "p", "loki": "l", "kubeconfig": "k"}
    names = {"namespace": "n", "service_account": "s", "headless_service": "h", "environment": "dev"}
    return outputs.read({"schema": 1, **more, **names})


def documented(command: str) -> tuple[list[str], list[str]]:
    """The keys of a command's document and of its rows, as the page says."""
    line = next(it for it in PAGE.splitlines() if it.startswith("|") and f"`{command}`" in it.split("|")[1])
    keys, row = (re.findall(r"`([\w]+)`", it) for it in line.split("|")[2:4])
    return keys, row


@pytest.mark.parametrize("command", LINES)
def test_stdout_is_the_document_that_the_page_describes(
    command: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command in ("monitoring advice", "reports advise"):
        call("reports scaling --no-html --json")
    if command == "infra outputs":
        monkeypatch.setattr("proving_ground.infra.outputs.load", lambda _: made_outputs())
    if command == "bench calibrate":
        monkeypatch.setattr("proving_ground.bench.commands.measure_host", lambda *_: {"busbw_mbps": {"2": 900.0}})
    if command == "training batch":  # its limits are a process' own
        monkeypatch.setattr("proving_ground.training.device.fit.stay_within_cgroup", lambda: None)
        monkeypatch.setattr(
            "proving_ground.training.device.batch.attempt",
            lambda _config, _task, samples, _device: Tried(samples, 1.0, samples),
        )
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


@pytest.mark.parametrize("engine", POOLS)
def test_the_options_of_a_cluster_elsewhere_are_a_document_too(engine: str, call: Call) -> None:
    status, out, _ = call(f"bench doctor --cluster {engine}: --json")
    document = json.loads(out)
    keys, _ = documented("bench doctor")
    assert (status, list(document), document["abilities"]) == (0, ["schema", *keys], [])
    assert [it["name"] for it in document["options"]] == [it.name for it in dataclasses.fields(POOLS[engine][0])]
    for it in document["options"]:
        assert list(it) == ["name", "meaning", "default"]
        assert it["meaning"]


@pytest.mark.parametrize("line", ["reports scaling", "reports kill"])
def test_a_report_is_results_json(line: str, call: Call, runs: Path) -> None:
    _, out, _ = call(f"{line} --no-html --json")
    assert out == (runs / line.split()[1] / "latest" / "results.json").read_text()


@pytest.mark.parametrize("line", ["bench plan --suite smok --json", "reports nothing --json", "infra cost deb --json"])
def test_after_a_mistake_stdout_is_empty(line: str, call: Call) -> None:
    status, out, err = call(line)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1


NO_TABLE = {
    "bench run": "results.json", "bench logs": "an object a line",
    "chaos run": "results.json", "chaos replay": "results.json", "chaos shrink": "what it found, in a sentence",
    "reports index": "writes a page", "reports junit": "is XML", "reports predict": "of the harness",
    "reports undecided": "of the harness",
    "monitoring export": "answers scrapes", "monitoring up": "goes on until it is ended",
    "monitoring beside": "of the harness", "monitoring check": "what promtool says", "monitoring live": "a moving page",
    "monitoring ship-logs": "sends", "monitoring track": "sends", "monitoring openmetrics": "is OpenMetrics",
    "monitoring dashboards": "writes files", "monitoring trace": "writes a file",
    "search run": "results", "search resume": "results", "search report": "results",
    "serving register": "registers", "serving check": "its status is the answer", "serving serve": "until Ctrl-C",
    "loop run": "what its steps print", "loop plan": "commands", "loop down": "does", "loop keep": "of the loop itself",
    "infra prices": "writes a file", "infra job": "the same", "infra preview": "what the engine says",
    "infra health": "its status is the answer",
    "infra up": "does", "infra down": "does", "infra mend": "does", "infra reap": "does", "infra retry": "does",
    "infra backup": "does", "infra restore": "does", "infra image": "makes one", "infra pin": "writes files",
    "infra chart": "writes files",
    "training run": "trains", "training replay": "trains", "training reference": "trains", "training launch": "trains",
    "training live": "trains", "training coordinator": "serves", "training lighthouse": "serves",
    "training wrap": "starts a trainer", "training profile": "writes a file", "training data": "writes files",
    **dict.fromkeys([f"training {it}" for it in MEASURING], "events, one JSON object a line"),
}  # fmt: skip
"""Commands without a table of their own → what they do instead; some have `--json` for that."""


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Every command of every program."""
    found: dict[str, argparse.ArgumentParser] = {}
    for program in PROGRAMS:
        place = {
            "reports": "proving_ground.reports.arguments",
            "infra": "proving_ground.infra.commands",
            "training": "proving_ground.training.__main__",
        }
        module = importlib.import_module(place.get(program, f"proving_ground.{program}.cli"))
        made = module._parser() if program == "infra" else module.parser()
        (commands,) = (it.choices for it in made._actions if isinstance(it, argparse._SubParsersAction))
        found |= {f"{program} {word}": parser for word, parser in commands.items()}
    return found


def test_every_command_prints_one_document_or_says_why_it_has_no_table() -> None:
    found = parsers()
    assert set(NO_TABLE) <= set(found), "a command that is gone"
    able = {name for name, parser in found.items() if "--json" in parser._option_string_actions}
    assert set(found) - able - set(NO_TABLE) == set()
    on_the_page = {
        it
        for line in PAGE.splitlines()
        if line.startswith("| `")
        for it in re.findall(r"`([a-z]+ [a-z]+)`", line.split("|")[1])
    }
    assert able - set(NO_TABLE) == on_the_page
    assert on_the_page - set(LINES) == {"serving load"}, "tests/serving/test_figures.py"


def test_what_is_no_number_is_null() -> None:
    assert shell.plain({"a": float("nan"), "b": [float("inf"), 1.5], "c": Path("x")}) == {
        "a": None,
        "b": [None, 1.5],
        "c": "x",
    }
