"""From a lost pod to the first step of the one in its place, by what Kubernetes, harness and trainer recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reports.recovery import replaced, results, waterfall
from reports.recovery.results import Analysis
from tests.reports.recovery.synthetic import Fault, Knobs, Record, make
from tests.reports.rewritten import rewrite

FAULT = Fault("f01", "node_kill", 30, "n2", hold_s=0.0)
ERROR_S = 0.6
SINCE = {"Scheduled": 0.2, "Pulled": 0.3, "Started": 0.35}
BACK_S = 0.4


def engine(records: list[Record], *, same: bool = False, late_s: float = 0.0) -> list[Record]:
    """With what Kubernetes and the harness told of the pod that took n2's place."""
    (begin,) = [it for it in records if it["event"] == "fault_begin"]
    t = begin["inject_t"]
    of_run: Record = {"source": "harness", "node": "n2"}
    told = [
        {**of_run, "event": "engine_event", "reason": it, "at_t": t + s + late_s, "error_s": ERROR_S, "t": t + 9}
        for it, s in [("Scheduled", -20.0), *SINCE.items(), ("Scheduled", 5.0)]  # of its life before, and of the next
    ]
    other = {**told[1], "node": "n3"}
    return [*records, other, *told, {**of_run, "event": "agent_back", "same": same, "t": t + BACK_S}]


def analysed(folder: Path, change: Callable[[list[Record]], list[Record]]) -> Analysis:
    return results.analyse(rewrite(make(folder, Knobs(faults=(FAULT,))), change))


def rows(analysis: Analysis) -> list[dict[str, Any]]:
    return [row for trial in analysis.trials for row in trial.get("replaced", [])]


def test_each_stage_is_told_and_they_add_up_to_the_first_step(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, engine)
    (found,) = rows(analysis)
    moments = found["moments"]
    assert (found["node"], found["error_s"]) == ("n2", ERROR_S)
    assert {name: moments[name] for name in ("scheduled", "image", "started", "back")} == pytest.approx(
        {"scheduled": 0.2, "image": 0.3, "started": 0.35, "back": BACK_S}
    )
    assert list(moments.values()) == sorted(moments.values())
    stages = replaced.parts(found)
    assert [name for name, _ in stages] == list(replaced.STAGES.values())
    assert sum(seconds for _, seconds in stages) == pytest.approx(moments["first_step"])
    (one,) = analysis.incidents
    assert moments["joined"] == pytest.approx((one.moments["state_loaded"] or 0) - one.inject_t, abs=0.2)
    chart = waterfall.replacements(analysis)
    assert chart
    assert "1 pod" in chart.sentence
    assert f"right to {ERROR_S} s" in chart.sentence


@pytest.mark.parametrize(
    "change",
    [
        lambda records: records,  # no engine that tells
        lambda records: engine(records, same=True),  # a connection that was down for a while
        lambda records: engine(records, late_s=60.0),  # another pod's
    ],
)
def test_where_no_other_pod_came_there_is_nothing_to_show(tmp_path: Path, change: Callable[..., Any]) -> None:
    analysis = analysed(tmp_path, change)
    assert rows(analysis) == []
    assert waterfall.replacements(analysis) is None
