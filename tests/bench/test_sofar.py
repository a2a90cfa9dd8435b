"""What a person reads while a benchmark runs is what the report will say, from fewer repeats."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.plan import make_plan
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.sofar import SoFar, measured_steps, of_steps, pace_of
from proving_ground.bench.spec import Case, Suite, Trial
from proving_ground.reports.figures import pick
from proving_ground.reports.scaling import results
from tests.reports.synthetic import Knobs, make

CASE = Case("one", "digits", steps=6, warmup_steps=1, estimated_step_s=0.1, batch_per_node=16)
SUITE = Suite("unit", "Unit", (1, 2, 4), (CASE,), repeats=3)
PLANNED = make_plan(SUITE, FakeCluster()).trials


def planned() -> SoFar:
    so_far = SoFar()
    so_far.plan(PLANNED)
    return so_far


@pytest.fixture
def store(tmp_path: Path) -> RunDir:
    return rundir.create(tmp_path, "unit")


def trial(nodes: int, repeat: int) -> Trial:
    return next(it for it in PLANNED if (it.nodes, it.repeat) == (nodes, repeat))


def record(store: RunDir, it: Trial, step_s: float, wobble: float = 0.01) -> Trial:
    """Event files of a trial whose steps take about so long."""
    for rank in range(it.nodes):
        t, lines = 10.0, []
        for step in range(1, it.steps + 1):
            t += step_s * (1 + wobble * (-1) ** step)
            lines.append(json.dumps({"t": t, "event": "step", "step": step, "samples": 16}))
        (store.events / f"{it.id}.n{rank + 1}.0.jsonl").write_text("\n".join(lines) + "\n")
    return it


def test_a_size_is_told_of_as_soon_as_it_can_be_compared(store: RunDir) -> None:
    so_far = planned()
    assert so_far.add(store, record(store, trial(2, 1), 0.11)) == []
    (line,) = so_far.add(store, record(store, trial(1, 1), 0.10))
    assert line.startswith("so far: one on 2 nodes: 90.9 % of linear (")
    assert line.endswith("%, by the steps of 1 repeat, emulated)")
    (line,) = so_far.add(store, record(store, trial(4, 1), 0.20))
    assert line.startswith("so far: one on 4 nodes: 50.0 % of linear (")


def test_the_third_repeat_gives_an_interval_of_repeats_and_others_nothing_new(store: RunDir) -> None:
    so_far, said = planned(), []
    for repeat, step_s in ((1, 0.11), (2, 0.112), (3, 0.111), (4, 0.11)):
        so_far.add(store, record(store, replace(trial(1, 1), id=f"a{repeat}", repeat=repeat), 0.10))
        said.append(so_far.add(store, record(store, replace(trial(2, 1), id=f"b{repeat}", repeat=repeat), step_s)))
    assert [len(lines) for lines in said] == [1, 0, 1, 0]
    assert said[2][0].endswith(" 3 repeats, emulated)")


def test_nothing_is_said_of_what_has_no_weak_scaling_or_no_steps(store: RunDir) -> None:
    so_far = planned()
    base = record(store, trial(1, 1), 0.1)
    assert so_far.add(store, replace(base, scaling=("strong",))) == []
    assert so_far.add(store, replace(base, mechanism="restart")) == []
    so_far.add(store, base)
    assert so_far.add(store, trial(2, 1)) == []  # recorded nothing


def test_one_step_has_no_interval() -> None:
    one, same, some = pace_of([8.0], [1.0]), pace_of([8.0, 8.0], [1.0, 1.0]), pace_of([8.0, 8.0], [1.0, 1.2])
    assert one
    assert same
    assert some
    assert of_steps(one, some) == of_steps(same, same) == 0.0
    assert of_steps(some, same) > 0
    assert pace_of([], []) is None


def test_a_slow_step_counts_with_its_time() -> None:
    found = pace_of([10.0] * 4, [1.0, 1.0, 1.0, 7.0])
    assert found
    assert found.rate == pytest.approx(4.0)


def test_it_agrees_with_the_report(tmp_path: Path) -> None:
    run = make(tmp_path, Knobs(nodes=(1, 2), scalings=("weak",), repeats=1))
    found = pick(results.analyse(run).figures, "efficiency", nodes=2)
    assert found
    known = [
        replace(trial(it["nodes"], 1), id=it["id"], warmup_steps=it["warmup_steps"])
        for it in run.read("plan")["trials"]
    ]
    so_far = planned()
    (line,) = [line for it in known for line in so_far.add(run, it)]
    assert float(line.split(": ")[2].split(" %")[0]) == pytest.approx(found["median"], abs=0.2)
    assert len(measured_steps(run, known[0])[0]) == 17  # of 20, three warm up
