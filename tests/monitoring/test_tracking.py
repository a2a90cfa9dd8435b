"""What is tracked of a run, what happens while the tracking server is away, and that MLflow has all of it at last."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.bench.servers import free_port
from proving_ground.monitoring import tracking
from proving_ground.monitoring.tracking import Action, AwayError, Begin, End, Points, Reading, TrackingError
from tests.programs import program

pytestmark = pytest.mark.timeout(
    400
)  # importing MLflow takes seconds, its server more; several times on a busy machine

ROOT = Path(__file__).parent.parent.parent
PLAN = {"id": "t001", "case": "own", "nodes": 2, "seed": 7, "label": "real", "link_mbps": None, "training": {"lr": 0.1}}
STARTED = {"world_size": 2, "pid": 1, "wall_s": 1.0}


def event(t: float, name: str, source: str = "harness", **more: Any) -> dict[str, Any]:
    return {"t": t, "event": name, "source": source, "trial": "t001", **more}


def step(t: float, source: str, number: int, loss: float = 0.5) -> dict[str, Any]:
    return event(t, "step", source, step=number, samples=8, global_samples=16, loss=loss, step_s=0.1)


def points(*records: dict[str, Any]) -> list[tuple[str, float, float, int]]:
    reading = Reading({"t001": PLAN}, ahead_s=100.0)
    for record in [event(0, "trial_start"), *records]:
        reading.take(record)
    kept = [it for action in reading.todo if isinstance(action, Points) for it in action.points]
    return [(it.name, it.value, it.wall_s, it.step) for it in kept]


def test_the_head_alone_tells_the_metrics_of_the_job() -> None:
    ranks = [event(1, "start", source, rank=rank, **STARTED) for source, rank in (("n1.0", 0), ("n2.0", 1))]
    found = points(*ranks, step(2, "n1.0", 1), step(2, "n2.0", 1, loss=9.0), step(4, "n1.0", 2))
    assert found == [
        ("train/loss", 0.5, 102, 1), ("train/step_time", 0.1, 102, 1),
        ("train/loss", 0.5, 104, 2), ("train/step_time", 0.1, 104, 2), ("train/throughput", 8.0, 104, 2),
    ]  # fmt: skip


def test_after_a_recovery_another_process_may_be_the_head() -> None:
    first = [event(1, "start", "n1.0", rank=0, **STARTED), event(1, "start", "n2.0", rank=1, **STARTED)]
    again = [event(5, "start", "n2.0", rank=0, **STARTED), event(5, "start", "n1.0", rank=1, **STARTED)]
    found = points(*first, step(2, "n1.0", 1), *again, step(9, "n2.0", 2), step(9, "n1.0", 2, loss=9))
    assert [it[:2] for it in found if it[0] != "train/step_time"] == [("train/loss", 0.5), ("train/loss", 0.5)]


def test_in_a_live_job_the_head_changes_with_the_members_and_no_process_starts() -> None:
    first = [event(1, "start", "n1.0", rank=0, **STARTED), event(1, "start", "n2.0", rank=1, **STARTED)]
    alone = event(5, "ready", "n2.0", generation=2, rank=0, world_size=1)
    found = points(*first, step(2, "n1.0", 1), step(2, "n2.0", 1, loss=9), alone, step(6, "n2.0", 2, loss=0.25))
    assert [it[1] for it in found if it[0] == "train/loss"] == [0.5, 0.25]


def test_a_recovery_is_kept_from_the_fault_where_it_is_known_and_from_the_last_step() -> None:
    begun = event(3, "fault_begin", fault="f01", kind="worker_kill", target=["n1"], inject_t=2.5)
    again = [event(5, "start", "n1.0", rank=0, world_size=1, pid=2, wall_s=5.0)]
    found = points(event(1, "start", "n1.0", rank=0, **{**STARTED, "world_size": 1}), step(2, "n1.0", 1), begun, *again,
                   step(6, "n1.0", 2))  # fmt: skip
    kept = {name: (value, number) for name, value, _, number in found if name.startswith("recovery/")}
    assert kept == {"recovery/time_to_recovery": (3.5, 2), "recovery/standstill": (4.0, 2)}


def test_names_are_those_of_the_requirements() -> None:
    gpus = [{"index": 0, "memory_used": 10, "utilisation": 40}, {"index": 1, "memory_used": 30}]
    found = points(
        event(1, "start", "n1.0", rank=0, **STARTED), step(2, "n1.0", 1), step(3, "n1.0", 2),
        event(3, "eval", "n1.0", step=2, split="test", metric="accuracy", value=0.9),
        event(3, "machine", gpus=gpus), event(4, "checkpoint", "n1.0", step=2, path="p", bytes=5, block_s=0.1),
    )  # fmt: skip
    values = {name: value for name, value, _, _ in found}
    assert values["val/accuracy"] == 0.9
    assert (values["system/gpu_memory"], values["system/gpu_utilization"]) == (20, 40)
    assert {"train/loss", "train/throughput", "checkpoint/block_time", "checkpoint/size"} <= set(values)


def test_what_is_not_told_is_not_made_up() -> None:
    begun = event(1, "start", "n1.0", rank=0, **STARTED)
    bare = event(2, "step", "n1.0", step=1, samples=8, loss=None, lr=True)
    assert points(begun, bare, event(3, "machine"), event(3, "eval", "n1.0", step=1)) == []


def test_a_number_beyond_all_arithmetic_is_passed_over_and_the_next_is_kept() -> None:
    begun = event(1, "start", "n1.0", rank=0, **STARTED)
    beyond = event(2, "eval", "n1.0", step=1, split="test", metric="accuracy", value=10**400)
    late = event(10**400, "eval", "n1.0", step=1, split="test", metric="accuracy", value=0.5)
    after = event(3, "eval", "n1.0", step=1, split="test", metric="accuracy", value=0.9)
    assert [it[:2] for it in points(begun, beyond, late, after)] == [("val/accuracy", 0.9)]


def test_a_metric_by_a_name_that_mlflow_refuses_ends_nothing() -> None:
    begun = event(1, "start", "n1.0", rank=0, **STARTED)
    odd = event(2, "eval", "n1.0", step=1, split="test", metric="acc@1", value=0.5)
    after = event(3, "eval", "n1.0", step=1, split="test", metric="accuracy", value=0.9)
    assert [it[:2] for it in points(begun, odd, after)] == [("val/acc_1", 0.5), ("val/accuracy", 0.9)]


def test_a_trial_has_parameters_and_its_checkpoints() -> None:
    reading = Reading({"t001": PLAN}, 0.0)
    saved = event(2, "checkpoint", "n1.0", step=1, path="p", bytes=5, block_s=0.1, sha256="ab")
    for record in (event(0, "trial_start"), saved, event(3, "trial_end", ok=False)):
        reading.take(record)
    begin, end = reading.todo[0], reading.todo[-1]
    assert isinstance(begin, Begin)
    assert begin.parameters == {"case": "own", "nodes": 2, "seed": 7, "training.lr": 0.1}
    assert isinstance(end, End)
    assert (end.ok, end.checkpoints[0]["sha256"]) == (False, "ab")


class Flaky:
    """A store that is away for the first few calls; it keeps what it is given."""

    def __init__(self, away: int, error: type[Exception] = AwayError) -> None:
        self._away, self._error = away, error
        self.kept: list[Action] = []
        self.finished = False

    def do(self, action: Action) -> None:
        if self._away > 0:
            self._away -= 1
            raise self._error("http://x does not answer")
        self.kept.append(action)

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    store = RunDir(tmp_path / "runs" / "suite" / "id")
    store.events.mkdir(parents=True)
    store.write("spec", {})
    store.write("plan", {"trials": [PLAN], "cluster": {"name": "local"}})
    made = {"t": 0.0, "wall_s": time.time(), "git": {"commit": "abc", "dirty": False}, "argv": ["bench", "run"]}
    store.write("provenance", {**made, "packages": {"torch": "2.13.0"}})
    store.write("seal", {"complete": False, "files": {}})
    store.write("results", {})
    return store


RECORDS = [
    event(0, "run_start"), event(1, "trial_start"), event(1, "start", "n1.0", rank=0, **STARTED),
    *(step(2 + i, "n1.0", i + 1) for i in range(20)), event(30, "trial_end", ok=True), event(31, "run_end", ok=True),
]  # fmt: skip


def tell(store: RunDir, *records: dict[str, Any]) -> None:
    for it in records:
        name = "harness" if it["source"] == "harness" else f"t001.{it['source']}"
        with (store.events / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps({key: it[key] for key in it if key != "source"}) + "\n")


def test_while_the_server_is_away_everything_waits_in_order(run: RunDir) -> None:
    tell(run, *RECORDS)
    store, said, slept = Flaky(away=7), list[str](), list[float]()
    assert tracking.track(run, tracking.of_run(run), store, said.append, 3600, slept.append) == 59
    assert [type(it) for it in store.kept] == [Begin, Points, End]
    assert store.finished
    assert said == [
        "http://x does not answer; training goes on, trying again", "the tracking server answers again after 91 s",
    ]  # fmt: skip
    assert slept[:7] == [1, 2, 4, 8, 16, 30, 30]


def test_a_server_that_stays_away_ends_it_and_says_how_to_go_on(run: RunDir) -> None:
    tell(run, *RECORDS)
    with pytest.raises(TrackingError, match="nothing is lost: the same command again delivers the rest"):
        tracking.track(run, tracking.of_run(run), Flaky(away=99), print, 10, lambda _: None)


def test_a_server_that_refuses_is_not_asked_again(run: RunDir) -> None:
    tell(run, *RECORDS)
    with pytest.raises(TrackingError, match="http://x does not answer"):
        tracking.track(run, tracking.of_run(run), Flaky(1, TrackingError), print, 10, lambda _: None)


def test_what_waits_is_bounded_and_the_rest_waits_in_the_files(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "WAITING_MAX", 0)
    tell(run, *RECORDS)
    reads = iter(range(3))

    def slept(seconds: float) -> None:
        assert seconds
        if next(reads) == 1:
            monkeypatch.setattr(tracking, "WAITING_MAX", 1)

    store = Flaky(away=0)
    assert tracking.track(run, tracking.of_run(run), store, print, 10, slept) == 59


def test_a_run_in_sqlite_has_parameters_metrics_tags_and_artefacts(run: RunDir) -> None:
    saved = run.path / "checkpoint"
    saved.mkdir()
    (saved / "manifest.json").write_text("{}")
    told = event(25, "checkpoint", "n1.0", step=20, path=str(saved), bytes=5, block_s=0.1)
    tell(run, *RECORDS[:-2], told, *RECORDS[-2:])
    (run.path / "report.html").write_text("<p>")
    run.write("seal", {"complete": True, "files": {}})
    uri = f"sqlite:///{run.path.parent.parent}/mlflow.db"
    for more in ((), ("--model",)):  # the second time adds the model and changes nothing else
        told_again = track_here(run, *more)
        assert told_again.returncode == 0, told_again.stderr
        assert told_again.stdout == f"61 values of run id in {uri}\n"
        assert told_again.stderr == ""
    whole, trial = look(uri)
    assert whole["tags"]["mlflow.source.git.commit"] == "abc"
    assert whole["artefacts"] == [
        "plan.json", "provenance.json", "report.html", "requirements.txt", "results.json", "seal.json", "spec.json",
    ]  # fmt: skip
    assert trial["tags"]["mlflow.parentRunId"] == whole["id"]
    assert (trial["status"], trial["params"]["training.lr"]) == ("FINISHED", "0.1")
    assert trial["steps"] == list(range(1, 21)), "each value once"
    assert trial["artefacts"] == ["checkpoint", "checkpoints.json", "model"]


def track_here(run: RunDir, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(run, *more), cwd=ROOT, capture_output=True, text=True, check=False)


def command(run: RunDir, *more: str) -> list[str]:
    return program("monitoring", "--runs", str(run.path.parent.parent), "track", str(run.path), *more)


LOOK = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
runs = client.search_runs([it.experiment_id for it in client.search_experiments()], order_by=["start_time"])
print(json.dumps(sorted([{
    "id": it.info.run_id, "status": it.info.status, "tags": it.data.tags, "params": it.data.params,
    "steps": [m.step for m in client.get_metric_history(it.info.run_id, "train/loss")],
    "artefacts": sorted(a.path for a in client.list_artifacts(it.info.run_id)),
} for it in runs], key=lambda it: it["tags"]["proving_ground.trial"])))
"""


