"""What a search, a load and a queue become at /metrics."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.monitoring.exporter import Watched
from tests.monitoring.conftest import Recorded

ASKED = {"algorithm": "asha", "metric": "accuracy", "mode": "max"}
OPEN: list[Watched] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """What a test followed is let go of."""
    yield
    while OPEN:
        OPEN.pop().close()


def follow(path: Path) -> Watched:
    OPEN.append(Watched(path))
    return OPEN[-1]


class Written:
    """A directory with two clocks, an exporter that follows it, and a pen."""

    def __init__(self, root: Path, name: str, document: Mapping[str, Any]) -> None:
        self.run = RunDir(root / "s" / "r")
        self.run.events.mkdir(parents=True)
        self.run.write("provenance", {"wall_s": 1000.0, "t": 0.0})
        self.run.write(name, document)
        self.watched = follow(self.run.path)

    def write(self, file: str, t: float, event: str, **fields: object) -> None:
        """Append an event."""
        with (self.run.path / file).open("a") as out:
            out.write(json.dumps({"t": t, "event": event, **fields}) + "\n")

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """Labels behind the run → value."""
        self.watched.poll()
        return {labels[1:]: value for labels, value in self.watched.board.values.get(name, {}).items()}

    def value(self, name: str, *labels: str) -> float | None:
        return self.values(name).get(labels)

    def series(self) -> list[str]:
        """The names of what is told of what is watched."""
        self.watched.poll()
        own = ("search_", "endpoint_", "queue_")
        kept = self.watched.board.values | self.watched.board.distributions
        return [name for name, held in kept.items() if held and name.startswith(own)]


class Search(Written):
    """A search of four trials."""

    def __init__(self, root: Path, **asked: object) -> None:
        super().__init__(root, "search", {"search": {**ASKED, **asked}})
        self.sitting(10.0, 2000.0)

    def sitting(self, t: float, wall_s: float) -> None:
        self.record(t, "sitting", wall_s=wall_s, planned=4)

    def record(self, t: float, event: str, **fields: object) -> None:
        self.write("trials.jsonl", t, event, sitting=1, **fields)

    def states(self) -> dict[str, float]:
        return {state: count for (state,), count in self.values("search_trials").items() if count}


def test_trials_by_state(tmp_path: Path) -> None:
    search = Search(tmp_path)
    assert search.states() == {"waiting": 4}
    for trial in ("t001", "t002", "t003", "t004"):
        search.record(12.0, "started", trial=trial, params={})
    assert search.states() == {"running": 4}
    search.record(13.0, "finished", trial="t001")
    search.record(13.0, "stopped", trial="t002", why="asha")
    search.record(13.0, "stopped", trial="t003", why="budget")
    search.record(13.0, "lost", trial="t004")
    assert search.states() == {"finished": 1, "stopped": 1, "cut_off": 1, "waiting": 1}
    search.record(14.0, "started", trial="t004", params={})
    search.record(15.0, "failed", trial="t004", why="nan")
    assert search.states() == {"finished": 1, "stopped": 1, "cut_off": 1, "failed": 1}


def test_the_best_value_is_of_no_trial_that_failed(tmp_path: Path) -> None:
    search = Search(tmp_path)
    for trial, value in (("t001", 0.5), ("t002", 0.9), ("t001", 0.4)):
        search.record(12.0, "reported", trial=trial, step=1, value=value)
    assert search.value("search_best_value") == 0.9
    assert search.values("search_trial_value") == {("t001",): 0.4, ("t002",): 0.9}
    assert search.value("search_last_report_timestamp_seconds") == 2002.0
    search.record(13.0, "failed", trial="t002", why="nan")
    assert search.value("search_best_value") == 0.5
    assert search.values("search_trial_value") == {("t001",): 0.4}
    lowest = Search(tmp_path / "lowest", mode="min")
    for value in (0.5, 0.3, 0.4):
        lowest.record(12.0, "reported", trial="t001", step=1, value=value)
    assert lowest.value("search_best_value") == 0.3


def test_what_a_search_has_used_of_its_budget(tmp_path: Path) -> None:
    search = Search(tmp_path, budget_s=600, budget_steps=1000)
    for step in (1, 2, 2):
        search.write("events/t001.n1.0.jsonl", 20.0, "step", step=step, samples=1)
    assert search.value("search_steps_total") == 3
    assert (search.value("search_budget_seconds"), search.value("search_budget_steps")) == (600, 1000)
    assert search.value("search_start_timestamp_seconds") == 2000.0
    search.record(29.0, "started", trial="t001", params={})
    search.record(30.0, "reported", trial="t001", step=1, value=0.5)
    search.sitting(5.0, 9000.0)  # after a reboot, long after: the first one took 20 s
    assert search.value("search_start_timestamp_seconds") == 9000.0 - 20.0
    assert search.states() == {"waiting": 4}, "it begins anew"
    assert search.values("search_trial_value") == {}


def test_a_trial_waits_for_its_slot_as_long_as_any_does(tmp_path: Path) -> None:
    search = Search(tmp_path, budget_s=600)
    search.record(15.0, "ready", seconds=5.0)
    assert search.value("queue_oldest_timestamp_seconds", "trial") == 2000.0, "Ray's start is waiting, too"
    assert search.value("queue_told_seconds", "trial") == 600
    for trial in ("t001", "t002", "t003", "t004"):
        search.record(16.0, "started", trial=trial, params={})
    assert search.value("queue_oldest_timestamp_seconds", "trial") is None
    assert Search(tmp_path / "free").value("queue_told_seconds", "trial") is None


def test_a_search_that_is_over_has_no_series_and_its_trials_no_trainings(tmp_path: Path) -> None:
    search = Search(tmp_path)
    search.record(12.0, "started", trial="t001", params={})
    search.write("events/t001.n1.0.jsonl", 12.0, "start", rank=0, world_size=1, pid=1, wall_s=0.0)
    search.write("events/t001.n1.0.jsonl", 13.0, "step", step=1, samples=1, loss=2.0)
    assert "search_info" in search.series()
    assert not [name for name, held in search.watched.board.values.items() if held and name.startswith("training_")]
    search.record(14.0, "over", why="every trial has ended")
    search.write("events/t001.n1.0.jsonl", 15.0, "step", step=2, samples=1)
    assert search.series() == []


def test_a_record_of_nonsense_is_counted_and_the_next_is_taken(tmp_path: Path) -> None:
    search = Search(tmp_path)
    search.record(12.0, "reported", trial="t001", step=1, value="high")
    search.record(12.0, "reported", trial="t001", step=1, value=0.5)
    assert search.value("search_best_value") == 0.5
    list(search.watched.collect())
    assert search.values("exporter_lines_refused_total") == {(): 1}


class Load(Written):
    """A load of levels of 1 and 4 users."""

    def __init__(self, root: Path, **more: object) -> None:
        about = {"model": "digits/1", "engine": "mlflow", "orders": {"levels": [1, 4]}}
        super().__init__(root, "load", {**about, **more})
        self.level(0)

    def line(self, event: str, t: float = 1.0, **fields: object) -> None:
        self.write("events/requests.jsonl", t, event, **fields)

    def level(self, index: int) -> None:
        self.line("level", index=index, wall_s=0.0)

    def request(self, number: int, seconds: float = 0.01, status: int = 200, error: str = "", t: float = 1.0) -> None:
        self.line("begin", t, number=number)
        self.line("end", t, number=number, seconds=seconds, status=status, error=error)


def test_requests_by_outcome_and_in_flight(tmp_path: Path) -> None:
    load = Load(tmp_path)
    assert load.values("endpoint_requests_total") == {("answered",): 0, ("failed",): 0}
    load.request(1)
    load.request(2, status=500)
    load.request(3, status=0, error="reset")
    load.request(4, status=200, error="cut off")
    load.line("begin", 2.0, number=5)
    load.line("begin", 3.0, number=6)
    assert load.values("endpoint_requests_total") == {("answered",): 1, ("failed",): 3}
    assert load.watched.board.distributions["endpoint_latency_seconds"]["s/r",].total == 0.01
    assert load.value("endpoint_in_flight") == 2
    assert load.value("queue_oldest_timestamp_seconds", "request") == 1002.0
    load.line("end", 4.0, number=5, seconds=2.0, status=200, error="")
    assert load.value("queue_oldest_timestamp_seconds", "request") == 1003.0
    load.line("end", 4.0, number=6, seconds=1.0, status=200, error="")
    assert load.value("queue_oldest_timestamp_seconds", "request") is None
    assert load.value("endpoint_in_flight") == 0


def test_what_was_told_is_that_of_the_level(tmp_path: Path) -> None:
    told = [
        {"figure": "p99", "users": None, "seconds": 0.5},
        {"figure": "p99", "users": 4, "seconds": 0.1},
        {"figure": "longest", "users": 1, "seconds": 2.0},
    ]
    load = Load(tmp_path, told=told)
    assert (load.value("endpoint_users"), load.value("endpoint_p99_told_seconds")) == (1, 0.5)
    assert load.value("queue_told_seconds", "request") == 2.0
    load.request(1, seconds=0.5)
    assert load.value("endpoint_late_total") == 0
    load.level(1)
    assert (load.value("endpoint_users"), load.value("endpoint_p99_told_seconds")) == (4, 0.1)
    assert load.value("queue_told_seconds", "request") is None, "of that level nothing was told"
    load.request(2, seconds=0.11)
    load.request(3, seconds=0.11, status=500)  # no answer is late
    assert load.value("endpoint_late_total") == 1
    assert Load(tmp_path / "silent").value("endpoint_late_total") is None


@pytest.mark.parametrize("end", ["level", "seal"])
def test_a_load_that_is_over_or_cut_off_has_no_series(tmp_path: Path, end: str) -> None:
    load = Load(tmp_path)
    load.write("events/replicas.jsonl", 1.0, "replicas", planned=2, up=1, names=["r1"])
    load.request(1)
    assert (load.value("endpoint_replicas_planned"), load.value("endpoint_replicas_up")) == (2, 1)
    if end == "level":
        load.level(2)
    else:
        load.run.write("seal", {"complete": False})
    assert load.series() == []
    load.request(2)
    assert load.series() == []


def test_a_load_of_an_older_version_says_nothing(tmp_path: Path) -> None:
    load = Load(tmp_path, orders={"users": [1], "repeats": 1})
    load.request(1)
    assert load.series() == []


def test_a_job_waits_for_machines_since_the_first_word_of_it(recorded: Recorded) -> None:
    watched = follow(recorded.run.path)
    labels = ("s/20260102T030405Z-c0de", "job")

    def of(name: str) -> float | None:
        watched.poll()
        return watched.board.get(name, labels)

    now, wall = time.monotonic(), time.time()
    recorded.write("harness", "queued", now, why="Resources", wait_s=1800.0)
    recorded.write("harness", "queued", now + 60, why="Priority", wait_s=1800.0)
    assert of("queue_oldest_timestamp_seconds") == pytest.approx(wall, abs=1)
    assert of("queue_told_seconds") == 1800.0
    recorded.write("harness", "cluster_up", now + 61, seconds=61.0, nodes=[])
    assert of("queue_oldest_timestamp_seconds") is None
    assert of("queue_told_seconds") is None
    recorded.write("harness", "queued", now + 90, node="n2", why="ImagePullBackOff")
    assert of("queue_oldest_timestamp_seconds") is None, "the run has its machines; one node waits for another"
