"""The nemesis on a simulated cluster: what it does, what it tells, and that it heals whatever happens."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.jobstate import Worker
from proving_ground.bench.jobview import JobView
from proving_ground.bench.protocols import ClusterError, ClusterRequest, Operation, ProcessSpec
from proving_ground.bench.spec import SpecError, Trial
from proving_ground.chaos.faults import FAULTS, Evidence, Injection
from proving_ground.chaos.nemesis import FaultNemesis
from proving_ground.chaos.spec import FaultSpec
from proving_ground.reports.recovery.injection import digest

NODES = ("n1", "n2", "n3")


class Stage:
    """A simulated job of three nodes, a nemesis, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.cluster = FakeCluster()
        self.told: list[dict[str, Any]] = []
        self.cluster.setup(ClusterRequest("r", 3, 1, folder), self.emit)
        env = {"WORLD_SIZE": "3", "PROVING_GROUND_BATCH": "8", "PROVING_GROUND_STEPS": "1000"}
        trial = Trial("t001", "c", "digits", ("strong",), 3, 1, 1, 8, 24, 1000, 0)
        control = folder / "control"
        control.mkdir()
        self.view = JobView(trial, NODES, None, folder, control, None, self.cluster.now)
        for rank, node in enumerate(NODES):
            self.start(node, 0, rank, env, folder)
        self.nemesis = FaultNemesis()
        self.nemesis.setup(self.cluster, self.emit)
        self.told.clear()

    def start(self, node: str, slot: int, rank: int, env: dict[str, str], folder: Path) -> None:
        """One rank of the job."""
        name = f"{node}.{slot}"
        spec = ProcessSpec(node, slot, ("x",), env | {"RANK": str(rank)}, events=folder / f"t001.{name}.jsonl")
        self.view.workers[name] = Worker(node, self.cluster.start(spec), rank, 3, 1)

    def emit(self, event: str, **fields: object) -> None:
        """Keep what is told."""
        json.dumps(fields)  # it goes into a file
        self.told.append({"event": event, **fields})

    def do(self, name: str, spec: FaultSpec) -> list[dict[str, Any]]:
        """Have one operation done; what was told about it."""
        self.told.clear()
        args = {"fault": spec.id} if name == "heal" else {"spec": spec, "why": "x"}
        self.nemesis.invoke(Operation(name, args), self.view)
        return self.told

    def processes(self) -> list[str]:
        """Nodes with a living process."""
        return [node for node in NODES if self.cluster.processes(node)]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_word_means_a_node_that_has_power(stage: Stage) -> None:
    stage.do("inject", FaultSpec("node_kill", "f01", 3, "n2"))
    for number in range(20):
        spec = FaultSpec("partition", f"p{number}", number, "one")
        assert stage.do("inject", spec)[1]["target"] != ["n2"]
        stage.do("heal", spec)


@pytest.mark.parametrize("kind", ["node_kill", "preemption"])
def test_where_nothing_runs_nothing_is_killed(stage: Stage, kind: str) -> None:
    stage.do("inject", FaultSpec("node_kill", "f01", 3, "n2"))
    _, refused = stage.do("inject", FaultSpec(kind, "f02", 3, "n2"))
    assert (refused["event"], refused["why"]) == ("fault_refused", "n2: no process is running there")


def test_a_kill_is_told_with_evidence(stage: Stage) -> None:
    due, begin = stage.do("inject", FaultSpec("worker_kill", "f01", 3, "n2"))
    assert (due["event"], due["trial"], due["fault"]) == ("fault_due", begin["trial"], "f01")
    assert (begin["event"], begin["fault"], begin["target"]) == ("fault_begin", "f01", ["n2"])
    assert [it["node"] for it in begin["evidence"]["killed"]] == ["n2"]
    assert begin["evidence"]["left"] == []
    assert "happened" not in begin["evidence"], "whoever injects does not judge"
    traits = stage.nemesis.traits({"kind": "worker_kill", "id": "f01"})
    assert begin["traits_sha256"] == digest(json.loads(json.dumps(traits))), "as the report computes it from the plan"
    assert stage.processes() == ["n1", "n3"]
    (end,) = stage.do("heal", FaultSpec("worker_kill", "f01"))
    assert (end["event"], end["healed"]) == ("fault_end", True)


def test_a_node_without_power_is_down_until_it_is_healed(stage: Stage) -> None:
    spec = FaultSpec("node_kill", "f01", 3, "rank0")
    assert [it["event"] for it in stage.do("inject", spec)] == ["fault_due", "fault_begin", "node_down"]
    assert set(stage.nemesis.down) == {"n1"}
    assert [it["event"] for it in stage.do("heal", spec)] == ["fault_end", "node_up"]
    assert not stage.nemesis.down


