"""Kills and hangs on real nodes: what ends, what stays, and that an injector without effect is found out."""

from __future__ import annotations

import time
from typing import Any

import pytest

from proving_ground.bench.clusters.local.clean import exists
from proving_ground.bench.protocols import ClusterError
from proving_ground.chaos.faults import FAULTS, processes
from proving_ground.chaos.faults import fault as fault_module
from proving_ground.chaos.faults.fault import GONE_S
from tests.chaos.conftest import COORDINATOR, NODES, WORKERS, Idle, Job, works

BOTH = ["plain_job", pytest.param("job", marks=pytest.mark.root)]


@pytest.fixture(params=BOTH)
def any_job(request: pytest.FixtureRequest) -> Job:
    made: Job = request.getfixturevalue(request.param)
    return made


def hosts(evidence: list[dict[str, int]]) -> list[int]:
    return [it["host_pid"] for it in evidence]


def test_worker_kill_ends_one_worker_and_nothing_else(any_job: Job) -> None:
    fault, scene = FAULTS["worker_kill"], any_job.injection("worker_kill", "n2")
    begin = fault.inject(scene)
    assert works(fault, scene, begin)
    assert [(it["node"], it["pid"]) for it in begin["killed"]] == [("n2", any_job.pids("n2")[0])]
    assert not exists(hosts(begin["killed"])[0])
    assert len(any_job.cluster.processes("n2")) == 1, "its launcher lives"
    assert fault.heal(scene) == {}
    assert any_job.talk("n1", "n3") == (True, True)


class Far:
    """The same cluster where an order to a node takes a while, and the node says when it was carried out."""

    ON_ITS_WAY_S = 0.2

    def __init__(self, cluster: Any) -> None:
        self._cluster, self.struck = cluster, dict[str, float]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def kill(self, node: str, *what: Any) -> Any:
        time.sleep(self.ON_ITS_WAY_S)
        self.struck[node] = self._cluster.now()
        return self._cluster.kill(node, *what)

    def struck_t(self, node: str) -> float:
        return self.struck[node]


def test_a_fault_is_dated_by_the_nodes_where_orders_travel(plain_job: Job) -> None:
    far = Far(plain_job.cluster)
    before = far.now()
    begin = FAULTS["all_nodes"].inject(plain_job.injection("all_nodes", cluster=far))
    assert begin["t"] == min(far.struck.values())
    assert begin["t"] - before >= Far.ON_ITS_WAY_S


def test_agent_kill_leaves_an_orphan_that_is_told_and_ends_with_the_node(any_job: Job) -> None:
    fault, scene = FAULTS["agent_kill"], any_job.injection("agent_kill", "n2")
    begin = fault.inject(scene)
    assert works(fault, scene, begin)
    assert [it["pid"] for it in begin["orphans"]] == any_job.pids("n2")
    ended_ones = list(any_job.cluster.exits())
    while not ended_ones:  # it is gone before its agent has told so
        any_job.cluster.sleep(0.01)
        ended_ones += any_job.cluster.exits()
    (ended,) = ended_ones
    assert (ended.node, ended.slot, ended.code) == ("n2", 0, -9)
    assert any_job.talk("n1", "n2") == (True, True), "the orphan goes on"
    any_job.cluster.stop(0)
    assert any_job.cluster.processes("n2") == []
    assert not exists(hosts(begin["orphans"])[0])


def test_node_kill_takes_all_of_a_node_which_can_be_started_again(any_job: Job) -> None:
    fault, scene = FAULTS["node_kill"], any_job.injection("node_kill", "n2")
    begin = fault.inject(scene)
    assert works(fault, scene, begin)
    assert len(begin["killed"]) == 2
    assert not any(exists(pid) for pid in hosts(begin["killed"]))
    assert any_job.cluster.processes("n2") == []
    assert any_job.talk("n1", "n2") == (False, False)
    any_job.start("n2")
    assert any_job.talk("n1", "n2") == (True, True)


