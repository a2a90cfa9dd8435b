"""`results.json` of every version: what an older one says is read under today's names, what a newer one says is not.

`kept/results-1.json` was written by the last code of version 1, of two faults on the cluster `fake`.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from proving_ground.bench import contract, listing
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.chaos import shrink
from proving_ground.chaos.cli import main as chaos
from proving_ground.monitoring import advice, openmetrics, traces
from proving_ground.reports import document, gallery
from proving_ground.reports.comparing import pairing
from proving_ground.reports.scaling import results
from tests.chaos.conftest import JOB_OF_THREE
from tests.test_shape import FOLDERS, ROOT, sources

KEPT = json.loads((Path(__file__).parent / "kept" / "results-1.json").read_text())
FAULT = JOB_OF_THREE + '[[case.faults]]\nkind = "worker_kill"\ntarget = "n1"\n'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A chaos run of today, on a simulated cluster."""
    folder = tmp_path_factory.mktemp("runs")
    suite = folder / "own.toml"
    suite.write_text(FAULT)
    assert chaos(["--runs", str(folder), "run", "--cluster", "fake", "--suite", str(suite), "--quiet"]) == 0
    return RunDir((folder / "own" / "latest").resolve())


@pytest.fixture
def older(made: RunDir, tmp_path: Path) -> RunDir:
    """The same with the report of version 1."""
    shutil.copytree(made.path, tmp_path / "own" / made.run_id)
    run = RunDir(tmp_path / "own" / made.run_id)
    run.write("results", KEPT)
    return run


def test_a_kept_file_of_version_1_is_one_of_version_2(older: RunDir) -> None:
    found = contract.read(older)
    jsonschema.validate(found, json.loads(document.SCHEMA_FILE.read_text()))
    assert found["schema"] == contract.SCHEMA == "proving-ground/results/2"
    assert [it["command"].split()[-1] for it in found["trials"]] == ["f01", "f02"]
    assert {it["clock_error_s"] for it in found["figures"] if it["name"] in contract.RECOVERY} == {0}
    assert KEPT["schema"] == "proving-ground/results/1", "what was read is left as it was"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(KEPT, json.loads(document.SCHEMA_FILE.read_text()))


def test_what_was_called_otherwise_and_the_error_of_the_clocks_are_found() -> None:
    one = {"unit": "s", "label": "emulated", "where": {"kind": "hang"}, "n": 1, "median": 1.0, "ci95": None,
           "values": [1.0]}  # fmt: skip
    clock = {**one, "name": "clock_error", "unit": "ms", "values": [0.2, 0.5]}
    first = {**copy.deepcopy(KEPT), "figures": [{**one, "name": "detect"}, {**one, "name": "alert_delay"}, clock]}
    (detect, *others) = contract.as_newest(first, "results.json")["figures"]
    assert detect == {**one, "name": "time_to_detect", "clock_error_s": 0.0005}
    assert others == first["figures"][1:]


def test_a_file_of_today_is_read_as_it_is(made: RunDir) -> None:
    assert contract.read(made) == made.read("results")


@pytest.mark.parametrize("schema", ["proving-ground/results/3", "proving-ground/search/1", "2", 2, None])
def test_another_version_is_refused_in_one_line(older: RunDir, schema: object) -> None:
    older.write("results", {**KEPT, "schema": schema})
    with pytest.raises(RunDirError) as refused:
        contract.read(older)
    assert str(refused.value) == (
        f"{older.results}: schema {schema!r}; this version reads proving-ground/results/1 to 2: use a newer one, or "
        "make it anew with pg reports"
    )


READERS: dict[str, Callable[[RunDir], Any]] = {
    "list": lambda run: listing.headline(listing.results_of(run)[0]),
    "index": lambda run: gallery.entry(run).headline,
    "curves": lambda run: list(gallery.lines([run, run])),
    "compare": lambda run: pairing.figures_of(run, results.analyse(run)),
    "metrics": openmetrics.text,
    "traces": traces.judged,
    "advice": lambda run: list(advice.lines(run)),
    "advice for machines": advice.document,
}
"""Who reads a `results.json` that lies there; all others make it anew."""


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_reads_version_1_as_version_2(older: RunDir, reader: str) -> None:
    as_before = READERS[reader](older)
    older.write("results", contract.as_newest(KEPT, "kept"))
    assert READERS[reader](older) == as_before