def test_everything_is_healed_at_the_end_of_a_trial_and_of_the_run(stage: Stage) -> None:
    for number, kind in enumerate(("partition", "node_kill"), 1):
        stage.do("inject", FaultSpec(kind, f"f{number:02}", 1, "n2"))
    stage.told.clear()
    stage.nemesis.calm()
    assert [(it["event"], it.get("fault")) for it in stage.told[:2]] == [("fault_end", "f01"), ("fault_end", "f02")]
    assert not stage.nemesis.down
    stage.told.clear()
    stage.nemesis.teardown()
    assert stage.told == []


def test_a_node_stays_down_until_the_last_fault_that_took_its_power_is_healed(stage: Stage, tmp_path: Path) -> None:
    first, second = FaultSpec("node_kill", "f01", 1, "n1,n2"), FaultSpec("node_kill", "f02", 1, "n2,n3")
    stage.do("inject", first)
    stage.start("n2", 0, 1, {"WORLD_SIZE": "3"}, tmp_path)
    stage.do("inject", second)
    assert [it["node"] for it in stage.do("heal", first) if it["event"] == "node_up"] == ["n1"]
    assert set(stage.nemesis.down) == {"n2", "n3"}
    assert [it["node"] for it in stage.do("heal", second) if it["event"] == "node_up"] == ["n2", "n3"]


@pytest.mark.parametrize(
    ("kinds", "nodes", "clashes"),
    [
        (("hang", "hang"), ("n2", "n3"), False),
        (("partition", "partition_oneway"), ("n2", "n3"), True),  # the way between the two is in both
        (("hang", "hang"), ("n2", "n2"), True),
        (("hang", "partition"), ("n2", "n2"), False),
    ],
)
def test_what_a_fault_holds_no_other_may_hold(
    stage: Stage,
    kinds: tuple[str, str],
    nodes: tuple[str, str],
    clashes: bool,  # noqa: FBT001
) -> None:
    """Or healing the one would heal the other, and its evidence would say that it did not last."""
    stage.do("inject", FaultSpec(kinds[0], "f01", 1, nodes[0], args=FAULTS[kinds[0]].with_defaults({}, "")))
    told = stage.do("inject", FaultSpec(kinds[1], "f02", 1, nodes[1], args=FAULTS[kinds[1]].with_defaults({}, "")))[1]
    assert (told["event"] == "fault_refused") == clashes
    assert not clashes or told["why"] == f"f01 {kinds[0]} holds the same thing, and is not healed yet"


@pytest.mark.parametrize("kind", [ClusterError, SpecError, OSError])
def test_a_heal_that_fails_is_told_and_does_not_keep_the_rest_from_being_healed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fails(_: Injection[object]) -> Evidence:
        raise kind("the switch is on fire")

    monkeypatch.setitem(FAULTS, "hang", dataclasses.replace(FAULTS["hang"], heal=fails))
    stage.do("inject", FaultSpec("hang", "f01", 1, "n1"))
    stage.do("inject", FaultSpec("partition", "f02", 1, "n2"))
    stage.told.clear()
    stage.nemesis.calm()
    assert [(it["fault"], it["healed"]) for it in stage.told] == [("f01", False), ("f02", True)]
    assert "on fire" in stage.told[0]["evidence"]["error"]


@pytest.mark.parametrize("mended", [True, False])
def test_what_could_not_be_healed_is_tried_again_at_the_end_of_the_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, *, mended: bool
) -> None:
    answers = [False, mended]

    def heal(_scene: Injection[object]) -> Evidence:
        if not answers.pop(0):
            raise ClusterError("no answer")
        return {}

    monkeypatch.setitem(FAULTS, "hang", dataclasses.replace(FAULTS["hang"], heal=heal))
    stage.do("inject", FaultSpec("hang", "f01"))
    stage.nemesis.calm()
    assert len(answers) == 1, "not at the end of a trial: the engine may still be away"
    stage.told.clear()
    stage.nemesis.teardown()
    (last,) = stage.told
    words = "undone at the end of the run" if mended else "not undone: no answer"
    assert (last["event"], last["message"].partition("hang: ")[2]) == ("warning", words)
    stage.nemesis.teardown()
    assert len(stage.told) == 1, "once"


