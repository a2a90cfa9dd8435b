"""Two ranks a node under real faults: one of them is killed, and a node with both; and a rank that is not who it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.rundir import RunDir
from tests.bench.clusters.conftest import pytest_collection_modifyitems
from tests.chaos.test_mutants import case_of, failed, outcomes, report_of

__all__ = ["pytest_collection_modifyitems"]

PAIRS: dict[str, Any] = {"ranks_per_node": 2, "twins": [2], "cpus_per_node": 2.0, "patience_s": 150}


@pytest.mark.root
def test_one_of_two_ranks_and_then_a_whole_node_are_killed_and_nothing_else_changes(tmp_path: Path) -> None:
    faults = [{"kind": "worker_kill", "after_steps": 8}, {"kind": "node_kill", "after_steps": 8, "hold_s": 0.5}]
    case = case_of("right", {}, **PAIRS, mechanism="restart", faults=faults, command={})
    results = report_of(tmp_path, 2, [case])
    assert [(it["kind"], it["outcome"]) for it in results["trials"]] == [
        ("worker_kill", "recovered"), ("node_kill", "recovered"),
    ], results["verdicts"]  # fmt: skip
    told = [it for it in results["verdicts"] if it["verdict"] != "pass"]
    assert {it["check"] for it in told} <= {"full_speed"}, told  # a busy machine may be slower afterwards
    store = rundir.find(tmp_path, "mutants")
    lives_are_right(store)
    events = list(rundir.read_history(store))
    (one, node) = [it["evidence"]["killed"] for it in events if it["event"] == "fault_begin"]
    assert (len(one), len(node)) == (1, 3), "one rank; a launcher and both of its ranks"
    assert {f"{file.name}" for file in store.logs.glob("t001.n[12].*")} == {
        f"t001.n{number}.{slot}.log" for number in (1, 2) for slot in (0, 1)
    }  # fmt: skip


def lives_are_right(store: RunDir) -> None:
    """Each rank of each generation says who it is, and the two of a node follow each other."""
    lives: dict[int, dict[str, tuple[int, int, int]]] = {}
    begun: dict[str, dict[str, Any]] = {}
    for it in rundir.read_history(store):
        if it.get("trial") == "t001" and it["event"] == "start":
            begun[it["source"]] = it
        elif it.get("trial") == "t001" and it["event"] == "ready":
            said = begun[it["source"]]
            lives.setdefault(it["generation"], {})[it["source"]] = said["rank"], said["local_rank"], said["world_size"]
    assert len(lives) >= 3, "it began, and got over two faults"
    for made in lives.values():
        assert {source: (local, world) for source, (_, local, world) in made.items()} == {
            f"n{number}.{slot}": (slot, 4) for number in (1, 2) for slot in (0, 1)
        }  # fmt: skip
        assert all(made[f"n{number}.1"][0] == made[f"n{number}.0"][0] + 1 for number in (1, 2))
        assert sorted(rank for rank, *_ in made.values()) == [0, 1, 2, 3]


@pytest.mark.root
def test_a_rank_that_loses_a_sample_or_takes_itself_for_its_neighbour_is_caught(tmp_path: Path) -> None:
    kill = {"kind": "worker_kill"}
    cases = [case_of(name, kill, **PAIRS, mechanism="restart") for name in ("last_sample_dropped", "always_slot_0")]
    results = report_of(tmp_path, 2, cases)
    assert outcomes(results)["last-sample-dropped"] == "wrong"
    assert "exactly_once" in failed(results, "last-sample-dropped")
    (said,) = [it for it in results["verdicts"] if it["check"] == "recorded" and it["where"]["case"] == "always-slot-0"]
    assert said["verdict"] == "unknown"
    assert said["why"] in {f"n{number}.1 said that its local rank is 0" for number in (1, 2)}
