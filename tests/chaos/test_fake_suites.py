"""Whole chaos suites on the `fake` cluster: plan, schedule, nemesis, recovery and report, in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.capabilities import CAPABILITIES, offers
from proving_ground.bench.clusters import choose
from proving_ground.bench.clusters.fake import RESTART_S, FakeCluster
from proving_ground.bench.clusters.local.cluster import LocalCluster
from proving_ground.bench.clusters.remote import kubernetes, slurm
from proving_ground.chaos.cli import main
from proving_ground.chaos.faults import FAULTS
from tests.chaos.conftest import JOB_OF_THREE


def outcomes(folder: Path, suite: str) -> dict[str, dict[str, Any]]:
    """Run a suite; fault → what came of its first trial."""
    assert main(["--runs", str(folder), "run", "--cluster", "fake", "--suite", suite]) == 0
    found = rundir.find(folder, suite).read("results")["trials"]
    return {it["kind"]: it for it in reversed(found)}


@pytest.mark.parametrize("suite", ["smoke"])
def test_a_job_on_it_gets_over_what_is_killed(tmp_path: Path, suite: str) -> None:
    """Recovered, and unproven: nothing really trains there, so nothing is said to be the same."""
    found = outcomes(tmp_path, suite)
    for kind in ("worker_kill", "node_kill"):
        moments = found[kind]["timeline"]
        assert found[kind]["outcome"] == "unproven"
        assert RESTART_S <= moments["first_committed_step"] - moments["inject"] < RESTART_S + 2


def test_a_launcher_with_two_ranks_gets_over_what_is_killed_of_its_node(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "ranks")
    assert {found[kind]["outcome"] for kind in ("worker_kill", "hang", "node_kill")} == {"unproven"}
    events = list(rundir.read_history(rundir.find(tmp_path, "ranks")))
    over = [it["trial"] for it in events if it["event"] == "job_over"]
    assert over[0] == "t001"
    assert len(over) == len(set(over))
    worlds = {(it["trial"], it["source"], it["world_size"]) for it in events if it["event"] == "ready"}
    assert {it[1:] for it in worlds if it[0] == "t001"} == {
        (f"n{node}.{slot}", 4) for node in (1, 2) for slot in (0, 1)
    }
    killed = {
        it["kind"]: it["evidence"]["killed"] for it in events if it["event"] == "fault_begin" and it["kind"] != "hang"
    }
    assert (len(killed["worker_kill"]), len(killed["node_kill"])) == (1, 3), (
        "one rank; a launcher and both of its ranks"
    )


OVERLAPPING = (
    JOB_OF_THREE
    + """\
[[case.faults]]
kind = "hang"
target = "n2"
hold_s = 3
[[case.faults]]
kind = "worker_kill"
target = "n1"
after_s = 0.5
[[case.faults]]
kind = "node_kill"
target = "n3"
hold_s = 1
[[case.faults]]
kind = "worker_kill"
target = "n1"
"""
)


def test_faults_that_overlap_are_one_recovery(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OVERLAPPING)
    assert main(["--runs", str(tmp_path), "run", "--cluster", "fake", "--suite", str(tmp_path / "own.toml")]) == 0
    results = rundir.find(tmp_path, "own").read("results")
    trials = {it["fault"]: it for it in results["trials"]}
    assert {it["outcome"] for it in trials.values()} == {"recovered"}, {it["why"] for it in trials.values()}
    assert [trials[name]["phase"] for name in sorted(trials)] == ["overlap", "overlap", "step", "step"]
    assert trials["f02"]["command"].endswith(" f01..f02")
    moments = {name: it["timeline"] for name, it in trials.items()}
    assert moments["f02"]["inject"] - moments["f01"]["inject"] == pytest.approx(0.5, abs=0.2)
    (shared,) = [it for it in results["figures"] if it["name"] == "resume" and it["where"]["phase"] == "overlap"]
    last = max(moments[name]["first_committed_step"] for name in ("f01", "f02"))
    assert shared["where"]["kind"] == "hang", "it is called by the first of them"
    assert shared["values"] == [pytest.approx(last - moments["f01"]["inject"], abs=1e-3)]
    (alone,) = [it for it in results["figures"] if it["name"] == "resume"
                and (it["where"]["kind"], it["where"]["phase"]) == ("worker_kill", "step")]  # fmt: skip
    assert alone["n"] == 1, "the other one was not alone"


HITTING = (
    JOB_OF_THREE
    + """\