def look(uri: str) -> list[dict[str, Any]]:
    """What MLflow has: the harness' run, then its trials. In a process of its own: MLflow warns at import."""
    asked = subprocess.run(
        [sys.executable, "-c", LOOK, uri], capture_output=True, text=True, check=True,
        env=os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"},
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(asked.stdout)
    return found


@pytest.mark.parametrize(
    ("more", "status", "message"),
    [
        (["--uri", "moon://x"], 1, "moon://x"),
        (["--uri", "http://user:secret@127.0.0.1:9", "--patience", "0"], 1, "http://127.0.0.1:9 does not answer"),
        (["--patience", "-1"], 2, "--patience -1: allowed: 0 or more seconds"),
    ],
)
def test_a_mistake_is_one_line_without_secrets(run: RunDir, more: list[str], status: int, message: str) -> None:
    tell(run, *RECORDS)
    told = track_here(run, *more)
    assert (told.returncode, told.stderr.count("\n")) == (status, 1), told.stderr
    assert message in told.stderr
    assert "secret" not in told.stdout + told.stderr


TRAINER = """
import statistics, sys, time
from pathlib import Path
from proving_ground.training.events import EventWriter
worker = EventWriter(sys.argv[1])
worker.emit("start", rank=0, world_size=1, pid=1, wall_s=time.time())
waited = []
for step in range(1, 401):
    time.sleep(0.01)
    while step > 100 and not Path(sys.argv[2]).exists():
        time.sleep(0.1)
    before = time.perf_counter()
    worker.emit("step", step=step, samples=8, global_samples=8, loss=1 / step)
    waited.append(time.perf_counter() - before)
print(statistics.median(waited[100:]) / statistics.median(waited[:100]))
"""
"""Makes 100 steps, and 300 more once the file exists; prints how many times longer than before it waited to tell of
one."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[[], tuple[subprocess.Popen[bytes], str]]]:
    """Starts the real MLflow server, on the same port and store each time."""
    port = free_port(0)
    started: list[subprocess.Popen[bytes]] = []

    def start() -> tuple[subprocess.Popen[bytes], str]:
        words = ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--artifacts-destination", f"{tmp_path}/art"]
        argv = [sys.executable, "-m", "mlflow", "server", *words, "--host", "127.0.0.1", "--port", str(port)]
        more = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (tmp_path / "server.log").open("ab") as log:
            started.append(subprocess.Popen(
                [*argv, "--workers", "1"], stdout=log, stderr=log, start_new_session=True, env=os.environ | more
            ))  # fmt: skip
        for _ in range(900):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return started[-1], f"http://127.0.0.1:{port}"
        raise TimeoutError((tmp_path / "server.log").read_text())

    yield start
    for process in started:
        kill(process)


def kill(server: subprocess.Popen[bytes]) -> None:
    """The server and the processes that it made."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def test_a_server_that_is_killed_costs_nothing_and_loses_nothing(
    run: RunDir, server: Callable[[], tuple[subprocess.Popen[bytes], str]]
) -> None:
    first, uri = server()
    tell(run, event(0, "run_start"), event(1, "trial_start"))
    gone = run.path / "gone"
    argv = [sys.executable, "-c", TRAINER, str(run.events / "t001.n1.0.jsonl"), str(gone)]
    with (
        subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as trainer,
        subprocess.Popen(command(run, "--uri", uri), cwd=ROOT, stdout=subprocess.PIPE, text=True) as tracker,
    ):
        assert tracker.stdout
        wait_for(lambda: "t001" in str(runs_at(uri)))
        kill(first)
        gone.touch()
        times, _ = trainer.communicate()
        assert trainer.returncode == 0, "training ended while the server was away"
        assert float(times) < 10, "and writing its events took it no longer than ever"
        assert "does not answer" in tracker.stdout.readline()
        assert tracker.poll() is None
        end_t = time.monotonic()
        tell(run, event(end_t, "trial_end", ok=True), event(end_t, "run_end", ok=True))
        server()
        said, _ = tracker.communicate(timeout=200)
    assert "the tracking server answers again" in said
    assert tracker.returncode == 0
    _, trial = look(uri)
    assert Counter(trial["steps"]) == Counter(range(1, 401)), "every value, each once"
    assert trial["status"] == "FINISHED"


