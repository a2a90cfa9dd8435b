"""A prediction is made from block a alone, before anything of block b runs, and what it said then is kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.plan import make_plan
from proving_ground.bench.run import Parts, run
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import Case, SpecError, Suite, check_suite
from tests.bench.conftest import CASE

PACED = Case(
    name="resnet50",
    workload="resnet50",
    steps=4,
    warmup_steps=1,
    estimated_step_s=1.0,
    batch_per_node=4,
    link_mbps=1000,
)
SUITE = Suite(
    name="unit", title="Unit", nodes=(1, 2, 4), cases=(PACED,), repeats=2, predict_from=(1, 2), predict_repeats=3
)


def test_block_a_has_the_fit_s_sizes_and_comes_first() -> None:
    trials = make_plan(SUITE, FakeCluster()).trials
    assert "".join(trial.block for trial in trials) == "a" * 6 + "b" * 6
    assert {trial.nodes for trial in trials[:6]} == {1, 2}
    assert {trial.nodes for trial in trials[6:]} == {1, 2, 4}


def test_without_larger_sizes_there_is_nothing_to_predict() -> None:
    trials = make_plan(replace(SUITE, nodes=(1, 2)), FakeCluster()).trials
    assert {trial.block for trial in trials} == {""}


def test_cases_that_really_compute_are_not_predicted() -> None:
    digits = replace(PACED, name="digits", workload="digits")
    trials = make_plan(replace(SUITE, cases=(digits, PACED)), FakeCluster()).trials
    assert {trial.case for trial in trials if trial.block == "a"} == {"resnet50"}
    with pytest.raises(SpecError, match="no case has paced compute and a link rate"):
        make_plan(replace(SUITE, cases=(digits,)), FakeCluster())


@pytest.mark.parametrize(
    ("change", "said"),
    [({"predict_from": (1,)}, "must be 2 or more node counts"), ({"predict_from": (2, 1)}, "ascending"),
     ({"predict_repeats": 0}, "must be 1 to 1000")],
)  # fmt: skip
def test_nonsense_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        check_suite(replace(SUITE, **change), "unit.toml")


def test_the_plan_carries_what_a_prediction_needs() -> None:
    document = make_plan(SUITE, FakeCluster()).document()
    assert set(document["profiles"]) == {"resnet50-cpu"}  # type: ignore[call-overload]
    assert document["trials"][0]["bound"]["settings"] == {  # type: ignore[index]
        "bucket_mb": 25.0, "compression": "none", "accumulate": 1, "pace": 1.0, "load": 1.0,
        "updates": "every_step", "sync_every": 10,
    }  # fmt: skip


def test_accumulation_hides_only_behind_its_last_micro_batch() -> None:
    once, twice = (
        make_plan(replace(SUITE, cases=(replace(PACED, link_mbps=300, training={"accumulate": k}),)), FakeCluster())
        for k in (1, 2)
    )
    one, two = (next(t.bound for t in plan.trials if t.nodes == 4) for plan in (once, twice))
    assert one is not None
    assert two is not None
    assert two["exposed_s"] > one["exposed_s"]
    assert two["step_s"] - two["exposed_s"] == pytest.approx(one["step_s"] - one["exposed_s"])


def test_it_is_asked_once_between_the_blocks_and_its_hash_recorded(tmp_path: Path) -> None:
    seen: list[set[str]] = []

    def predict(store: RunDir) -> None:
        blocks = {trial["id"]: trial["block"] for trial in store.read("plan")["trials"]}
        begun = [r for r in rundir.read_events(store.events / "harness.jsonl") if r["event"] == "trial_start"]
        seen.append({blocks[record["trial"]] for record in begun})
        store.write("prediction", {"answer": 42})

    store = run(SUITE, FakeCluster(), tmp_path, Parts(between=predict))
    assert seen == [{"a"}]
    said = [record for record in rundir.read_history(store) if record["event"] == "prediction"]
    assert [record["sha256"] for record in said] == [rundir.sha256(store.path / "prediction.json")]
    assert "prediction.json" in json.loads((store.path / "seal.json").read_text())["files"]


def test_a_prediction_that_fails_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    store = run(SUITE, FakeCluster(), tmp_path, Parts(between=lambda _: None))
    warnings = [record["message"] for record in rundir.read_history(store) if record["event"] == "warning"]
    assert len(warnings) == 1
    assert warnings[0].startswith("no prediction could be made from block a")
    assert rundir.verify(store) == []


def test_a_suite_without_prediction_asks_nobody(tmp_path: Path) -> None:
    def never(_: RunDir) -> None:
        raise AssertionError

    run(replace(SUITE, predict_from=(), cases=(PACED, CASE)), FakeCluster(), tmp_path, Parts(between=never))