[[case.faults]]
kind = "node_kill"
target = "n3"
hold_s = 1
[[case.faults]]
kind = "worker_kill"
target = "n2"
phase = "recovery"
"""
)


def test_a_fault_that_hits_a_recovery_hits_one_when_it_is_done_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.toml").write_text(HITTING)
    words = ["--runs", str(tmp_path), "run", "--cluster", "fake", "--suite", str(tmp_path / "own.toml"), "--quiet"]
    assert main(words) == 0
    before = rundir.find(tmp_path, "own").path
    assert main(["--runs", str(tmp_path), "replay", "--cluster", "fake", str(before), "f02"]) == 0
    assert "f02 hits the recovery from f01, so both are done again\n" in capsys.readouterr().out
    again = rundir.find(tmp_path, "own")
    assert again.path != before
    events = list(rundir.read_history(again))
    (hit_t,) = [it["inject_t"] for it in events if it["event"] == "fault_begin" and it["fault"] == "f02"]
    ready = [it for it in events if it["event"] == "ready" and it["trial"] == "t001" and it["t"] < hit_t]
    assert max(it["generation"] for it in ready) > 1, "it hit the job's own start"
    plan = again.read("plan")
    plan["trials"][0]["faults"] = plan["trials"][0]["faults"][1:]
    again.write("plan", plan)
    assert main(["--runs", str(tmp_path), "replay", "--cluster", "fake", str(again.path), "f02"]) == 2
    error = capsys.readouterr().err
    assert "fault 1: phase = 'recovery': there is none before it in its job" in error
    assert error.count("\n") == 1


TIMED = (
    JOB_OF_THREE
    + """\
[[case.faults]]
kind = "hang"
target = "n2"
at_s = 3.0
hold_s = 3
[[case.faults]]
kind = "worker_kill"
target = "n1"
at_s = 4.5
[[case.faults]]
kind = "worker_kill"
target = "n3"
at_s = 12.5
[[case.faults]]
kind = "worker_kill"
target = "n2"
"""
)


def test_faults_come_at_their_moments_and_overlap_where_the_job_had_not_got_over_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(TIMED)
    assert main(["--runs", str(tmp_path), "run", "--cluster", "fake", "--suite", str(tmp_path / "own.toml")]) == 0
    run = rundir.find(tmp_path, "own")
    trials = {it["fault"]: it for it in run.read("results")["trials"]}
    assert {it["outcome"] for it in trials.values()} == {"recovered"}, {it["why"] for it in trials.values()}
    assert [trials[name]["phase"] for name in sorted(trials)] == ["overlap", "overlap", "step", "step"]
    inject = [trials[name]["timeline"]["inject"] for name in sorted(trials)]
    steps = sorted(it["t"] for it in rundir.read_history(run) if it["event"] == "step" and it["trial"] == "t001"
                   and it["source"] == "n1.0")  # fmt: skip
    assert inject[0] - steps[14] == pytest.approx(3.0, abs=0.2)
    assert [t - inject[0] for t in inject[1:3]] == [pytest.approx(1.5, abs=0.2), pytest.approx(9.5, abs=0.2)]
    again = ["--runs", str(tmp_path), "replay", "--cluster", "fake", str(run.path), "f01..f02"]
    assert main(again) == 0
    planned = rundir.find(tmp_path, "own").read("plan")["trials"][0]["faults"]
    assert [it["at_s"] for it in planned] == [3.0, 4.5]


ZONES = (
    JOB_OF_THREE
    + """\
[[case.faults]]
kind = "node_kill"
target = "zone=b"
hold_s = 1
[[case.faults]]
kind = "node_kill"
target = "zone=c"
[[case.faults]]
kind = "node_kill"
target = "zone=a+n2"
"""
)


def test_a_zone_fails_as_a_whole_and_one_that_is_not_there_or_is_all_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(ZONES)
    main(["--runs", str(tmp_path), "run", "--cluster", "fake", "--suite", str(tmp_path / "own.toml")])
    run = rundir.find(tmp_path, "own")
    events = list(rundir.read_history(run))
    assert [it["target"] for it in events if it["event"] == "fault_begin"] == [["n2", "n4"]]
    assert [it["why"] for it in events if it["event"] == "fault_refused"] == [
        "target 'zone=c': no node has zone=c; there are zone=a, zone=b",
        "node_kill of zone=a+n2 kills the last node; say `all_nodes` if that is meant",
    ]
    roles = {it["name"]: it["role"] for it in run.read("plan")["cluster"]["nodes"]}
    assert roles == {"n1": "trains", "n2": "trains", "n3": "trains", "n4": "coordinates"}


def test_what_it_cannot_break_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = outcomes(tmp_path, "default")
    assert "not here: slow_node: fake has no cpu_shares" in capsys.readouterr().out
    assert not {"slow_node", "link_rate", "disk_full"} & found.keys()
    assert {"partition", "hang", "coordinator_kill"} <= found.keys()
    assert json.loads((rundir.find(tmp_path, "default").path / "plan.json").read_text())["refused"]


def test_an_ability_is_worth_nothing_without_its_methods() -> None:
    cluster = FakeCluster()
    assert any(it.name == "links" and it.yes for it in cluster.abilities())
    assert FAULTS["link_rate"].why_not(cluster) == "fake has no links"
    assert FAULTS["worker_kill"].why_not(cluster) is None


@pytest.mark.parametrize("ability", CAPABILITIES)
def test_a_cluster_offers_every_capability(ability: str) -> None:
    elsewhere = {*kubernetes.ABILITIES, *slurm.ABILITIES}
    able: object = choose("slurm:")[0] if ability in elsewhere else LocalCluster(())
    assert offers(able, ability)
    assert {name for fault in FAULTS.values() for name in fault.needs} <= {*CAPABILITIES, "namespaces", "disks"}
