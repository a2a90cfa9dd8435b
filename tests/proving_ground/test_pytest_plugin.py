"""The fixture `scaling`: a test passes only when what it asks is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reports.synthetic import Knobs, make

pytest_plugins = ("pytester",)

ROOT = Path(__file__).parent.parent.parent
TEST = """
RUNS = []

def test_shown(scaling):
    RUNS.append(scaling("smoke", cluster="fake"))
    scaling.holds(RUNS[0], "efficiency{nodes=2} >= 0.5", "throughput >= 1")

def test_wrong(scaling):
    scaling.holds(RUNS[0], "efficiency{nodes=2} >= 0.5", "efficiency{nodes=2} >= 1.5")

def test_not_measured(scaling):
    scaling.holds(RUNS[0], "resume <= 1")
"""
BASELINE = """
import proving_ground
def test_not_worse(scaling):
    scaling.not_worse(proving_ground.open({after!r}), {before!r})
"""


@pytest.fixture
def ran(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # whether it is installed or not, it is loaded once
    return pytester


def outcome(ran: pytest.Pytester, text: str, *words: str) -> tuple[dict[str, int], str]:
    ran.makepyfile(text)
    done = ran.runpytest_subprocess("-p", "proving_ground.pytest_plugin", "-p", "no:cacheprovider", *words)
    return done.parseoutcomes(), "\n".join(done.outlines)


def test_a_constraint_that_is_not_shown_to_hold_fails(ran: pytest.Pytester) -> None:
    found, said = outcome(ran, TEST, "--scaling-runs", "kept")
    assert found == {"passed": 1, "failed": 2}, said
    assert "fail: efficiency{nodes=2} >= 1.5: " in said
    assert "unknown: resume <= 1: cannot tell: not measured" in said
    assert (ran.path / "kept/smoke/latest/plan.json").exists()


def test_a_slower_run_fails_and_one_that_cannot_be_told_warns(ran: pytest.Pytester, tmp_path: Path) -> None:
    before = make(tmp_path / "before", Knobs(nodes=(1, 2), steps=12, scalings=("weak",)))
    slower = make(tmp_path / "slower", Knobs(nodes=(1, 2), steps=12, scalings=("weak",), compute_s=0.3))
    again = make(tmp_path / "again", Knobs(nodes=(1, 2), steps=12, scalings=("weak",), seed=8))
    text = BASELINE.format(before=str(before.path), after=str(slower.path))
    found, said = outcome(ran, text)
    assert found == {"failed": 1}, said
    assert "worse: throughput" in said
    found, said = outcome(ran, BASELINE.format(before=str(before.path), after=str(again.path)))
    assert found == {"passed": 1, "warnings": 1}, said
    assert "CannotTellWarning: cannot tell" in said
