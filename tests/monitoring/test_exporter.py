"""What a run's events become at /metrics, and that nothing that happens to a run or to the exporter spoils it."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proving_ground.bench.rundir import LOCK
from proving_ground.monitoring import exporter
from proving_ground.monitoring.board import Board
from proving_ground.monitoring.exporter import STUCK_S, Watched, name_of, serving
from proving_ground.monitoring.intake import Intake
from proving_ground.monitoring.metrics import METRICS
from tests.monitoring.conftest import Recorded

JOB = {"run": "s/20260102T030405Z-c0de", "trial": "t001"}
N1 = {**JOB, "node": "n1"}
W1 = {**N1, "slot": "0"}


class Scraped:
    """A watched run and what a scrape of it says."""

    def __init__(self, watched: Watched, port: int) -> None:
        self.watched, self.port = watched, port

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        self.watched.poll()
        families = text_string_to_metric_families(self.get("/metrics")[1])
        return {(it.name, frozenset(it.labels.items())): it.value for family in families for it in family.samples}

    def value(self, name: str, labels: dict[str, str]) -> float | None:
        return self.samples().get((name, frozenset(labels.items())))


@pytest.fixture
def scraped(recorded: Recorded) -> Iterator[Scraped]:
    watched = Watched(recorded.run.path, price=3.0)
    with serving(watched, "127.0.0.1", 0) as port:
        yield Scraped(watched, port)


def test_steps_become_series(recorded: Recorded, scraped: Scraped) -> None:
    before = time.time()
    for number in (1, 2, 3):
        recorded.step(number)
    after = time.time()
    found = scraped.samples()

    def value(name: str, labels: dict[str, str]) -> float:
        return found[name, frozenset(labels.items())]

    assert value("training_steps_total", W1) == 3
    assert value("training_samples_total", W1) == 96
    assert value("training_step", W1) == 3
    assert value("training_loss", JOB) == pytest.approx(1 / 3)
    assert value("training_time_seconds_total", {**W1, "part": "backward"}) == pytest.approx(0.15)
    assert value("training_time_seconds_total", {**W1, "part": "other"}) == pytest.approx(0.0, abs=1e-9)
    assert value("communication_exposed_seconds_total", W1) == pytest.approx(0.03)
    assert value("communication_payload_bytes_total", W1) == 3000
    assert value("training_step_seconds_count", N1) == 3
    assert value("training_step_seconds_bucket", {**N1, "le": "0.1"}) == 3
    assert value("training_step_seconds_bucket", {**N1, "le": "0.05"}) == 0
    assert before - 0.1 < value("training_last_step_timestamp_seconds", W1) < after + 0.1
    assert value("node_clock_offset_seconds", N1) == pytest.approx(0, abs=0.1)
    assert value("recovery_world_size", JOB) == 3
    assert value("training_process_up", {**W1, "role": "worker"}) == 1
    assert value("training_price_dollars_per_hour", JOB) == 3


def test_only_defined_metrics_are_told_with_their_labels(recorded: Recorded, scraped: Scraped) -> None:
    recorded.step(1)
    for name, labels in scraped.samples():
        bare = name if name in METRICS else name.rpartition("_")[0]
        assert {label for label, _ in labels} - {"le"} == set(METRICS[bare].labels), name


def test_a_failure_and_its_recovery(recorded: Recorded, scraped: Scraped) -> None:
    for number in range(1, 8):
        recorded.step(number)
    recorded.write("harness", "process_exit", trial="t001", node="n2", slot=0, pid=2, code=-9)
    recorded.write("t001.n1.launch", "detected", why="worker_failed")
    assert scraped.value("training_process_up", {**N1, "node": "n2", "slot": "0", "role": "worker"}) == 0
    assert scraped.value("recovery_in_progress", JOB) == 1
    recorded.write("harness", "process_start", trial="t001", node="n2", slot=0, pid=9)
    recorded.write("t001.n1.launch", "workers_start", pids=[3], attempt=0)
    about = {"world_size": 3, "pid": 1, "wall_s": time.time()}
    for node in (1, 2, 3):
        recorded.write(f"t001.n{node}.0", "start", rank=node - 1, **about)
        recorded.write(f"t001.n{node}.0", "resume", step=5, path="/c/x", read_s=0.2)
        recorded.write(f"t001.n{node}.0", "ready", generation=2)
    recorded.step(6, begin_t=time.monotonic())
    found = scraped.samples()
    assert found["recovery_in_progress", frozenset(JOB.items())] == 0
    assert found["recovery_standstill_seconds_count", frozenset(JOB.items())] == 1
    assert found["recovery_lost_steps_total", frozenset(JOB.items())] == 2
    assert found["recovery_restarts_total", frozenset(N1.items())] == 1
    assert found["recovery_restarts_total", frozenset({**N1, "node": "n2"}.items())] == 0
    assert found["checkpoint_loads_total", frozenset(JOB.items())] == 1  # not one a rank
    assert found["training_process_up", frozenset({**N1, "node": "n2", "slot": "0", "role": "worker"}.items())] == 1


def test_a_step_that_had_begun_before_the_symptom_is_no_recovery(recorded: Recorded, scraped: Scraped) -> None:
    recorded.step(1)
    begun = time.monotonic()
    recorded.write("t001.n1.launch", "detected", why="worker_failed")
    recorded.step(2, begin_t=begun - 0.1)
    assert scraped.value("recovery_in_progress", JOB) == 1


def test_a_job_that_is_being_ended_has_nothing_to_recover_from(recorded: Recorded, scraped: Scraped) -> None:
    recorded.step(1)
    for node in ("n1", "n2", "n3"):
        recorded.write(f"t001.{node}.launch", "asked_to_leave")
    recorded.write("t001.n1.launch", "detected", why="worker_failed")
    assert scraped.value("recovery_in_progress", JOB) == 0
    assert scraped.value("recovery_evictions_total", N1) == 1


def test_a_node_that_has_to_leave_alone_is_a_symptom(recorded: Recorded, scraped: Scraped) -> None:
    recorded.step(1)
    recorded.write("t001.n1.launch", "asked_to_leave")
    recorded.write("t001.n2.launch", "detected", why="worker_failed")
    assert scraped.value("recovery_in_progress", JOB) == 1


def test_checkpoints(recorded: Recorded, scraped: Scraped, tmp_path: Path) -> None:
    path = str(tmp_path / "step-10")
    recorded.write("t001.n1.0", "checkpoint", step=10, path=path, bytes=500, block_s=0.02, durable_s=0.4)
    recorded.write("t001.n1.0", "error", message="checkpoint of step 20 not saved: full", kind="OSError", fatal=False)
    recorded.write("t001.n1.0", "quarantine", path="x", why="checksum")
    found = scraped.samples()
    job = frozenset(JOB.items())
    assert found["checkpoint_saves_total", job] == 1
    assert found["checkpoint_failures_total", job] == 1
    assert found["checkpoint_quarantined_total", job] == 1
    assert found["checkpoint_save_seconds_sum", job] == 0.4
    assert 0 < found["checkpoint_disk_free_bytes", job] <= found["checkpoint_disk_size_bytes", job]


def test_how_full_the_checkpoints_disk_is_comes_from_whoever_sees_it(
    recorded: Recorded, scraped: Scraped, tmp_path: Path
) -> None:
    path = str(tmp_path / "step-10")
    recorded.write("t001.n1.0", "checkpoint", step=10, path=path, bytes=500, block_s=0.02)
    recorded.write("harness", "machine", trial="t001", volume={"size": 1000, "free": 40}, throttled_s={"n1": 2.5})
    found = scraped.samples()
    job = frozenset(JOB.items())
    assert found["checkpoint_disk_size_bytes", job] == 1000
    assert found["checkpoint_disk_free_bytes", job] == 40
    assert found["node_throttled_seconds_total", frozenset(N1.items())] == 2.5


def test_the_coordinators_end_is_seen_though_its_node_is_none_of_the_jobs(recorded: Recorded, scraped: Scraped) -> None:
    recorded.write("harness", "process_start", trial="t001", node="n4", slot=0, pid=2, serves=True)
    recorded.write("harness", "neighbour_exit", trial="t001", node="n4", slot=0, pid=2, code=-9)
    assert scraped.value("training_process_up", {**N1, "node": "n4", "slot": "0", "role": "coordinator"}) == 0


def test_what_a_node_is_for_says_the_plan_and_not_its_name() -> None:
    """A node that comes last may train, one that is called otherwise may coordinate."""
    nodes = [{"name": "head", "role": "coordinates"}, {"name": "n9", "role": "trains"}]
    board = Board()
    intake = Intake(board, "r", {"trials": [{"id": "t001", "nodes": 1}], "cluster": {"nodes": nodes}}, None, 0.0)
    intake.take({"t": 1.0, "source": "harness", "trial": "t001", "event": "trial_start"})
    for node in ("n9", "head"):
        about = {"trial": "t001", "node": node, "slot": 0, "pid": 1}
        intake.take({"t": 1.0, "source": "harness", "event": "process_start", **about})
    up = {role: board.get("training_process_up", ("r", "t001", node, "0", role))
          for node, role in (("n9", "worker"), ("head", "coordinator"))}  # fmt: skip
    assert up == {"worker": 1, "coordinator": 1}


def test_a_process_that_ended_well_is_no_failure(recorded: Recorded, scraped: Scraped) -> None:
    recorded.write("harness", "process_exit", trial="t001", node="n1", slot=0, pid=1, code=0)
    assert scraped.value("training_process_up", {**W1, "role": "worker"}) is None


def test_an_ended_job_has_no_series_and_late_events_do_not_bring_it_back(recorded: Recorded, scraped: Scraped) -> None:
    recorded.step(1)
    assert scraped.value("training_loss", JOB) == 1
    recorded.write("harness", "trial_end", trial="t001", ok=True, why="")
    assert [key for key in scraped.samples() if ("trial", "t001") in key[1]] == []
    recorded.step(2)
    assert [key for key in scraped.samples() if ("trial", "t001") in key[1]] == []
    recorded.begin()
    assert scraped.value("training_nodes_planned", JOB) == scraped.value("training_ranks_planned", JOB) == 3


def test_faults_are_there_for_annotations_as_long_as_they_are_held(recorded: Recorded, scraped: Scraped) -> None:
    recorded.write("harness", "fault_begin", trial="t001", fault="f01", kind="hang", target=["n2"])
    labels = {**JOB, "fault": "f01", "kind": "hang", "target": "n2"}
    assert scraped.value("chaos_fault_active", labels) == 1
    recorded.write("harness", "fault_end", trial="t001", fault="f01", kind="hang")
    assert scraped.value("chaos_fault_active", labels) is None


def test_fields_of_the_wrong_type_are_counted_and_spoil_nothing(recorded: Recorded, scraped: Scraped) -> None:
    recorded.write("t001.n1.0", "step", step=1, samples="many")
    recorded.write("t001.n1.0", "eval", step=1, split="test", metric="accuracy", value=None)
    recorded.write("harness", "process_exit", trial="t001")
    recorded.step(2)
    found = scraped.samples()
    assert found["training_step", frozenset(W1.items())] == 2
    assert found["exporter_lines_refused_total", frozenset({"run": JOB["run"]}.items())] >= 3


def test_a_number_beyond_all_arithmetic_is_counted_and_the_next_event_is_taken(
    recorded: Recorded, scraped: Scraped
) -> None:
    """No file can hold it so, but an intake must outlive whatever a reaction works out."""
    scraped.watched.poll()
    intake = scraped.watched._taker
    assert intake is not None
    about = {"source": "n1.0", "trial": "t001", "t": time.monotonic(), "step": 1}
    for beyond in (
        {"event": "step", "samples": 10**400},
        {"event": "eval", "split": "s", "metric": "m", "value": 10**400},
    ):
        intake.take({**about, **beyond})
    assert intake.refused == 2
    recorded.step(2)
    assert scraped.value("training_step", W1) == 2


def test_a_new_exporter_knows_the_same_as_one_that_was_there_all_the_time(recorded: Recorded, scraped: Scraped) -> None:
    for number in (1, 2):
        recorded.step(number)
        scraped.watched.poll()
    recorded.append("t001.n1.0", '{"t": 1, "ev')

    def told(it: Scraped) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        machine = ("exporter_", "node_", "pg_node_")
        return {key: value for key, value in it.samples().items() if not key[0].startswith(machine)}

    again = Watched(recorded.run.path, price=3.0)
    with serving(again, "127.0.0.1", 0) as port:
        assert told(Scraped(again, port)) == told(scraped)


def test_an_exporter_that_begins_late_tells_nothing_before_it_knows_all(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter that grows while the past is read would be news: CheckpointFailed and WorkersRestarted fired."""
    for number in (1, 2, 3):
        recorded.step(number)
    again, made, seen = Watched(recorded.run.path), exporter.taker_of, set[int]()
    with serving(again, "127.0.0.1", 0) as port:
        scraped = Scraped(again, port)

        def asked_meanwhile(*about: Any) -> Any:
            taker = made(*about)
            take = taker.take

            def scraped_first(record: Any) -> None:
                seen.update(scraped.get(path)[0] for path in ("/metrics", "/readyz"))
                take(record)

            monkeypatch.setattr(taker, "take", scraped_first)
            return taker

        monkeypatch.setattr(exporter, "taker_of", asked_meanwhile)
        assert scraped.get("/metrics")[0] == 503
        again.poll()
        assert (seen, scraped.get("/metrics")[0]) == ({503}, 200)
        assert scraped.value("training_step", W1) == 3


