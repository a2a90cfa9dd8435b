"""What a chaos suite may say, and the one line that everything else gets; and the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.mechanisms import MECHANISMS
from proving_ground.bench.plan import make_plan
from proving_ground.bench.spec import SpecError, Suite
from proving_ground.chaos import commands, spec
from proving_ground.chaos.cli import main
from proving_ground.chaos.spec import FaultSpec, clash

SUITE = """
title = "x"
nodes = [{nodes}]
repeats = 1
[[case]]
name = "digits"
workload = "digits"
mechanism = "{mechanism}"
global_batch = 96
steps = 100
estimated_step_s = 0.1
twins = [3]
{fault}
"""


def suite(folder: Path, fault: str, nodes: str = "3", mechanism: str = "restart") -> Suite:
    """A suite with one fault, from a file."""
    file = folder / "own.toml"
    file.write_text(SUITE.format(nodes=nodes, fault=fault and "[[case.faults]]\n" + fault, mechanism=mechanism))
    return spec.load(str(file))


@pytest.mark.parametrize(
    ("fault", "nodes", "says"),
    [
        ("", "3", "has no faults"),
        ('kind = "meteor"', "3", "unknown fault 'meteor'; allowed: worker_kill"),
        ('kind = "hang"\nphase = "lunch"', "3", "phase = 'lunch': must be one of recovery, forward"),
        ('kind = "hang"\ntarget = "n9"', "3", "case 'digits': hang: unknown target 'n9'"),
        ('kind = "hang"\ntarget = ["n1", "n9"]', "3", "unknown target 'n9'"),
        ('kind = "hang"\ntarget = ["n1", 2]', "3", "target = ['n1', 2]: must be a text"),
        ('kind = "node_kill"\ntarget = ["n1", "one"]', "2", "node_kill of n1+one kills the last node"),
        ('kind = "hang"\ntarget = "minority"', "1", "is no node"),
        ('kind = "hang"\nhold_s = -1', "3", "hold_s"),
        ('kind = "hang"\nafter_s = 1', "3", "fault 1: after_s = 1: there is none before to overlap with"),
        ('kind = "hang"\n[[case.faults]]\nkind = "hang"\nafter_s = 1\nphase = "forward"', "3", "has one of them"),
        ('kind = "hang"\n[[case.faults]]\nkind = "hang"\nafter_s = 61', "3", "after_s = 61"),
        ('kind = "hang"\ntarget = "joiner"', "3", "target 'joiner': needs phase = 'recovery'"),
        ('kind = "hang"\nat_s = 1\nafter_steps = 3', "3", "fault 1: after_steps and at_s: a fault has one of them"),
        (
            'kind = "hang"\nat_s = 1\nphase = "forward"',
            "3",
            "fault 1: at_s and phase = 'forward': a fault has one of them",
        ),
        (
            'kind = "hang"\n[[case.faults]]\nkind = "hang"\nafter_s = 1\nat_s = 2\nafter_steps = 3',
            "3",
            "fault 2: after_steps and after_s and at_s: a fault has one of them",
        ),
        ('kind = "hang"\nat_s = -1', "3", "at_s = -1"),
        ('kind = "hang"\nat_s = 86401', "3", "at_s = 86401"),
        ('kind = "hang"\nat_s = "noon"', "3", "at_s = 'noon': must be a number"),
        (
            'kind = "hang"\nat_s = 9\n[[case.faults]]\nkind = "hang"\nat_s = 8.5',
            "3",
            "fault 2: at_s = 8.5: one before it comes at 9 s",
        ),
        ('kind = "hang"\nphase = "recovery"', "3", "fault 1: phase = 'recovery': there is none before it in its job"),
        ('kind = "hang"\nsize = 3', "3", "unknown key 'size'"),
        ('kind = "hang"\nhold_s = "x"', "3", "hold_s = 'x': must be a number"),
        ('kind = "hang"\nargs = [1]', "3", "args = [1]: must be a table"),
        ('kind = "link_rate"\nargs = {mbps = "x"}', "3", "args.mbps = 'x': must be a number"),
        ('kind = "hang"\nid = "../x"', "3", "id = '../x': must be at most 32 letters"),
        ("kind = 3", "3", "kind = 3: must be a text"),
        ('kind = "hang"\nargs = {mbps = 3}', "3", "args of hang: mbps"),
        ('kind = "link_rate"\nargs = {mbps = -3}', "3", "args of link_rate: mbps = -3"),
        ('kind = "node_kill"\ntarget = "all"', "3", "kills the last node; say `all_nodes`"),
        ('kind = "node_kill"', "1", "kills the last node"),
    ],
)
def test_what_makes_no_sense_gets_one_line(tmp_path: Path, fault: str, nodes: str, says: str) -> None:
    with pytest.raises(SpecError) as refused:
        suite(tmp_path, fault, nodes)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_bar_for_a_model_that_is_never_trained_to_its_end_is_refused(tmp_path: Path) -> None:
    made = suite(tmp_path, 'kind = "hang"')
    barred = replace(made, cases=(replace(made.cases[0], quality_min={"accuracy": 0.97}),))
    with pytest.raises(
        SpecError, match="case 'digits': quality_min: a job with faults ends once it has got over"
    ) as said:
        spec.check_suite(barred)
    assert len(str(said.value)) <= 300
    assert "\n" not in str(said.value)


def test_a_case_without_faults_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    made = suite(tmp_path, 'kind = "hang"')
    idle = replace(made, cases=(*made.cases, replace(made.cases[0], name="idle", faults=())))
    with pytest.raises(SpecError, match="case 'idle' has no faults; `pg bench` runs cases without"):
        spec.check_suite(idle)


def test_a_mechanism_that_does_not_exist_is_refused_by_the_plan(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="unknown mechanism 'hope'; allowed: relaunch"):
        make_plan(suite(tmp_path, 'kind = "hang"', mechanism="hope"), FakeCluster())
    with pytest.raises(SpecError, match="faults need a mechanism"):
        make_plan(suite(tmp_path, 'kind = "hang"', mechanism=""), FakeCluster())


def test_what_the_cluster_cannot_do_is_left_out_with_the_reason(tmp_path: Path) -> None:
    both = suite(tmp_path, 'kind = "hang"\n[[case.faults]]\nkind = "disk_full"')
    left, off = commands.possible(both, FakeCluster())
    assert [it["kind"] for it in left.cases[0].faults] == ["hang"]
    assert off == {"disk_full": "fake has no volume"}
    with pytest.raises(SpecError, match="disk_full: fake has no volume"):
        commands.possible(suite(tmp_path, 'kind = "disk_full"'), FakeCluster())


def test_the_plan_numbers_faults_and_adds_the_twin_after_them(tmp_path: Path) -> None:
    made = make_plan(suite(tmp_path, 'kind = "hang"\n[[case.faults]]\nkind = "worker_kill"'), FakeCluster())
    first, twin = made.trials
    assert [(it["id"], it["kind"]) for it in first.faults] == [("f01", "hang"), ("f02", "worker_kill")]
    assert len({it["seed"] for it in first.faults}) == 2
    assert (twin.twin_of, twin.faults, twin.global_batch) == ("digits", (), first.global_batch)


def test_a_fault_is_found_again_with_its_seed(tmp_path: Path) -> None:
    trial = {"id": "t002", "case": "digits", "faults": [{"id": "f07", "seed": 1007, "kind": "hang"}]}
    plan: Mapping[str, Any] = {"trials": [{"id": "t001", "case": "digits", "faults": []}, trial]}
    for name in ("f07", "t002.f07"):
        assert commands.recorded(plan, [name], "runs/x") == ("digits", [trial["faults"][0]])
    with pytest.raises(SpecError, match=r"runs/x: unknown fault 'f08'; allowed: t002\.f07"):
        commands.recorded(plan, ["f08"], "runs/x")
    again = suite(tmp_path, 'kind = "hang"')
    case = replace(again.cases[0], faults=({"id": "f07", "seed": 1007, "kind": "hang"},))
    (kept, _) = make_plan(replace(again, cases=(case,)), FakeCluster()).trials
    assert [(it["id"], it["seed"]) for it in kept.faults] == [("f07", 1007)]


CHAIN = [
    {"id": "f01", "kind": "hang", "traits": {}},
    {"id": "f02", "kind": "hang", "after_s": 0.5, "traits": {}},
    {"id": "f03", "kind": "hang", "after_s": 0.5, "traits": {}},
    {"id": "f04", "kind": "hang", "traits": {}},
]
"""Three faults that overlap, and one."""


@pytest.mark.parametrize(
    ("wanted", "again"),
    [
        (["f01..f04"], ["f01", "f02 overlaps", "f03 overlaps", "f04"]),
        (["f02..f04"], ["f02", "f03 overlaps", "f04"]),
        (["t001.f03..f04"], ["f03", "f04"]),
        (["f04", "f01", "f03"], ["f01", "f03 overlaps", "f04"]),
        (["f02"], ["f02"]),
    ],
)
def test_a_chain_is_found_again_in_its_order_and_never_overlaps_with_what_it_did_not(
    wanted: list[str], again: list[str]
) -> None:
    _, faults = commands.recorded({"trials": [{"id": "t001", "case": "c", "faults": CHAIN}]}, wanted, "runs/x")
    assert [it["id"] + " overlaps" * ("after_s" in it) for it in faults] == again
    assert not any("traits" in it for it in faults)


HITTING = [
    {"id": "f01", "kind": "hang"},
    {"id": "f02", "kind": "hang", "after_s": 0.5},
    {"id": "f03", "kind": "worker_kill", "phase": "recovery"},
    {"id": "f04", "kind": "worker_kill", "phase": "recovery"},
    {"id": "f05", "kind": "worker_kill"},
]
"""Two that overlap, one that hits the recovery from both, one that hits that one's, and one by itself."""