def test_all_nodes_and_the_coordinator_stays(any_job: Job) -> None:
    fault, scene = FAULTS["all_nodes"], any_job.injection("all_nodes")
    begin = fault.inject(scene)
    assert works(fault, scene, begin)
    assert [len(any_job.cluster.processes(node)) for node in NODES] == [0, 0, 0, 2]
    any_job.start(*WORKERS)


def test_coordinator_kill(any_job: Job) -> None:
    fault, scene = FAULTS["coordinator_kill"], any_job.injection("coordinator_kill")
    begin = fault.inject(scene)
    assert works(fault, scene, begin)
    assert [it["node"] for it in begin["killed"]] == [COORDINATOR]
    assert [len(any_job.cluster.processes(node)) for node in WORKERS] == [2, 2, 2]


def test_preemption_gives_notice_first(any_job: Job) -> None:
    fault, scene = FAULTS["preemption"], any_job.injection("preemption", "n2", notice_s=1)
    begin = fault.inject(scene)
    assert works(fault, scene, begin)
    assert begin["cut_t"] - begin["t"] >= 1
    assert "notice" in any_job.said("n2")
    assert begin["ended_in_time"] == [], "this launcher ignores it"
    assert [it["pid"] for it in begin["killed"]][1:] == any_job.pids("n2"), "its worker goes with the cut"
    assert any_job.cluster.processes("n2") == []


def test_hang_stops_a_worker_until_healed(any_job: Job) -> None:
    fault, scene = FAULTS["hang"], any_job.injection("hang", "n2")
    begin = fault.inject(scene)
    assert [it["state"] for it in begin["stopped"]] == ["T"]
    assert any_job.talk("n1", "n2") == (False, False)
    end = fault.heal(scene)
    assert works(fault, scene, begin, end) is True
    assert any_job.talk("n1", "n2") == (True, True)
    assert fault.heal(scene)["was"] == []


def test_the_last_signal_is_never_before_the_first(plain_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where orders travel the first is by the node's word, whose clock may be ahead of ours by its error."""
    monkeypatch.setattr(processes, "struck", lambda _scene, since_t: {"t": since_t + 5.0})
    begin = FAULTS["worker_kill"].inject(plain_job.injection("worker_kill", "n2"))
    assert begin["sent_t"] == begin["t"]


def test_a_worker_that_was_killed_while_it_hung_needs_no_healing(plain_job: Job) -> None:
    fault, scene = FAULTS["hang"], plain_job.injection("hang", "n2")
    begin = fault.inject(scene)
    plain_job.cluster.kill("n2", None, 9)
    end = fault.heal(scene)
    assert end == {"was": [], "killed_meanwhile": 1}
    assert works(fault, scene, begin, end) is True


def test_a_hang_that_somebody_else_undid_did_not_work(plain_job: Job) -> None:
    fault, scene = FAULTS["hang"], plain_job.injection("hang", "n2")
    begin = fault.inject(scene)
    plain_job.cluster.signal("n2", plain_job.pids("n2")[0], 18)
    assert works(fault, scene, begin, fault.heal(scene)) is False


@pytest.mark.parametrize("key", ["worker_kill", "agent_kill", "node_kill", "all_nodes", "coordinator_kill", "hang"])
def test_without_effect_it_did_not_work(plain_job: Job, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fault_module, processes):
        monkeypatch.setattr(module, "GONE_S", GONE_S / 20)
    fault, scene = FAULTS[key], plain_job.injection(key, cluster=Idle(plain_job.cluster))
    begin = fault.inject(scene)
    assert works(fault, scene, begin, fault.heal(scene)) is False


def test_without_effect_there_was_no_preemption(plain_job: Job) -> None:
    scene = plain_job.injection("preemption", cluster=Idle(plain_job.cluster), notice_s=0.05)
    begin = FAULTS["preemption"].inject(scene)
    assert works(FAULTS["preemption"], scene, begin) is False


@pytest.mark.parametrize("key", ["worker_kill", "hang", "agent_kill"])
def test_nobody_there_to_be_hit_is_an_error(plain_job: Job, key: str) -> None:
    plain_job.cluster.kill("n2", None, 9)
    with pytest.raises(ClusterError, match=r"n2: no (worker|launcher) is running there"):
        FAULTS[key].inject(plain_job.injection(key, "n2"))