def test_a_link_is_followed_to_the_next_run(tmp_path: Path) -> None:
    first, second = Recorded(tmp_path / "s" / "a"), Recorded(tmp_path / "s" / "b")
    link = tmp_path / "s" / "latest"
    watched = Watched(link)
    watched.poll()
    assert "is this a run directory" in watched.why_not
    for made in (first, second):
        made.begin()
        made.step(1)
        link.unlink(missing_ok=True)
        link.symlink_to(made.run.path)
        watched.poll()
        runs = {labels[0] for labels in watched.board.values["training_step"]}
        assert runs == {name_of(made.run)}
    watched.close()


def test_a_million_series_by_a_label_gone_wrong_are_refused(recorded: Recorded, scraped: Scraped) -> None:
    recorded.step(1)
    scraped.watched.poll()
    board = scraped.watched.board
    for number in range(1_000_000):
        board.add("training_errors_total", (*JOB.values(), "n1", f"kind-{number}", "true"))
    held = len(board.values["training_errors_total"])
    assert held == board.series_of_a_metric
    found = scraped.samples()
    assert held < len(found) < held + 1000, "what was refused is told in one number"
    refused = found["exporter_series_refused_total", frozenset({("metric", "training_errors_total")})]
    assert held + refused == pytest.approx(1_000_000, abs=10)
    assert found["training_step", frozenset(W1.items())] == 1  # the others are still told


