"""JUnit XML: a pass passes, a fail fails, and what cannot be told does neither."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from proving_ground.reports import junit
from proving_ground.reports.cli import main
from proving_ground.reports.recovery import results as recovery
from proving_ground.reports.scaling import results
from tests.reports.recovery import synthetic as chaos
from tests.reports.synthetic import Knobs, make


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = chaos.make(tmp_path_factory.mktemp("runs"))
    return dict(recovery.analyse(run).results)


def cases(document: dict[str, Any], *, strict: bool = False) -> dict[str, list[str]]:
    """Tag → names of the tests that have it; "passed": those without any."""
    root = ET.fromstring(junit.text(document, strict=strict))  # noqa: S314 - our own
    found: dict[str, list[str]] = {}
    for case in root.iter("testcase"):
        tags = [it.tag for it in case] or ["passed"]
        found.setdefault(tags[0], []).append(f"{case.get('classname')} {case.get('name')}")
    for suite in (root, *root.findall("testsuite")):
        own = list(suite.iter("testcase"))
        assert suite.get("tests") == str(len(own))
        for key, tag in junit.COUNTED:
            assert suite.get(key) == str(sum(it.find(tag) is not None for it in own))
    return found


def test_every_verdict_and_every_fault_is_a_test(document: dict[str, Any]) -> None:
    found = [name for names in cases(document).values() for name in names]
    assert len(found) == len(document["verdicts"]) + len(document["trials"])
    assert len(set(found)) == len(found)  # a CI system would take two of one name for one


@pytest.mark.parametrize(
    ("value", "tag", "strict"),
    [("pass", "passed", "passed"), ("fail", "failure", "failure"), ("unknown", "skipped", "error")],
)
def test_a_verdict_changed_is_seen(document: dict[str, Any], value: str, tag: str, strict: str) -> None:
    changed = copy.deepcopy(document)
    changed["verdicts"] = [{"check": "sealed", "verdict": value, "why": "so", "where": {}}]
    changed["trials"] = []
    assert list(cases(changed)) == [tag]
    assert list(cases(changed, strict=True)) == [strict]


@pytest.mark.parametrize(
    ("outcome", "peer", "tag"),
    [
        ("recovered", False, "passed"), ("wrong", False, "failure"), ("stuck", False, "failure"),
        ("unproven", False, "skipped"), ("invalid", False, "skipped"), ("stuck", True, "skipped"),
        ("new to us", False, "skipped"),
    ],
)  # fmt: skip
def test_an_outcome_changed_is_seen(document: dict[str, Any], outcome: str, tag: str, *, peer: bool) -> None:
    changed = copy.deepcopy(document)
    changed["trials"] = [{**changed["trials"][0], "outcome": outcome, "peer": peer}]
    changed["verdicts"] = []
    assert list(cases(changed)) == [tag]


def test_what_a_library_wrote_is_legal_xml(document: dict[str, Any]) -> None:
    changed = copy.deepcopy(document)
    changed["verdicts"] = [
        {"check": "completed", "verdict": "fail", "why": "<&>\x1b[31m\x00\ud800", "where": {"case": "]]>"}}
    ]
    assert list(cases(changed)["failure"])


def test_a_run_is_written_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path / "runs", Knobs(nodes=(1, 2), steps=12, scalings=("weak",), kill="t002"))
    assert main(["junit", str(run.path), "--out", str(tmp_path / "tests.xml")]) == 0
    assert capsys.readouterr().out == ""
    written = (tmp_path / "tests.xml").read_text()
    assert written == junit.text(results.analyse(run).results)
    assert "trial t002: n2.0 ended with exit status -9" in written
