"""What is expected of the alerts fits the faults that there are and the alerts that there are."""

from __future__ import annotations

from pathlib import Path

from proving_ground.bench.capabilities import (
    CAPABILITIES,
    CanAdminister,
    CanCrash,
    CanCutPower,
    CanLoseControl,
    CanTakeAway,
    CanWithhold,
)
from proving_ground.chaos import spec
from proving_ground.chaos.faults import FAULTS
from proving_ground.monitoring import rules
from proving_ground.monitoring.expected import EXPECTED, table

ELSEWHERE = (CanAdminister, CanCrash, CanCutPower, CanLoseControl, CanTakeAway, CanWithhold)
TRIED = {
    kind for kind, fault in FAULTS.items() if not any(issubclass(CAPABILITIES[it], ELSEWHERE) for it in fault.needs)
}
"""All but what only an engine can do (Kubernetes, Slurm): which alerts come there was not tried."""
README = Path(__file__).parents[2] / "monitoring" / "README.md"


def test_every_fault_has_an_alert_that_must_come() -> None:
    assert set(EXPECTED) == TRIED
    assert [kind for kind, it in EXPECTED.items() if not it.must] == []


def test_expected_alerts_exist() -> None:
    names = {alert.name for alert in rules.alerts()}
    assert {name for it in EXPECTED.values() for name in (*it.must, *it.may)} - names == set()


def test_the_suite_has_every_fault_and_a_healthy_control() -> None:
    suite = spec.load("alerts")
    assert suite.monitor
    assert {fault["kind"] for case in suite.cases for fault in case.faults} == TRIED
    assert all(case.twins for case in suite.cases)


def test_the_table_in_the_readme_is_generated() -> None:
    text = README.read_text()
    assert text.partition("<!-- expected -->\n")[2].partition("\n<!-- /expected -->")[0] == table()
