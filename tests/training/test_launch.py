"""Launchers as a person starts them, on this machine: they get over kills, a lost coordinator, and a leave-taking."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import DistStoreError
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from proving_ground.bench.tail import appended
from proving_ground.training.events import EVENTS_OF_LAUNCHER, EVENTS_VARIABLE, MISTAKE
from proving_ground.training.recovery import launch
from proving_ground.training.recovery.elastic import STOPPED
from proving_ground.training.recovery.launch import Progress

from .ranks import free_port

ROOT = Path(__file__).parents[2]
CONFIG = """
model = "digits"
steps = 100000
global_batch = 16
last_batch = "carry"
checkpoint_dir = "$FOLDER/checkpoints"
checkpoint_every = 20
timeout_s = 0.0
eval_every = -1
"""
WAIT_S = 60.0


class Job:
    """A coordinator and two nodes."""

    def __init__(self, folder: Path, config: str = CONFIG, nodes: int = 2) -> None:
        self.folder = folder
        self.port = free_port()
        (folder / "c.toml").write_text(config)
        self.coordinator = self.start("coordinator", "--port", str(self.port))
        self.nodes = [self.node(number) for number in range(1, nodes + 1)]

    def start(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        """A process of the trainer's."""
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "proving_ground.training", *words], cwd=ROOT, stdout=log, stderr=log,
                env=os.environ | {"FOLDER": str(self.folder), "OMP_NUM_THREADS": "1"} | env,
            )  # fmt: skip

    def node(self, number: int) -> subprocess.Popen[bytes]:
        """A node's launcher."""
        files = {EVENTS_VARIABLE: self.folder / f"n{number}.0.jsonl", EVENTS_OF_LAUNCHER: self.folder / f"n{number}.l"}
        where = ("--coordinator", f"127.0.0.1:{self.port}", "--address", "127.0.0.1")
        words = ("run", "--config", str(self.folder / "c.toml"))
        return self.start("launch", "--nodes", "1:2", *where, *words, **{name: str(it) for name, it in files.items()})

    def told(self, file: str, event: str) -> list[dict[str, Any]]:
        """The events of that name in a file."""
        lines, _ = appended(self.folder / file, 0)  # without one that is just being written
        return [it for line in lines if (it := json.loads(line))["event"] == event]

    def worker(self, number: int) -> int:
        """The pid of a node's present worker."""
        return int(self.told(f"n{number}.0.jsonl", "start")[-1]["pid"])

    def newest(self) -> tuple[int, int]:
        """(generations begun, steps told) by node 1."""
        return len(self.told("n1.0.jsonl", "ready")), len(self.told("n1.0.jsonl", "step"))

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to happen."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.05)

    def steps_on(self, generation: int) -> None:
        """Wait until it has made some steps in this generation."""
        self.until(lambda: self.newest()[0] >= generation)
        begun = self.newest()[1]
        self.until(lambda: self.newest()[1] > begun + 20)

    def end(self) -> None:
        """Nothing is left running."""
        for process in (*self.nodes, self.coordinator):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    started = Job(tmp_path_factory.mktemp("job"))
    try:
        started.steps_on(1)
        yield started
    finally:
        started.end()


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_job_gets_over_everything_that_happens_to_it_in_turn(job: Job) -> None:
    job.until(lambda: any(job.told(f"n{number}.0.jsonl", "checkpoint") for number in (1, 2)))
    os.kill(job.worker(2), signal.SIGKILL)
    job.steps_on(2)
    resumed = job.told("n1.0.jsonl", "resume")
    assert resumed
    assert resumed[-1]["step"] >= 20
    assert job.told("n2.l", "detected")[-1] == {
        "t": job.told("n2.l", "detected")[-1]["t"], "event": "detected", "why": "worker_failed", "detail": [-9],
    }  # fmt: skip

    job.coordinator.kill()  # nobody needs it as long as nothing else happens
    job.coordinator.wait()
    job.until(
        lambda: bool(job.told("n1.l", "detected")) and job.told("n1.l", "detected")[-1]["why"] == "no_coordinator"
    )
    begun = job.newest()
    job.until(lambda: job.newest()[1] > begun[1] + 20)
    job.coordinator = job.start("coordinator", "--port", str(job.port))
    job.until(lambda: bool(job.told("n1.l", "coordinator_found")) and bool(job.told("n2.l", "coordinator_found")))
    assert job.newest()[0] == begun[0]

    orphan = job.worker(2)
    job.nodes[1].kill()
    job.nodes[1].wait()
    job.until(lambda: gone(orphan))
    job.steps_on(begun[0] + 1)  # node 1 alone
    assert job.told("n1.l", "membership")[-1]["world_size"] == 1
    job.nodes[1] = job.node(2)
    job.until(lambda: job.told("n1.l", "membership")[-1]["world_size"] == 2)
    job.steps_on(begun[0] + 2)

    before = job.told("n1.0.jsonl", "step")[-1]["step"]
    job.nodes[1].send_signal(signal.SIGTERM)  # it leaves: nothing is lost
    assert job.nodes[1].wait(WAIT_S) == STOPPED
    job.until(lambda: job.told("n1.l", "membership")[-1]["world_size"] == 1)
    job.steps_on(begun[0] + 3)
    assert job.told("n1.0.jsonl", "resume")[-1]["step"] >= before