def test_what_they_read_in_version_1(older: RunDir) -> None:
    assert READERS["list"](older) == "2 of 2 recovered, 0.85 s"
    assert READERS["index"](older) == "time to recovery, slowest kind 1.53 s"
    (first, *_) = KEPT["figures"]
    older.write("results", {**KEPT, "figures": [*KEPT["figures"], {**first, "name": "detect"}]})
    found = READERS["metrics"](older)
    assert 'proving_ground_time_to_recovery_seconds{case="digits"' in found
    assert 'proving_ground_time_to_detect_seconds{case="digits"' in found
    assert [it["kind"] for it in READERS["traces"](older)] == ["worker_kill", "hang"]


ODD: dict[str, tuple[dict[str, Any], str]] = {
    "a part is missing": ({"figures": None}, "figures is no list"),
    "a part is a number": ({"verdicts": 1}, "verdicts is no list"),
    "a text in it": ({"trials": ["x"]}, "trials, item 1, is no table"),
    "a field is missing": ({"figures": [{"name": "x", "unit": "s"}]}, "figures, item 1: where is missing"),
    "a field of another kind": (
        {"verdicts": [{"check": "x", "verdict": [], "where": {}}]}, "verdicts, item 1: verdict is of another kind"
    ),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_what_no_report_writes_is_refused_in_one_line(older: RunDir, odd: str) -> None:
    change, said = ODD[odd]
    older.write("results", {**contract.as_newest(KEPT, "kept"), **change})
    for reader in ("curves", "metrics", "traces", "advice", "advice for machines"):
        with pytest.raises(RunDirError) as refused:
            READERS[reader](older)
        assert str(refused.value) == (
            f"{older.results}: not as a report writes it ({said}); make it anew: pg reports {older.path}"
        )


@pytest.mark.parametrize("reader", [it for it in READERS if it not in ("list", "index", "compare")])
def test_a_reader_refuses_what_is_newer(older: RunDir, reader: str) -> None:
    older.write("results", {**KEPT, "schema": "proving-ground/results/3"})
    with pytest.raises(RunDirError, match="this version reads proving-ground/results/1 to 2"):
        READERS[reader](older)


def test_a_list_says_it_of_that_run_and_a_comparison_does_without_it(older: RunDir) -> None:
    older.write("results", {**KEPT, "schema": "proving-ground/results/3"})
    assert "this version reads proving-ground/results/1 to 2" in gallery.entry(older).why
    assert listing.listed(older).counted.startswith("schema 'proving-ground/results/3'; this version reads")
    assert READERS["compare"](older) == []


def test_a_failure_is_read_from_the_report_that_was_just_made(older: RunDir) -> None:
    assert shrink.results_of(older)["schema"] == contract.SCHEMA, "the report made it anew"
    assert older.read("results") != KEPT


def test_nobody_reads_it_past_the_contract() -> None:
    past = re.compile(r'\bread\w*\([^()]*"results"|\bresults\.read_text|"results\.json"\)\.read|"results" *, *"')
    found = {str(it.relative_to(ROOT)) for it in sources(*FOLDERS) if past.search(it.read_text())}
    assert found == {"bench/contract.py"}


@pytest.mark.parametrize("key", ["figures", "trials"])
@pytest.mark.parametrize("value", [3, None, "x", [3], [None, {"name": "clock_error", "values": ["a", None, 4]}]])
def test_what_is_no_list_of_tables_is_left_for_its_reader_to_refuse(key: str, value: object) -> None:
    found = contract.as_newest({**KEPT, key: value}, "results.json")
    assert found[key] == value


def test_the_bound_of_an_older_file_is_that_of_its_clocks() -> None:
    clock = {"name": "clock_error", "values": [0.2, 4, "x"]}
    found = contract.as_newest({**KEPT, "figures": [*KEPT["figures"], clock]}, "results.json")
    assert {it["clock_error_s"] for it in found["figures"] if it.get("name") in contract.RECOVERY} == {0.004}
