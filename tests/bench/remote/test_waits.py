"""What pods wait for, as Kubernetes says it. `tests/engines/test_kubernetes_waits.py` has a real one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from proving_ground.bench.clusters.remote.absent import Absent
from proving_ground.bench.clusters.remote.waits import INDEX, reasons, refuse_hopeless, telling, waits_for
from proving_ground.bench.protocols import ClusterError
from proving_ground.bench.spec import SpecError

QUOTA = 'Error creating: pods "pg-1-0-{}" is forbidden: exceeded quota: none'


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "pg-1-0-abcde", "annotations": {INDEX: "0"}}, "status": status}


def container(phase: str = "Pending", **state: Any) -> dict[str, Any]:
    return pod(phase=phase, containerStatuses=[{"name": "trainer", "image": "one", "state": state}])


def event(message: str, kind: str = "Job", second: int = 1, reason: str = "FailedCreate") -> dict[str, Any]:
    about = {"kind": kind, "name": "pg-1" if kind == "Job" else "pg-1-0-abcde"}
    at = f"2026-01-01T00:00:{second:02}Z"
    normal = reason in ("Pulling", "Scheduled")
    return {
        "involvedObject": about, "reason": reason, "message": message, "type": "Normal" if normal else "Warning",
        "lastTimestamp": at, "metadata": {},
    }  # fmt: skip


def test_a_pod_says_itself_why_it_does_not_run() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes\n fit"}
    assert waits_for(pod(phase="Pending", conditions=[unscheduled])) == "Unschedulable: 0/3 nodes fit"
    assert waits_for(container(waiting={"reason": "ContainerCreating"})) == ""
    assert waits_for(container(waiting={"reason": "ErrImagePull", "message": "x" * 900}))[-1] == "…"
    assert waits_for(pod(phase="Pending")) == ""
    going = pod(conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "Taint", "message": "NoExecute"}])
    going["metadata"]["deletionTimestamp"] = "then"
    assert waits_for(going) == "Terminating since then: Taint: NoExecute"


def test_of_a_gang_the_pod_that_the_others_wait_for_is_told() -> None:
    others = "Unschedulable: minCount (2) cannot be satisfied: 0 scheduled, 1 remaining"
    assert telling(["", others, "Unschedulable: taints"]) == "Unschedulable: taints"
    assert telling(["", others]) == others
    assert telling([""]) == telling([]) == ""


def test_what_no_time_mends_is_not_waited_for() -> None:
    with pytest.raises(SpecError, match="image one: ImagePullBackOff: no such"):
        refuse_hopeless(container(waiting={"reason": "ImagePullBackOff", "message": "no such"}))
    with pytest.raises(SpecError, match="the pod's Python does not start: StartError: python0"):
        refuse_hopeless(container(terminated={"reason": "StartError", "exitCode": 128, "message": "python0"}))
    with pytest.raises(ClusterError, match="ended before all of them ran"):
        refuse_hopeless(container(terminated={"reason": "Completed", "exitCode": 0}))
    killed = container(terminated={"reason": "OOMKilled", "exitCode": 137})
    killed["spec"] = {"containers": [{"name": "trainer", "resources": {"limits": {"memory": "20Mi"}}}]}
    with pytest.raises(SpecError, match=r"a pod does not start: OOMKilled: exit status 137 \(its memory limit is 20Mi"):
        refuse_hopeless(killed)


def test_a_job_that_can_make_no_pod_says_why_the_same_at_each_try() -> None:
    first, later = (event(QUOTA.format(it), second=at) for at, it in enumerate(("abcde", "fghij")))
    later["message"] = f"(combined from similar events): {later['message']}"
    said = 'FailedCreate: Error creating: pods "pg-1-0" is forbidden: exceeded quota: none'
    assert reasons([], 1, lambda: [first]) == reasons([], 1, lambda: [later, first]) == {0: said}


def test_of_a_pod_that_is_creating_its_newest_warning_counts_and_not_the_jobs() -> None:
    creating = container(waiting={"reason": "ContainerCreating"})
    told = [event("no room"), event("pulling", "Pod", 3, "Pulling"), event("no disk", "Pod", 2, "FailedMount")]
    assert reasons([creating], 1, lambda: told) == {0: "Pulling: pulling"}
    assert reasons([creating], 1, lambda: told[::2]) == {0: "FailedMount: no disk"}
    assert reasons([creating], 1, lambda: told[:1]) == {0: ""}


def test_without_any_word_since_it_is_how_the_pod_before_ended() -> None:
    killed = container("Failed", terminated={"reason": "OOMKilled", "exitCode": 137})
    assert reasons([killed], 1, list) == {0: "OOMKilled: exit status 137"}
    assert reasons([pod(phase="Failed", reason="Evicted", message="no disk")], 1, list) == {0: "Evicted: no disk"}
    assert reasons([killed], 1, lambda: [event("no room")]) == {0: "FailedCreate: no room"}


def test_pods_that_run_wait_for_nothing_and_nobody_is_asked() -> None:
    assert reasons([pod(phase="Running")], 1, lambda: pytest.fail("asked")) == {}


class Engine:
    """An engine that says why nodes wait, or cannot be asked."""

    wait_s = 60.0

    def __init__(self) -> None:
        self.says: Mapping[str, str] | None = None

    def waits(self) -> Mapping[str, str]:
        if self.says is None:
            raise ClusterError("away")
        return self.says


def looked(absent: Absent, away: Mapping[str, float]) -> None:
    """Ask, and take in the answer."""
    for _ in range(20):
        absent.look(away)
        time.sleep(0.005)


def test_a_reason_is_told_once_and_again_when_it_has_changed_or_the_node_was_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proving_ground.bench.clusters.remote.absent.LOOK_S", 0.0)
    told: list[tuple[list[str], str]] = []
    engine = Engine()
    absent = Absent(engine, lambda nodes, why: told.append((list(nodes), why)))
    looked(absent, {"n2": 9.0})
    assert told == []
    engine.says = {"n1": "is not away", "n2": "quota"}
    looked(absent, {"n2": 1.0})
    assert told == []  # a connection that is just down
    for away in ({"n2": 9.0}, {}, {"n2": 9.0}):
        looked(absent, away)
    engine.says = {"n2": "taint"}
    looked(absent, {"n2": 9.0})
    assert told == [(["n2"], "quota"), (["n2"], "quota"), (["n2"], "taint")]
    engine.says = {"n1": "no room", "n2": "taint", "n3": "no room"}
    looked(absent, dict.fromkeys(("n1", "n2", "n3"), 9.0))
    assert told[3:] == [(["n1", "n3"], "no room")]  # together
    assert absent.overdue({"n2": 60.0}) == ""
    assert absent.overdue({"n2": 61.0}) == "n2 has not come back for 1 min: taint; wait_min= allows for more"
    assert "does not say why" in absent.overdue({"n4": 61.0})