def test_the_limit_of_all_series_together_holds() -> None:
    board = Board(series_of_a_metric=10, series=15)
    for number in range(20):
        board.set("training_loss", ("r", str(number)), 1)
        board.observe("recovery_standstill_seconds", ("r", str(number)), 1)
    assert board.count == 15
    board.drop_job("r")
    assert board.count == 0
    board.set("training_loss", ("r", "x" * 201), 1)
    assert board.get("training_loss", ("r", "x" * 201)) is None


def test_health_and_readiness(recorded: Recorded, scraped: Scraped) -> None:
    assert scraped.get("/readyz") == (503, "not looked yet\n")
    scraped.watched.poll()
    assert scraped.get("/readyz") == (200, "ok\n")
    assert scraped.get("/healthz") == (200, "ok\n")
    scraped.watched.looked_t -= STUCK_S + 1
    assert scraped.get("/healthz")[0] == 503
    assert scraped.get("/other") == (404, "allowed: /metrics, /healthz, /readyz\n")
    del recorded


def test_a_port_in_use_is_told_in_one_line(scraped: Scraped) -> None:
    with (
        pytest.raises(OSError, match=rf"port {scraped.port} of 127.0.0.1: .*; choose another with --port"),
        serving(Watched(Path("x")), "127.0.0.1", scraped.port),
    ):
        pass


