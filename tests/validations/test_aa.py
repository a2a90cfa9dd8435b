"""Rounds of separate runs accumulate as decided, and each comparison says what `reports compare` would say."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.run import run as run_here
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import load_suite, suite_from
from proving_ground.reports import document
from proving_ground.reports.scaling import results
from tests.reports.faked import ProfiledCluster
from tests.validations import aa, tables
from tests.validations.__main__ import main
from tests.validations.sitting import KeptError, Sitting, load


class Faked:
    """Runs on a cluster in memory; some fail."""

    def __init__(self, noise: float = 0.001, fails: tuple[int, ...] = ()) -> None:
        self.names: list[str] = []
        self._noise, self._fails = noise, fails

    def __call__(self, runs: Path, name: str) -> RunDir:
        self.names.append(name)
        if len(self.names) in self._fails:
            raise subprocess.CalledProcessError(1, "bench")
        suite = suite_from(tomllib.loads(aa.SUITE.format(dilation=1.0)), where="t", name=name)
        cluster = ProfiledCluster(noise=self._noise, slow=aa.SUITES[name], seed=len(self.names))
        made = run_here(suite, cluster, runs)
        document.write(made, results.analyse(made).results)
        return made


def sit(tmp_path: Path, rounds: int | None, made: Faked, minutes: float = 60) -> tuple[dict[str, Any], int]:
    file = tmp_path / "aa.json"
    document = aa.decided(load(file, aa.COMMAND), rounds)
    failures = aa.sit(document, file, tmp_path / "runs", Sitting(minutes, say=lambda _: None), made)
    return document, failures


@pytest.fixture(autouse=True)
def few_earlier_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aa, "EARLIER", 5)


def test_rounds_accumulate_over_sittings_and_every_run_is_its_own(tmp_path: Path) -> None:
    made = Faked()
    first, _ = sit(tmp_path, 2, made, minutes=60)
    assert len(first["cells"]["alike"]["comparisons"]) == 2
    assert json.loads((tmp_path / "aa.json").read_text()) == first
    again, failures = sit(tmp_path, None, Faked(fails=(1,)))
    assert (again["cells"], failures) == (first["cells"], 0)  # all that was decided is done
    assert made.names[:5] == ["aa"] * 5  # to learn from
    assert sorted(made.names[5:8]) == sorted(made.names[8:]) == sorted(aa.ORDER)
    for kind in aa.KINDS:
        found = first["cells"][kind]["comparisons"]
        assert all(len(set(it["runs"])) == 2 for it in found)
        assert [it["earlier"] for it in found] == [5, 5]
        assert all(it["commit"] for it in found)
    left = {name: sum(run.suite == name for run in rundir.all_runs(tmp_path / "runs")) for name in aa.SUITES}
    assert left == {"aa": 5, "aa-slower": 2}  # older ones are gone, so that each has as many to learn from


def test_alike_is_no_alarm_and_slower_is_found(tmp_path: Path) -> None:
    document, _ = sit(tmp_path, 3, Faked())
    assert [it["called"] for it in document["cells"]["alike"]["comparisons"]] == [False] * 3
    assert [it["answer"] for it in document["cells"]["slower"]["comparisons"]] == ["worse"] * 3
    assert all(-5 < it["smallest"] < -1 for it in document["cells"]["alike"]["comparisons"])
    assert all(it["change"] == pytest.approx(-4.8, abs=0.6) for it in document["cells"]["slower"]["comparisons"])


def test_the_number_of_rounds_is_decided_before(tmp_path: Path) -> None:
    sit(tmp_path, 1, Faked())
    with pytest.raises(KeptError, match="--rounds 2: 1 were decided with the first sitting"):
        sit(tmp_path, 2, Faked())
    assert aa.decided({"cells": {}}, None)["rounds"] == aa.ROUNDS >= 100


def test_nothing_is_begun_that_does_not_fit(tmp_path: Path) -> None:
    made = Faked()
    sit(tmp_path, 1, made, minutes=0.001)
    assert made.names == []


def test_a_failed_round_is_counted_and_made_again(tmp_path: Path) -> None:
    document, failures = sit(tmp_path, 1, Faked(fails=(6,)))
    assert (document["failed"], failures, len(document["cells"]["alike"]["comparisons"])) == (1, 1, 1)


def test_failures_in_a_row_end_it(tmp_path: Path) -> None:
    document, failures = sit(tmp_path, 1, Faked(fails=tuple(range(20))))
    assert (document["failed"], failures) == (aa.FAILURES_MAX, aa.FAILURES_MAX)


def test_the_slower_suite_differs_in_dilated_time_alone(tmp_path: Path) -> None:
    one, other = (tomllib.loads(aa.SUITE.format(dilation=dilation)) for dilation in aa.SUITES.values())
    assert other["case"][0].pop("dilation") == 1.05 * one["case"][0].pop("dilation")
    assert one == other
    file = tmp_path / "aa.toml"
    file.write_text(aa.SUITE.format(dilation=1.0))
    assert load_suite(str(file)).name == "aa"


def test_the_table_counts_alarms() -> None:
    comparisons = [{"called": True, "answer": "better", "smallest": -2.0},
                   *[{"called": False, "answer": "cannot tell", "smallest": -3.0}] * 99]  # fmt: skip
    cells = {"alike": {"comparisons": comparisons}, "slower": {"comparisons": []}}
    text = tables.aa({"cells": cells, "rounds": 100, "failed": 1})
    assert "| the same | 1 | 100 | 0.0–5.4 % | ≤5 % | 99 | 3.0 % | 3.0 % |" in text
    assert "| 5 % slower | 0 | 0 | – | ≥90 % | 0 | – | – |" in text
    assert "100 rounds were decided with the first; 1 failed" in text


def test_wrong_calls_are_answered_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aa", "--rounds", "-1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