def test_a_node_that_dies_between_meeting_and_telling_its_rank_ends_no_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[int] = []

    def meet(_agent: object, _group: object) -> None:
        tries.append(1)
        if len(tries) <= len(lost):
            raise DistStoreError("wait timeout after 3000ms")

    told: list[str] = []
    agent = launch.Agent.__new__(launch.Agent)
    vars(agent).update(
        _events=SimpleNamespace(emit=lambda event, **_: told.append(event)), _retries=launch.Retries(),
        _progress=SimpleNamespace(made=lambda: False), _worker_group=None,
    )  # fmt: skip
    monkeypatch.setattr(LocalElasticAgent, "_rendezvous", meet)
    monkeypatch.setattr(launch.Agent, "_meeting", SimpleNamespace(round=3))
    monkeypatch.setattr(launch, "BACKOFF_S", 0.0)
    group: Any = SimpleNamespace(group_rank=0, workers=[SimpleNamespace(world_size=1)])
    lost = [1]
    agent._rendezvous(group)
    assert (told, len(tries)) == (["detected", "membership"], 2)
    lost = [1] * 9
    with pytest.raises(launch.GaveUpError):
        agent._rendezvous(group)


@pytest.mark.timeout(400)
def test_a_mistake_of_a_worker_is_not_tried_again(tmp_path: Path) -> None:
    job = Job(tmp_path, CONFIG.replace("steps = 100000", "steps = -1"), nodes=1)
    try:
        assert job.nodes[0].wait(6 * WAIT_S) == MISTAKE
    finally:
        job.end()
    assert len(job.told("n1.l", "workers_start")) == 1
    assert "status 2" in job.told("n1.l", "gave_up")[-1]["message"]
    assert job.told("n1.0.jsonl", "error")[-1]["status"] == MISTAKE


def test_progress_is_a_step_that_was_told_since_the_last_look(tmp_path: Path) -> None:
    file = tmp_path / "e.jsonl"
    progress = Progress([file, None])
    assert not progress.made()
    file.write_text('{"t":1,"event":"start"}\n')
    assert not progress.made()
    with file.open("a") as more:
        more.write('{"t":2,"event":"step","step":1}\n')
    assert progress.made()
    assert not progress.made()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nodes", "3:2", "run"], "--nodes 3:2: must be a count, or MIN:MAX"),
        (["--nodes", "two", "run"], "--nodes two"),
        (["--workers", "0", "run"], "--workers 0"),
        (["--entry", "no entry", "run"], "--entry no entry: must be MODULE:FUNCTION"),
        ([], "nothing to start"),
    ],
)
def test_mistakes_get_one_line_and_status_2(words: list[str], says: str) -> None:
    command = [sys.executable, "-m", "proving_ground.training", "launch", "--coordinator", "127.0.0.1", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
