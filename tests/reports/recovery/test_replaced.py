"""From a lost node to the first step of what came in its place, by what engine, harness and trainer recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from proving_ground.reports.recovery import page, replaced, results, waterfall
from proving_ground.reports.recovery.results import Analysis
from tests.reports.recovery.synthetic import Fault, Knobs, Record, make
from tests.reports.rewritten import rewrite

FAULT = Fault("f01", "node_kill", 30, "n2", hold_s=0.0)
ERROR_S = 0.6
SINCE = {"Scheduled": 0.2, "Pulled": 0.3, "Started": 0.35}
BACK_S = 0.4
OF_RUN: Record = {"source": "harness"}


def engine(records: list[Record], *, same: bool = False, late_s: float = 0.0) -> list[Record]:
    """With what Kubernetes and the harness told of the pod that took n2's place."""
    t, of_node = injected(records), {**OF_RUN, "node": "n2"}
    told = [
        {**of_node, "event": "engine_event", "reason": it, "at_t": t + s + late_s, "error_s": ERROR_S, "t": t + 9}
        for it, s in [("Scheduled", -20.0), *SINCE.items(), ("Scheduled", 5.0)]  # of its life before, and of the next
    ]
    other = {**told[1], "node": "n3"}
    return [*records, other, *told, {**of_node, "event": "agent_back", "same": same, "t": t + BACK_S}]


def injected(records: list[Record]) -> float:
    (begin,) = [it for it in records if it["event"] == "fault_begin"]
    return float(begin["inject_t"])


REQUEUED = (("PENDING", "BeginTime", 0.1), ("PENDING", "Resources", 0.15), ("RUNNING", "None", 0.3))
EARLIER = (("RUNNING", "None", -30.0), ("PENDING", "BeginTime", -20.0), ("RUNNING", "None", -12.0))
LATER = (("PENDING", "BeginTime", 5.0), ("RUNNING", "None", 6.0))


def slurm(
    records: list[Record],
    told: Sequence[tuple[str, str, float]] = (*EARLIER, *REQUEUED, *LATER),
    about: str = "Job/7",
    node: str = "",
) -> list[Record]:
    """With what Slurm told of the job of all nodes, which was put into the queue again, or of an element of its own."""
    t = injected(records)
    said = [
        {
            **OF_RUN, "event": "engine_event", "about": about, "node": node, "reason": state, "message": why,
            "at_t": t + s, "error_s": 0.05, "t": t + 9,
        }
        for state, why, s in told
    ]  # fmt: skip
    machine = {**said[0], "about": "Node/e2", "node": "n2", "reason": "allocated", "at_t": t + 0.2}
    return [*records, *said, machine, {**OF_RUN, "node": "n2", "event": "agent_back", "same": False, "t": t + BACK_S}]


def analysed(folder: Path, change: Callable[[list[Record]], list[Record]]) -> Analysis:
    return results.analyse(rewrite(make(folder, Knobs(faults=(FAULT,))), change))


def rows(analysis: Analysis) -> list[dict[str, Any]]:
    return [row for trial in analysis.trials for row in trial.get("replaced", [])]


def test_each_stage_is_told_and_they_add_up_to_the_first_step(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, engine)
    (found,) = rows(analysis)
    moments = found["moments"]
    assert (found["node"], found["engine"], found["error_s"]) == ("n2", "kubernetes", ERROR_S)
    assert {name: moments[name] for name in ("scheduled", "image", "started", "back")} == pytest.approx(
        {"scheduled": 0.2, "image": 0.3, "started": 0.35, "back": BACK_S}
    )
    assert list(moments.values()) == sorted(moments.values())
    stages = replaced.parts(found)
    assert [name for name, _ in stages] == list(replaced.ENGINES["kubernetes"].stages.values())
    assert sum(seconds for _, seconds in stages) == pytest.approx(moments["first_step"])
    (one,) = analysis.incidents
    assert moments["joined"] == pytest.approx((one.moments["state_loaded"] or 0) - one.inject_t, abs=0.2)
    chart = waterfall.replacements(analysis)
    assert chart
    assert "1 pod" in chart.sentence
    assert f"right to {ERROR_S} s" in chart.sentence


def test_of_a_job_that_slurm_begins_again_the_queue_is_a_stage_and_nothing_is_a_pod(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, slurm)
    (found,) = rows(analysis)
    moments = found["moments"]
    assert (found["node"], found["engine"], found["error_s"]) == ("n2", "slurm", 0.05)
    assert {name: moments[name] for name in ("queued", "running", "back")} == pytest.approx(
        {"queued": 0.1, "running": 0.3, "back": BACK_S}
    )
    stages = dict(replaced.parts(found))
    assert list(stages) == list(replaced.ENGINES["slurm"].stages.values())
    assert stages["in the queue"] == pytest.approx(0.2)
    assert sum(stages.values()) == pytest.approx(moments["first_step"])
    chart = waterfall.replacements(analysis)
    assert chart
    assert "1 node, medians" in chart.sentence
    assert "right to 0.1 s" in chart.sentence
    assert [stage for _, stage in waterfall.stage_legend(analysis)] == list(stages)
    shown = page.html(analysis)
    assert "What giving nodes again takes" in shown
    assert "in the queue" in shown
    assert "pod" not in chart.sentence + chart.wide


def test_an_element_of_its_own_is_its_node_s_alone(tmp_path: Path) -> None:
    (found,) = rows(analysed(tmp_path / "own", lambda records: slurm(records, about="Job/7_2", node="n2")))
    assert found["moments"]["running"] == pytest.approx(0.3)
    assert rows(analysed(tmp_path / "other", lambda records: slurm(records, about="Job/7_3", node="n3"))) == []


@pytest.mark.parametrize(
    ("told", "moments"),
    [
        (EARLIER, {}),  # of an earlier requeue alone
        ((*EARLIER, *LATER), {}),  # nor of a later one
        (REQUEUED[:2], {}),  # it never ran again
        ((*EARLIER, *REQUEUED[2:]), {"running": 0.3}),  # a queue that was too short to be seen
    ],
)
def test_a_moment_of_another_requeue_is_none_of_this_one_s(
    tmp_path: Path, told: Sequence[tuple[str, str, float]], moments: dict[str, float]
) -> None:
    found = rows(analysed(tmp_path, lambda records: slurm(records, told)))
    known = [{name: at for name, at in it["moments"].items() if name in ("queued", "running")} for it in found]
    assert known == ([pytest.approx(moments)] if moments else [])


def test_a_row_of_an_older_run_is_of_pods() -> None:
    older = {"node": "n2", "moments": {"gone": 0.1, "scheduled": 0.3, "back": 0.5}, "error_s": 0.6}
    assert replaced.parts(older) == [("going", 0.1), ("waiting for another", pytest.approx(0.2))]


def test_no_two_stages_of_an_engine_have_one_colour_and_a_stage_has_the_same_everywhere() -> None:
    for by in replaced.ENGINES.values():
        assert len({waterfall.ROLE[it] for it in by.stages.values()}) == len(by.stages)
        assert by.needs in by.told


@pytest.mark.parametrize(
    "change",
    [
        lambda records: records,  # no engine that tells
        lambda records: engine(records, same=True),  # a connection that was down for a while
        lambda records: engine(records, late_s=60.0),  # another pod's
    ],
)
def test_where_no_other_node_came_there_is_nothing_to_show(tmp_path: Path, change: Callable[..., Any]) -> None:
    analysis = analysed(tmp_path, change)
    assert rows(analysis) == []
    assert waterfall.replacements(analysis) is None
    assert waterfall.stage_legend(analysis) == []