@pytest.mark.parametrize("kind", [ClusterError, SpecError, OSError])
def test_what_was_done_by_half_and_cannot_be_undone_is_told(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def breaks(_: Injection[object]) -> Evidence:
        raise ClusterError("no answer")

    def fails(_: Injection[object]) -> Evidence:
        raise kind("forbidden")

    monkeypatch.setitem(FAULTS, "hang", dataclasses.replace(FAULTS["hang"], begin=breaks, heal=fails))
    _, refused = stage.do("inject", FaultSpec("hang", "f01", 1, "n1"))
    assert (refused["event"], refused["why"]) == ("fault_refused", "no answer; and it could not be undone: forbidden")


def test_a_fault_that_cannot_be_done_is_told_with_the_reason(stage: Stage) -> None:
    spec = FaultSpec("worker_kill", "f02", 1, "n2")
    stage.do("inject", FaultSpec("worker_kill", "f01", 1, "n2"))
    _, refused = stage.do("inject", spec)
    assert (refused["event"], refused["fault"]) == ("fault_refused", "f02")
    assert "no worker is running" in refused["why"]


def test_the_plan_is_told_what_a_fault_ends_and_what_proves_it() -> None:
    traits = FaultNemesis().traits({"kind": "preemption", "id": "f01", "seed": 3})
    assert (traits["ends"], traits["victims"], traits["gone"]) == ("node", "killed", "cut_t")
    assert traits["args"] == {"notice_s": 2.0}
    assert [it["at"] for it in traits["proof"]] == ["begin.killed", "begin.killed.*.node", "begin.left"]


def test_a_phase_is_asked_for_where_the_fault_is_aimed_and_let_go_after_it(stage: Stage) -> None:
    spec = FaultSpec("worker_kill", "f01", 1, "n3", phase="allreduce")
    stage.do("arm", spec)
    assert stage.view.control is not None
    hold = stage.view.control / "hold.json"
    assert json.loads(hold.read_text()) == {"id": "f01", "phase": "allreduce", "ranks": [2]}
    stage.do("inject", spec)
    assert not hold.exists()
    stage.do("arm", dataclasses.replace(spec, id="f02"))
    stage.do("refuse", dataclasses.replace(spec, id="f02"))
    assert not hold.exists()


def test_the_writer_of_checkpoints_is_rank_0_wherever_the_fault_is_aimed(stage: Stage) -> None:
    stage.do("arm", FaultSpec("node_kill", "f01", 1, "n3", phase="before_rename"))
    assert stage.view.control is not None
    assert json.loads((stage.view.control / "hold.json").read_text())["ranks"] == [0]


@pytest.fixture
def crowded(stage: Stage) -> Stage:
    """Its second node has four ranks, rank 0 in slot 2."""
    env = {"WORLD_SIZE": "3", "PROVING_GROUND_BATCH": "8", "PROVING_GROUND_STEPS": "1000"}
    stage.view.workers["n1.0"].rank = 5
    for slot, rank in ((1, 3), (2, 0), (3, 4)):
        stage.start("n2", slot, rank, env, stage.view.folder)
    return stage


def test_which_of_a_node_s_ranks_is_killed_is_drawn_by_the_seed_and_told(tmp_path: Path) -> None:
    drawn: dict[int, set[str]] = {}
    for number in (*range(8), *range(8)):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        stage = crowded.__wrapped__(Stage(folder))  # type: ignore[attr-defined]
        _, begin = stage.do("inject", FaultSpec("worker_kill", "f01", number, "n2"))
        (killed,) = begin["evidence"]["killed"]
        assert stage.view.workers[killed["process"]].pid == killed["pid"]
        assert len(stage.cluster.processes("n2")) == 3, "the others live"
        drawn.setdefault(number, set()).add(killed["process"])
    assert all(len(names) == 1 for names in drawn.values()), "the same seed draws the same rank"
    assert len(set.union(*drawn.values())) > 1


@pytest.mark.parametrize(("kind", "what"), [("worker_kill", "killed"), ("hang", "stopped")])
def test_aimed_at_rank_0_it_is_that_rank_and_no_other_of_its_node(crowded: Stage, kind: str, what: str) -> None:
    _, begin = crowded.do("inject", FaultSpec(kind, "f01", 1, "rank0"))
    assert begin["target"] == ["n2"]
    assert [it["process"] for it in begin["evidence"][what]] == ["n2.2"]


def test_a_node_s_notice_reaches_all_of_its_ranks(crowded: Stage) -> None:
    _, begin, _ = crowded.do("inject", FaultSpec("preemption", "f01", 1, "n2"))
    assert len(begin["evidence"]["killed"]) == len(begin["evidence"]["ended_in_time"]) == 4
