"""Random schedules: the same seed is the same schedule, and whatever is drawn can be done and is healed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proving_ground.bench import rundir
from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.jobstate import disturbances
from proving_ground.bench.plan import make_plan
from proving_ground.bench.spec import SpecError, as_document, suite_from
from proving_ground.chaos import chance, commands, spec
from proving_ground.chaos.chance import ALONE, TOGETHER, Chance
from proving_ground.chaos.cli import main, parser
from proving_ground.chaos.faults import FAULTS, Fault
from proving_ground.chaos.spec import FaultSpec, clash
from tests.chaos.conftest import JOB_OF_THREE
from tests.chaos.test_schedule import begin, due

chances = st.builds(
    Chance,
    count=st.integers(1, 25),
    among=st.lists(st.sampled_from(sorted(FAULTS)), min_size=1, max_size=12, unique=True).map(tuple),
    seed=st.integers(0, 2**31 - 1),
    overlap=st.floats(0, 1),
)
mechanisms = st.sampled_from(["restart", "live", "relaunch"])
sizes = st.integers(1, 6)


def nodes(count: int) -> list[str]:
    return [f"n{number}" for number in range(1, count + 1)]


@given(chances, sizes, mechanisms)
def test_the_same_seed_is_the_same_schedule(asked: Chance, size: int, mechanism: str) -> None:
    drawn = chance.schedule(asked, nodes(size), mechanism)
    assert drawn == chance.schedule(asked, nodes(size), mechanism)
    assert len(drawn) == asked.count
    assert {it["kind"] for it in drawn} <= set(asked.among)


@given(chances, sizes, mechanisms)
def test_what_overlaps_leaves_a_node_alone_and_holds_nothing_twice(asked: Chance, size: int, mechanism: str) -> None:
    drawn = chance.schedule(asked, nodes(size), mechanism)
    for group in disturbances(drawn):
        kinds = [it["kind"] for it in group]
        assert len(group) <= TOGETHER
        assert len(group) == 1 or not set(kinds) & set(ALONE)
        named = [it["target"] for it in group if "target" in it]
        assert len(named) == len(set(named))
        assert len(named) <= 1 or len(named) < size
        held = [(FaultSpec(it["kind"]), chance.where_of(it, nodes(size))) for it in group]
        assert not any(clash(one, other) for at, one in enumerate(held) for other in held[:at])


@settings(deadline=None, max_examples=40)
@given(chances, mechanisms)
def test_whatever_is_drawn_comes_in_its_turn_and_is_healed(asked: Chance, mechanism: str) -> None:
    chaos, view = begin(*chance.schedule(asked, nodes(3), mechanism))
    at_work: set[str] = set()
    done = []
    while not chaos.over(view.trial, view):
        view.t += 0.25
        for name, fault in due(chaos, view, view.t):
            if name == "inject":
                done.append(fault)
                at_work.add(fault)
            else:
                assert name == "heal"
                at_work.remove(fault)
    assert done == [it["id"] for it in view.trial.faults]
    assert not at_work


def test_seeds_differ() -> None:
    asked = Chance(5, ("worker_kill", "hang", "node_kill"), 1)
    made = [chance.schedule(replace(asked, seed=seed), nodes(3), "restart") for seed in range(10)]
    assert len({str(it) for it in made}) == 10


RANDOM = (
    JOB_OF_THREE
    + """\
twins = [3]
training = {{ checkpoint_every = 10 }}
random = {{ {random} }}
"""
)


def test_a_plan_holds_plain_faults_and_what_they_were_drawn_with(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(RANDOM.format(random="count = 6, overlap = 0.5"))
    suite, off = commands.possible(spec.load(str(tmp_path / "own.toml")), FakeCluster())
    (first, *twins) = make_plan(suite, FakeCluster()).trials
    assert [it["id"] for it in first.faults] == [f"f{number:02}" for number in range(1, 7)]
    assert (first.drawn["seed"], first.drawn["count"], off) == (suite.seed, 6, {})
    assert "disk_full" not in first.drawn["among"], "the cluster has no volume"
    assert not any(it.drawn or it.faults for it in twins)
    again = suite_from(json.loads(json.dumps(as_document(suite))), where="spec.json", name=suite.name)
    assert commands.possible(again, FakeCluster())[0] == suite, "what a run keeps of its suite is not drawn anew"


@pytest.mark.parametrize("kind", ["slurm_node_down", "node_lost"])
def test_what_costs_a_node_for_good_is_drawn_by_its_name_only(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fault, "why_not", lambda *_: None)

    def among(name: str, random: str) -> list[str]:
        (tmp_path / "own.toml").write_text(RANDOM.format(random=random))
        monkeypatch.setattr(FakeCluster, "name", name)
        return list(chance.drawn(spec.load(str(tmp_path / "own.toml")), FakeCluster()).cases[0].drawn["among"])

    assert kind in among("kubernetes", "count = 3")
    assert kind not in among("slurm", "count = 3")
    assert among("slurm", f"count = 3, among = ['{kind}']") == [kind]


@pytest.mark.parametrize(
    ("random", "says"),
    [
        ("count = 0", "case 'digits': random: count = 0: must be 1 to 1000"),
        ("number = 3", "random: unknown key 'number'; allowed: count, among, seed, overlap"),
        ('count = 3, among = ["meteor"]', "random: among: unknown fault 'meteor'"),
        ("count = 3, overlap = 2", "overlap = 2: must be 0 to 1"),
        ('count = 3, among = ["disk_full"]', "random: nothing to draw from: disk_full: fake has no volume"),
        ("count = 3 }\nfaults = [{ kind = 'hang' }]\ncommand = { ", "random: and [[case.faults]]; a case has one"),
    ],
)
def test_what_makes_no_sense_gets_one_line(
    tmp_path: Path, random: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.toml").write_text(RANDOM.format(random=random))
    assert main(["plan", "--cluster", "fake", "--suite", str(tmp_path / "own.toml")]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_suite_s_faults_give_way_to_random_ones(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--suite", "smoke", "--cluster", "fake", "--random", "5", "--seed", "7"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "case digits: 5 faults drawn with seed 7 among" in said
    assert main(words) == 0
    assert capsys.readouterr().out == said
    assert main([*words, "--only", "hang"]) == 0
    assert "5 faults drawn with seed 7 among 1 kind" in capsys.readouterr().out
    for more, why in (["--trials", "2"], "--random N draws more"), (["--suite", "default"], "--case NAME says which"):
        with pytest.raises(SpecError, match=why):
            commands.asked(parser().parse_args([*words, *more]))


def test_a_random_schedule_runs_and_everything_is_healed(tmp_path: Path) -> None:
    words = ["run", "--suite", "smoke", "--cluster", "fake", "--random", "6", "--seed", "3", "--overlap", "0.6"]
    assert main(["--runs", str(tmp_path), *words, "--quiet"]) == 0
    run = rundir.find(tmp_path, "smoke")
    trials = run.read("results")["trials"]
    assert len(trials) == 6
    assert {it["verdicts"].get("healed", "pass") for it in trials} == {"pass"}
    assert "were drawn with seed 3 among" in run.report.read_text()


def test_an_overlap_of_nothing_drawn_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--suite", "smoke", "--cluster", "fake", "--overlap", "0.5"]) == 2
    assert "--overlap is of --random's faults: say --random N as well" in capsys.readouterr().err