def runs_at(uri: str) -> object:
    """The runs by MLflow's own API."""
    body = json.dumps({"experiment_ids": ["1"]}).encode()
    where = f"{uri}/api/2.0/mlflow/runs/search"
    request = urllib.request.Request(where, body, {"Content-Type": "application/json"})  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - same
            return json.load(answer)
    except OSError:
        return {}


def wait_for(there: Callable[[], bool]) -> None:
    for _ in range(600):
        if there():
            return
        time.sleep(0.1)
    raise TimeoutError


@pytest.mark.parametrize(
    ("name", "kept"),
    [("val/acc@1", "val/acc_1"), ("val/accuracy", "val/accuracy"), ("a//b", "a/b"), ("../x", "x"), ("ä", "_"),
     ("", "unnamed"), ("x" * 300, "x" * 250), ("val/top-5 acc.", "val/top-5 acc."), ("/", "unnamed")],
)  # fmt: skip
def test_a_metric_is_called_as_mlflow_allows(name: str, kept: str) -> None:
    from mlflow.utils.validation import _validate_metric_name  # noqa: PLC0415 - slow to import

    assert tracking.allowed(name) == kept
    _validate_metric_name(kept)  # type: ignore[no-untyped-call]


LOCAL = """
import sys
from pathlib import Path
from proving_ground.monitoring import mlflow_store
client = mlflow_store.MlflowClient(mlflow_store.local_uri(Path(sys.argv[1])))
made = mlflow_store.experiment(client, "mine")
assert mlflow_store.experiment(client, "mine") == made
print(client.get_experiment(made).artifact_location)
"""


def test_artefacts_of_a_local_experiment_lie_beside_its_file(tmp_path: Path) -> None:
    """And not in the folder where somebody happens to be: models that are registered come by the same way."""
    asked = subprocess.run(
        [sys.executable, "-c", LOCAL, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert asked.stdout.strip() == (tmp_path / "mlflow-artefacts").as_uri()