def test_trainers_without_the_harness_are_followed_by_their_events_alone(tmp_path: Path) -> None:
    """What `torchrun`, Slurm or a pod starts: no plan, nobody who says that a job begins or is over."""
    bare = Recorded(tmp_path / "jobs" / "mine")
    for document in ("plan", "provenance", "spec"):
        (bare.run.path / f"{document}.json").unlink()
    mine = {"run": "jobs/mine", "trial": "t001"}
    followed = Watched(bare.run.path)
    with serving(followed, "127.0.0.1", 0) as port:
        scraped = Scraped(followed, port)

        def live(step: int) -> None:
            for node in ("n1", "n2"):
                bare.write(f"t001.{node}.0", "start", rank=0, world_size=2, pid=1, wall_s=time.time())
                bare.write(f"t001.{node}.0", "ready", generation=1, gradient_bytes=1000, parameters=250, steps=500)
            bare.step(step, nodes=2)

        followed.poll()
        assert followed.why_not, "nothing is there yet"
        live(1)
        assert scraped.value("training_steps_total", {**mine, "node": "n2", "slot": "0"}) == 1
        assert scraped.value("checkpoint_failures_total", mine) == 0, "there from the beginning"
        restarts = {**mine, "node": "n1"}
        assert scraped.value("recovery_restarts_total", restarts) == 0
        bare.write("t001.n1.0", "end", step=1, reason="done")
        assert scraped.value("training_steps_total", {**mine, "node": "n2", "slot": "0"}) is None
        bare.step(2, nodes=2)
        assert scraped.value("training_steps_total", {**mine, "node": "n2", "slot": "0"}) is None, "it is over"
        live(3)
        assert scraped.value("training_step", {**mine, "node": "n2", "slot": "0"}) == 3, "until it begins again"


