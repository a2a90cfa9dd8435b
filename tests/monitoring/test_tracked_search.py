"""A search in MLflow: a parent with what was asked, a child for each trial, and how each ended."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.monitoring import tracked_search, tracking
from proving_ground.monitoring.tracked_search import SearchReading
from proving_ground.monitoring.tracking import Begin, End, Points
from tests.programs import program
from tests.search import recorded

pytestmark = pytest.mark.timeout(400)  # importing MLflow takes seconds, on a busy machine many

ROOT = Path(__file__).parent.parent.parent
ASKED: dict[str, Any] = {**recorded.ASKED, "training": {"model": "digits"}}
SITTING = {"t": 101.0, "source": "harness", "event": "sitting", "sitting": 1, "wall_s": 101.0}


def of(trial: str, t: float, event: str, **more: Any) -> dict[str, Any]:
    return {"t": 100.0 + t, "source": "harness", "event": event, "sitting": 1, "trial": trial, **more}


def told(trial: str, t: float, event: str, **more: Any) -> dict[str, Any]:
    return {**of(trial, t, event, **more), "source": "n1.0"}


def reading(*records: dict[str, Any], **asked: Any) -> SearchReading:
    made = SearchReading(ASKED | asked)
    for record in (SITTING, *records):
        made.take(record)
    return made


def points(made: SearchReading, trial: str = "") -> list[tuple[str, float, float, int]]:
    kept = [point for it in made.todo if isinstance(it, Points) and it.trial == trial for point in it.points]
    return [(it.name, it.value, it.wall_s, it.step) for it in kept]


def test_the_parent_has_what_was_asked_and_a_child_its_parameters() -> None:
    made = reading(of("t001", 2, "started", params={"lr": 0.1}))
    whole, child = (it for it in made.todo if isinstance(it, Begin))
    assert (whole.trial, whole.wall_s, whole.parameters["algorithm"]) == ("", 101.0, "asha")
    assert whole.parameters["space.lr"] == '{"loguniform": [0.001, 1.0]}'
    assert (child.trial, child.wall_s) == ("t001", 102.0)
    assert child.parameters == {"training.model": "digits", "lr": 0.1}


def test_trials_that_run_at_once_are_kept_apart() -> None:
    begun = [of(it, 2, "started", params={"lr": 0.1}) for it in ("t001", "t002")]
    begun += [told(it, 3, "start", rank=0, world_size=1, pid=1, wall_s=3.0) for it in ("t001", "t002")]
    steps = [told("t001", 4, "step", step=1, samples=8, loss=0.5), told("t002", 5, "step", step=1, samples=8, loss=0.7)]
    ends = [told("t001", 6, "eval", step=1, split="test", metric="accuracy", value=0.9)]
    made = reading(*begun, *steps, *ends)
    assert points(made, "t001") == [("train/loss", 0.5, 104, 1), ("val/accuracy", 0.9, 106, 1)]
    assert points(made, "t002") == [("train/loss", 0.7, 105, 1)]


def test_the_best_so_far_is_told_at_each_end_and_no_failed_trial_has_it() -> None:
    records: list[dict[str, Any]] = []
    for number, (value, end) in enumerate([(0.4, "finished"), (0.9, "failed"), (0.6, "stopped")], 1):
        name = f"t{number:03d}"
        records += [of(name, number, "started", params={"lr": 0.1}), of(name, number, "reported", step=9, value=value)]
        records += [of(name, number + 0.5, end, why="asha" if end == "stopped" else "")]
    made = reading(*records)
    assert points(made) == [("best/accuracy", 0.4, 101.5, 1), ("best/accuracy", 0.4, 102.5, 2),
                            ("best/accuracy", 0.6, 103.5, 3)]  # fmt: skip
    assert [(it.ok, it.why) for it in made.todo if isinstance(it, End)] == [
        (True, "finished"), (False, "failed"), (True, "stopped: asha"),
    ]  # fmt: skip
    down = reading(*records[:3], *records[6:], mode="min")
    assert [it[1] for it in points(down)] == [0.4, 0.4]


def test_names_that_mlflow_refuses_are_told_as_it_allows() -> None:
    """Of the metric that is asked for, and of a parameter of a trial; with one of them as it is, all would end."""
    start = of("t001", 1, "started", params={"lr@1": 0.1})
    copied = of("t001", 3, "copied", donor="t002", step=20, sha256="ab", params={"lr@1": 0.3})
    ends = [of("t001", 4, "reported", step=30, value=0.4), of("t001", 5, "finished")]
    made = reading(start, copied, *ends, algorithm="pbt", metric="acc@1")
    assert [it[:2] for it in points(made)] == [("best/acc_1", 0.4)]
    assert [it[:2] for it in points(made, "t001")] == [("parameters/lr_1", 0.1), ("parameters/lr_1", 0.3)]


def test_what_a_population_goes_on_with_is_a_metric() -> None:
    copied = of("t001", 3, "copied", donor="t002", step=20, sha256="ab", params={"lr": 0.3})
    made = reading(of("t001", 2, "started", params={"lr": 0.1}), copied, algorithm="pbt")
    assert [(it[1], it[3]) for it in points(made, "t001") if it[0] == "parameters/lr"] == [(0.1, 0), (0.3, 20)]


def test_a_trial_that_is_begun_again_is_the_same_one_and_no_recovery() -> None:
    again = {**SITTING, "t": 500.0, "sitting": 2}
    start, anew = ({"rank": 0, "world_size": 1, "pid": pid, "wall_s": 0.0} for pid in (1, 2))
    made = reading(
        of("t001", 2, "started", params={"lr": 0.1}), told("t001", 3, "start", **start),
        told("t001", 4, "step", step=1, samples=8, loss=0.5), of("", 5, "over", why="budget"), again,
        of("t001", 410, "started", params={"lr": 0.1}), told("t001", 411, "start", **anew),
        told("t001", 412, "step", step=1, samples=8, loss=0.4), of("t001", 413, "finished"),
    )  # fmt: skip
    assert len([it for it in made.todo if isinstance(it, Begin)]) == 2
    assert made.todo[-1] == End("t001", 513.0, ok=True, checkpoints=[], why="finished")
    assert {it[0] for it in points(made, "t001")} == {"train/loss"}
    assert not made.over


def test_what_a_trainer_tells_before_the_driver_told_of_its_trial_waits() -> None:
    early = [told("t001", 2, "start", rank=0, world_size=1, pid=1, wall_s=2.0)]
    made = reading(*early, of("t001", 3, "started", params={"lr": 0.1}),
                   told("t001", 4, "step", step=1, samples=8, loss=0.5))  # fmt: skip
    assert [type(it) for it in made.todo] == [Begin, Begin, Points]
    assert points(made, "t001") == [("train/loss", 0.5, 104, 1)]


def test_values_of_trials_that_alternate_go_in_few_requests() -> None:
    names = ("t001", "t002")
    begun = [of(it, 2, "started", params={"lr": 0.1}) for it in names]
    begun += [told(it, 3, "start", rank=0, world_size=1, pid=1, wall_s=3.0) for it in names]
    steps = [told(it, 4 + at, "step", step=at, samples=8, loss=0.5) for at in range(1, 50) for it in names]
    made = reading(*begun, *steps)
    assert len([it for it in made.todo if isinstance(it, Points)]) == 2
    made.close()
    made.take(told("t001", 99, "step", step=50, samples=8, loss=0.5))
    assert len([it for it in made.todo if isinstance(it, Points)]) == 3, "what is on its way is not added to"


def test_a_search_that_goes_on_after_a_reboot_is_in_order_and_ends(tmp_path: Path) -> None:
    """Its clock begins anew near zero; Unix time does not."""
    first, second = 1e6, 100.0  # s since boot
    ledger = [
        {"t": first, "event": "sitting", "sitting": 1, "wall_s": 5e8},
        {"t": first + 1, "event": "started", "sitting": 1, "trial": "t001", "params": {"lr": 0.1}},
        {"t": second, "event": "sitting", "sitting": 2, "wall_s": 5e8 + 900},
        {"t": second + 1, "event": "started", "sitting": 2, "trial": "t002", "params": {"lr": 0.2}},
        {"t": second + 9, "event": "finished", "sitting": 2, "trial": "t002"},
    ]  # fmt: skip
    events = {"t001": (first + 2, 5e8 + 2), "t002": (second + 2, 5e8 + 902)}
    store = RunDir(tmp_path / "made" / "id")
    store.events.mkdir(parents=True)
    (store.path / "trials.jsonl").write_text("".join(json.dumps(it) + "\n" for it in ledger))
    for name, (t, wall_s) in events.items():
        made = [{"t": t, "event": "start", "rank": 0, "world_size": 1, "pid": 1, "wall_s": wall_s},
                {"t": t + 1, "event": "step", "step": 1, "samples": 8, "loss": 0.5}]  # fmt: skip
        (store.events / f"{name}.n1.0.jsonl").write_text("".join(json.dumps(it) + "\n" for it in made))
    found = SearchReading(ASKED)
    with contextlib.closing(found.follow(store)) as follower:
        for record in follower.new():
            found.take(record)
    assert [points(found, it)[0] for it in events] == [
        ("train/loss", 0.5, 5e8 + 3, 1), ("train/loss", 0.5, 5e8 + 903, 1)
    ]  # fmt: skip
    assert found.newest_t == 5e8 + 909


def test_the_seal_and_the_report_are_waited_for(tmp_path: Path) -> None:
    search = recorded.write(tmp_path / "runs", recorded.three())
    (search.path / "seal.json").rename(search.path / "later.json")
    finished, slept = list[bool](), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            (search.path / "later.json").rename(search.path / "seal.json")
            (search.path / "results.json").write_text("{}")

    class Kept:
        def do(self, _action: Any) -> None: ...

        def finish(self) -> None:
            finished.append((search.path / "seal.json").exists())

    found = tracked_search.of_search(search)
    newest = time.time()
    found.newest_t = newest  # it has just ended
    tracking.track(search, found, Kept(), print, 1, sleep)
    assert (finished, len(slept)) == ([True], 3)


def test_odd_records_are_passed_over() -> None:
    odd = [of("t009", 2, "finished"), of("t001", 2, "started", params=[1]), of("t001", 2, "reported", value="x"),
           told("t404", 3, "step", step=1), of("t001", 3, "nonsense"),
           told("t001", 4, "start", rank=0, world_size=1, pid=1, wall_s=4.0),
           told("t001", 5, "step", step=1, samples=8, loss=0.5)]  # fmt: skip
    made = reading(*odd)
    assert points(made) == []
    assert [type(it) for it in made.todo] == [Begin]


LOOK = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
runs = client.search_runs([it.experiment_id for it in client.search_experiments()])
print(json.dumps(sorted([[
    it.data.tags["proving_ground.trial"], it.info.run_id, it.info.status, it.data.params, it.data.metrics, it.data.tags,
    sorted(a.path for a in client.list_artifacts(it.info.run_id)),
] for it in runs])))
"""


