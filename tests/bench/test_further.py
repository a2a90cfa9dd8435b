"""What planned repeats leave open gets further ones, once, within the stated time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.cli import main
from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.further import MOST_ROUNDS, Further, again, one_round, rounds_within, sizes_of
from proving_ground.bench.plan import make_plan
from proving_ground.bench.progress import Quiet
from proving_ground.bench.protocols import ProcessSpec
from proving_ground.bench.run import Parts, run
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import Case, SpecError, Suite, Trial, load_suite

CASE = Case("one", "digits", steps=3, warmup_steps=1, estimated_step_s=0.1, batch_per_node=16, global_batch=16)
SUITE = Suite("unit", "Unit", (1, 2, 4), (CASE, replace(CASE, name="two")), repeats=2, limit_s=60.0, decide=True)


class Asked:
    """Says what is open, and counts how often it was asked."""

    def __init__(self, sizes: Mapping[str, Sequence[int]]) -> None:
        self.sizes, self.times = sizes, 0

    def __call__(self, store: RunDir) -> Mapping[str, Sequence[int]]:
        self.times += 1
        store.write("undecided", {"sizes": []})
        return self.sizes


def added(store: RunDir) -> list[tuple[str, int, int]]:
    planned = make_plan(SUITE, FakeCluster()).trials
    return [(it["case"], it["nodes"], it["repeat"]) for it in store.read("plan")["trials"][len(planned) :]]


def said(store: RunDir, event: str) -> list[rundir.Record]:
    return [it for it in rundir.read_history(store) if it["event"] == event]


def test_what_is_open_is_repeated_beside_the_smallest_size(tmp_path: Path) -> None:
    asked = Asked({"one": [4]})
    store = run(SUITE, FakeCluster(), tmp_path, Parts(undecided=asked))
    found = added(store)
    assert {(case, nodes) for case, nodes, _ in found} == {("one", 1), ("one", 4)}
    repeats = [repeat for _, nodes, repeat in found if nodes == 4]
    assert repeats == list(range(3, 3 + len(repeats)))
    assert store.read("plan")["further"] == {"sizes": {"one": [4]}, "rounds": len(repeats)}
    assert len(said(store, "trial_end")) == len(store.read("plan")["trials"])
    assert store.read("seal")["complete"]
    assert asked.times == 1
    assert said(store, "undecided")[0]["rounds"] == len(repeats)


def test_a_run_whose_cases_are_others_by_now_is_refused_in_one_line() -> None:
    with pytest.raises(SpecError, match="further repeats of digits, which the plan lacks by now; start a new run"):
        make_plan(SUITE, FakeCluster()).extended(Further({"digits": [4]}, 2))


@pytest.mark.parametrize(
    ("suite", "sizes"),
    [(SUITE, {}), (replace(SUITE, limit_s=1.0), {"one": [4]}), (replace(SUITE, decide=False), {"one": [4]})],
)
def test_nothing_is_added_where_all_is_decided_or_no_time_is_left(
    tmp_path: Path, suite: Suite, sizes: dict[str, list[int]]
) -> None:
    asked = Asked(sizes)
    store = run(suite, FakeCluster(), tmp_path, Parts(undecided=asked))
    assert added(store) == []
    assert store.read("plan")["further"] is None
    assert asked.times == suite.decide


def test_further_trials_are_of_weak_scaling_and_as_the_planned_ones() -> None:
    planned = make_plan(SUITE, FakeCluster()).trials
    made = again(planned, Further({"one": [2]}, 3))
    assert [it.id for it in made] == [f"t{number:03}" for number in range(len(planned) + 1, len(planned) + 7)]
    assert {it.scaling for it in made} == {("weak",)}
    alike = replace(made[0], id="", repeat=0, scaling=())
    first = next(it for it in planned if (it.case, it.nodes, "weak" in it.scaling) == ("one", alike.nodes, True))
    assert alike == replace(first, id="", repeat=0, scaling=())
    assert again(planned, Further({"one": [2]}, 3)) == made


def test_rounds_are_as_many_as_fit() -> None:
    planned = make_plan(SUITE, FakeCluster()).trials
    one = one_round(planned, {"one": [2], "two": [2, 4]})
    assert sorted((it.case, it.nodes) for it in one) == [("one", 1), ("one", 2), ("two", 1), ("two", 2), ("two", 4)]
    took_s = {it.id: 2.0 for it in one}
    assert rounds_within(29.9, one, took_s) == 2
    assert rounds_within(-5.0, one, took_s) == 0
    assert rounds_within(1e9, one, took_s) == MOST_ROUNDS
    assert rounds_within(10.0, [], {}) == 0


class DiesLater(FakeCluster):
    """Its first further trial does not start."""

    def start(self, process: ProcessSpec) -> int:
        if process.events and process.events.name.startswith("t021"):
            raise RuntimeError("n1 is on fire")
        return super().start(process)


def test_a_run_cut_off_among_further_trials_goes_on_with_the_same(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="on fire"):
        run(SUITE, DiesLater(), tmp_path, Parts(undecided=Asked({"one": [4]})))
    (store,) = rundir.all_runs(tmp_path)
    before = store.read("plan")
    assert not store.read("seal")["complete"]
    never = Asked({"two": [2]})
    run(SUITE, FakeCluster(), tmp_path, Parts(undecided=never), store)
    assert never.times == 0
    assert store.read("plan")["trials"] == before["trials"]
    assert store.read("seal")["complete"]


def test_one_that_cannot_tell_is_told_of(tmp_path: Path) -> None:
    store = run(SUITE, FakeCluster(), tmp_path, Parts(undecided=lambda _: {}))
    assert "could not be told" in said(store, "warning")[0]["message"]


def test_more_repeats_on_the_command_line_are_all_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert load_suite("scaling").decide
    assert main(["plan", "--cluster", "fake", "--repeats", "5"]) == 0
    assert "in 5 interleaved repeats" in capsys.readouterr().out
    del tmp_path


def test_sizes_of_a_document() -> None:
    rows = [{"case": "a", "nodes": 2, "why": ""}, {"case": "b", "nodes": 4}, {"case": "a", "nodes": 8}]
    assert sizes_of(json.loads(json.dumps({"sizes": rows}))) == {"a": [2, 8], "b": [4]}
    assert sizes_of({}) == {}


def test_the_time_left_learns_from_whole_trials(tmp_path: Path) -> None:
    """Starting neighbours and stopping processes is part of what a trial takes."""
    told: dict[str, float] = {}

    class Watch(Quiet):
        def trial_done(self, trial: Trial, seconds: float) -> None:
            told[trial.id] = seconds

    class SlowToStop(FakeCluster):
        def stop(self, grace_s: float) -> None:
            super().stop(grace_s)
            self.sleep(1.0)

    store = run(SUITE, SlowToStop(), tmp_path, Parts(watch=Watch()))
    begun = {it["trial"]: it["t"] for it in said(store, "trial_start")}
    ended = {it["trial"]: it["t"] for it in said(store, "trial_end")}
    assert told == pytest.approx({name: ended[name] - begun[name] for name in begun})