def aged(recorded: Recorded, seconds: float) -> None:
    """Make all event files as old as if nobody had written to them for so long."""
    for file in recorded.run.events.glob("*.jsonl"):
        os.utime(file, (time.time() - seconds,) * 2)


def jobs_told(scraped: Scraped) -> set[str]:
    """The jobs that have any series."""
    return {trial for _, labels in scraped.samples() for name, trial in labels if name == "trial"}


def test_a_run_that_ends_takes_jobs_with_it_that_never_said_so(recorded: Recorded, scraped: Scraped) -> None:
    recorded.step(1)
    assert jobs_told(scraped) == {"t001"}
    recorded.write("harness", "run_end")
    recorded.step(2)
    assert jobs_told(scraped) == set()


def test_a_sealed_run_has_no_jobs(recorded: Recorded, scraped: Scraped) -> None:
    recorded.step(1)
    assert jobs_told(scraped) == {"t001"}
    recorded.run.write("seal", {})
    assert jobs_told(scraped) == set()


def test_a_job_whose_harness_was_killed_does_not_stall_for_ever(recorded: Recorded, scraped: Scraped) -> None:
    """Nobody holds the lock of its run; as long as somebody does, a silent job is one that stalls."""
    recorded.step(1)
    with another_process_holding(recorded.run.path / LOCK):
        aged(recorded, 10 * exporter.QUIET_S)
        assert jobs_told(scraped) == {"t001"}
    assert jobs_told(scraped) == set()


def test_a_run_that_was_heard_of_a_moment_ago_is_not_looked_into(recorded: Recorded, scraped: Scraped) -> None:
    """Its lock may be held by who knows whom for a moment: a harness that begins must not find it taken."""
    recorded.step(1)
    aged(recorded, exporter.QUIET_S / 2)
    assert jobs_told(scraped) == {"t001"}


@contextlib.contextmanager
def another_process_holding(lock: Path) -> Iterator[None]:
    """A harness that lives: its lock is held."""
    held = (
        f"import fcntl, sys; file = open({str(lock)!r}, 'w')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield
        process.communicate()


def test_a_job_without_the_harness_that_was_cut_off_is_forgotten_after_the_stated_silence(tmp_path: Path) -> None:
    bare = Recorded(tmp_path / "jobs" / "mine")
    for document in ("plan", "provenance", "spec"):
        (bare.run.path / f"{document}.json").unlink()
    watched = Watched(bare.run.path)
    with serving(watched, "127.0.0.1", 0) as port:
        scraped = Scraped(watched, port)
        bare.write("t001.n1.0", "start", rank=0, world_size=1, pid=1, wall_s=time.time())
        bare.step(1, nodes=1)
        aged(bare, exporter.FORGOTTEN_S / 2)
        assert jobs_told(scraped) == {"t001"}, "it stalls, and an alert must say so"
        aged(bare, exporter.FORGOTTEN_S + 60)
        assert jobs_told(scraped) == set()
        bare.step(2, nodes=1)
        assert jobs_told(scraped) == {"t001"}, "it was only stopped"