def test_a_search_in_sqlite_is_a_parent_with_children(tmp_path: Path) -> None:
    search = recorded.write(tmp_path / "runs", recorded.three())
    words = program("monitoring", "--runs", str(tmp_path / "runs"), "track", str(search.path))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    uri = f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert done.stdout == f"3 values of search {search.run_id} in {uri}\n"
    asked = subprocess.run(
        [sys.executable, "-c", LOOK, uri], capture_output=True, text=True, check=True,
        env=os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"},
    )  # fmt: skip
    whole, *children = json.loads(asked.stdout)
    assert (whole[2], whole[4]) == ("FINISHED", {"best/accuracy": 0.9})
    assert {"search.json", "seal.json", "provenance.json"} <= set(whole[6])
    assert [it[0] for it in children] == ["t001", "t002", "t003"]
    assert {it[5]["mlflow.parentRunId"] for it in children} == {whole[1]}
    assert [it[2] for it in children] == ["FINISHED", "FINISHED", "FAILED"]
    assert [it[3]["lr"] for it in children] == ["0.1", "0.002", "0.9"]
    assert children[1][5]["proving_ground.end"] == "stopped: asha"
    assert children[2][5]["proving_ground.end"] == "failed: the loss of step 3 is nan"


def test_a_search_without_what_was_asked_is_one_line(tmp_path: Path) -> None:
    search = recorded.write(tmp_path / "runs", recorded.three())
    search.spec.write_text("[]")
    with pytest.raises(RunDirError, match="has no table 'search'"):
        tracked_search.of_search(search)