@pytest.mark.parametrize(
    ("wanted", "again"),
    [
        (["f03"], ["f01", "f02 overlaps", "f03"]),
        (["f02", "f03"], ["f02", "f03"]),
        (["f04"], ["f01", "f02 overlaps", "f03", "f04"]),
        (["f05"], ["f05"]),
    ],
)
def test_a_fault_that_hits_a_recovery_is_done_again_with_what_the_job_recovers_from(
    wanted: list[str], again: list[str]
) -> None:
    _, faults = commands.recorded({"trials": [{"id": "t001", "case": "c", "faults": HITTING}]}, wanted, "runs/x")
    assert [it["id"] + " overlaps" * ("after_s" in it) for it in faults] == again


def test_a_fault_with_a_job_of_its_own_hits_no_recovery(tmp_path: Path) -> None:
    """Nor does one before which nothing is left that this cluster can do."""
    hits = 'kind = "hang"\n[[case.faults]]\nkind = "worker_kill"\nphase = "recovery"'
    made = suite(tmp_path, hits)
    with pytest.raises(SpecError, match="case 'digits': fault 2: phase = 'recovery': there is none before it in its"):
        spec.check_suite(replace(made, cases=(replace(made.cases[0], apart=True),)))
    with pytest.raises(SpecError, match="case 'digits': fault 1: phase = 'recovery': there is none before it in its"):
        commands.possible(suite(tmp_path, hits.replace("hang", "disk_full")), FakeCluster())


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (["f03..f01"], "f03..f01: t001.f01 comes before t001.f03"),
        (["f01..f09"], "unknown fault 't001.f09'"),
        (["t001.f01", "t002.f01"], "t001, t002 have these faults; allowed: faults of one trial"),
        (["f01..t002.f02"], "t001, t002 have these faults"),
    ],
)
def test_a_chain_that_is_none_gets_one_line(wanted: list[str], says: str) -> None:
    plan = {"trials": [{"id": name, "case": "c", "faults": CHAIN} for name in ("t001", "t002")]}
    with pytest.raises(SpecError, match=re.escape(says)):
        commands.recorded(plan, wanted, "runs/x")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "--trials", "0"], "--trials: 0 is out of range"),
        (["run", "--suite", "nowhere"], "unknown chaos suite 'nowhere'; allowed: alerts, default"),
        (["plan", "--only", "meteor"], "--only: unknown fault 'meteor'"),
        (["plan", "--case", "meteor"], "--case: unknown case 'meteor'; allowed: whole, shrinking"),
        (["plan", "--nodes", "0"], "--nodes"),
        (["replay", "nowhere", "f01"], "nowhere"),
    ],
)
def test_the_caller_s_mistakes_are_told_with_status_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["--runs", str(tmp_path), *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_list_and_plan_start_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--cluster", "fake"]) == 0
    listed = capsys.readouterr().out
    assert "worker_kill" in listed
    assert "fake has no volume" in " ".join(listed.split())
    assert main(["plan", "--suite", "smoke", "--cluster", "fake"]) == 0
    planned = capsys.readouterr().out
    assert "f02  node_kill" in planned
    assert "undisturbed twin of digits" in planned


@pytest.mark.parametrize("name", spec.suite_names())
def test_every_suite_that_ships_makes_sense(name: str) -> None:
    suite = spec.load(name)
    if not name.startswith(("kubernetes", "slurm")):  # whose faults are another engine's
        suite, _ = commands.possible(suite, FakeCluster())
    assert make_plan(suite, FakeCluster()).trials


def test_the_shoot_out_puts_the_same_faults_to_every_mechanism_one_a_job() -> None:
    trials = make_plan(spec.load("shootout"), FakeCluster()).trials
    put: dict[str, list[str]] = {}
    for trial in trials:
        if trial.faults:
            (fault,) = trial.faults
            put.setdefault(trial.case, []).append(f"{fault['id']} {fault['seed']} {fault['kind']}")
    assert {"relaunch", "torchrun", "torchrun-tuned", "restart", "live", "live-exact"} <= put.keys()
    assert len({tuple(sorted(faults)) for faults in put.values()}) == 1
    assert {trial.twin_of for trial in trials if not trial.faults} == put.keys()


TIMED = 'kind = "hang"\nat_s = 20\nhold_s = 3\n[[case.faults]]\nkind = "hang"\nat_s = 22.5\nhold_s = 3'


def test_the_time_that_a_fault_waits_for_its_moment_is_in_the_estimate(tmp_path: Path) -> None:
    made = make_plan(suite(tmp_path, TIMED), FakeCluster())
    first, twin = made.trials
    for_faults_s = 22.5 + 3 + MECHANISMS["restart"].fault_s
    assert first.estimate_s - twin.estimate_s == pytest.approx(0.45 * for_faults_s), "a twin trains for as many steps"


def test_the_plan_tells_the_moment_of_a_fault_and_only_one_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite(tmp_path, TIMED)
    words = ["plan", "--cluster", "fake", "--suite", str(tmp_path / "own.toml")]
    assert main(words) == 0
    assert re.search(r"f02  hang +one +at 22.5 s +held 3 s\n", capsys.readouterr().out)
    assert main([*words, "--trials", "2"]) == 2
    assert "--trials repeats faults one after the other, and at_s is one moment" in capsys.readouterr().err


def test_a_fault_that_is_done_again_keeps_its_moment(tmp_path: Path) -> None:
    (trial, _) = make_plan(suite(tmp_path, TIMED), FakeCluster()).trials
    plan = {"trials": [{"id": "t001", "case": "digits", "faults": trial.faults}]}
    assert [it["at_s"] for it in commands.recorded(plan, ["f02"], "runs/x")[1]] == [22.5]
    assert [it["at_s"] for it in commands.recorded(plan, ["f01..f02"], "runs/x")[1]] == [20, 22.5]


@pytest.mark.parametrize(
    ("kinds", "clashes"),
    [
        (("slurmctld_kill", "slurm_node_drain"), True),  # nobody could resume it
        (("slurmctld_kill", "slurm_node_down"), True),
        (("slurmctld_kill", "slurmd_kill"), True),
        (("slurmctld_kill", "slurm_preempt"), True),
        (("slurmctld_kill", "slurm_time_limit"), True),
        (("slurmctld_kill", "node_lost"), True),  # what tells of a machine's life is asked of it
        (("slurmctld_kill", "hang"), False),
        (("api_server_away", "quota_used_up"), True),
        (("api_server_away", "webhook_away"), True),
        (("api_server_away", "node_drain"), True),
        (("api_server_away", "node_taint"), True),
        (("api_server_away", "container_kill"), True),
        (("api_server_away", "node_lost"), True),
        (("api_server_away", "hang"), False),
        (("pod_kill", "pod_delete"), False),  # on two nodes
        (("slurmd_kill", "slurm_node_drain"), False),
    ],
)
def test_what_works_through_a_control_plane_clashes_with_what_takes_it_away(
    kinds: tuple[str, str],
    clashes: bool,  # noqa: FBT001
) -> None:
    one, other = (FaultSpec(kinds[0]), ["n1"]), (FaultSpec(kinds[1]), ["n2"])
    assert clash(one, other) is clash(other, one) is clashes
