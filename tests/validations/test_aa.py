"""Comparisons accumulate, and each says what `reports compare` would say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.clusters.fake import FakeCluster
from bench.run import TrialFailed, run
from tests.validations import aa, tables
from tests.validations.__main__ import main
from tests.validations.sitting import Sitting, load


def sit(tmp_path: Path, comparisons: int, minutes: float = 60) -> tuple[dict[str, Any], int]:
    options = aa.parser().parse_args(
        [
            "--comparisons",
            str(comparisons),
            "--repeats",
            "3",
            "--out",
            str(tmp_path / "aa.json"),
            "--runs",
            str(tmp_path),
        ]
    )
    document = load(options.out, aa.COMMAND)
    failures = aa.sit(["paced", "real"], document, options, Sitting(minutes, say=lambda _: None), FakeCluster())
    return document, failures


def test_comparisons_accumulate_in_turn(tmp_path: Path) -> None:
    sit(tmp_path, 1)
    document, failures = sit(tmp_path, 2)
    assert failures == 0
    assert json.loads((tmp_path / "aa.json").read_text()) == document
    for kind in ("paced", "real"):
        found = document["cells"][kind]["comparisons"]
        assert len(found) == 2
        assert len({it["run"] for it in found}) == 2
        assert [len(values) for values in found[0]["values"].values()] == [3, 3]
        assert not any(it["called"] for it in found)


def test_nothing_is_begun_that_does_not_fit(tmp_path: Path) -> None:
    document, _ = sit(tmp_path, 1, minutes=0.001)
    assert document["cells"]["paced"]["comparisons"] == []


def test_the_other_side_is_slower_by_dilated_time_alone() -> None:
    before, after = aa.suite_of("paced-slower", 3, 1).cases
    assert after == replace(before, name="after", dilation=1.05)
    before, after = aa.suite_of("paced", 3, 1).cases
    assert after == replace(before, name="after")


def test_a_slower_side_is_called_worse(tmp_path: Path) -> None:
    suite = aa.suite_of("real", 4, 1)
    before, after = suite.cases
    slower = replace(after, link_mbps=(before.link_mbps or 0) / 20)  # the simulated cluster knows no dilation
    found = aa.compared(run(replace(suite, cases=(before, slower)), FakeCluster(), tmp_path))
    assert found["called"]
    assert found["answer"] == "worse"
    assert found["change"] < -1


def test_failed_runs_are_told_and_end_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise TrialFailed("n1 died")

    monkeypatch.setattr(aa, "run", fail)
    document, failures = sit(tmp_path, 1)
    assert failures == len(aa.KINDS) + 1
    assert document["cells"]["real"]["comparisons"] == []


def test_the_table_counts_alarms() -> None:
    comparisons = [{"called": True}, {"called": False}]
    cells = {
        "paced": {"slowdown": 1.0, "what": "itself", "comparisons": comparisons},
        "paced-slower": {"slowdown": 1.05, "what": "slower", "comparisons": comparisons},
    }
    text = tables.aa({"cells": cells})
    assert "| paced | itself | 1 | 2 | false alarms, asked ≤5 % |" in text
    assert "| paced-slower | slower | 1 | 2 | found, asked ≥90 % |" in text


def test_wrong_calls_are_answered_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aa", "--repeats", "1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
