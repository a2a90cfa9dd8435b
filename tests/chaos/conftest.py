"""A small real cluster with a stand-in for a training job: on each node a launcher, and a worker that answers."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from proving_ground.bench.agent.processes import NodeProcess
from proving_ground.bench.clusters.local.cluster import LocalCluster
from proving_ground.bench.protocols import Cluster, ClusterError, ClusterRequest, ProcessSpec
from proving_ground.chaos.faults import FAULTS, Evidence, Fault, Injection
from proving_ground.chaos.targets import View, resolve
from proving_ground.reports.recovery import proof
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN
from tests.bench.clusters.conftest import pytest_collection_modifyitems, until

__all__ = ["pytest_collection_modifyitems"]

WORKERS = ("n1", "n2", "n3")
COORDINATOR = "n4"
NODES = (*WORKERS, COORDINATOR)
SEED = 7
JOB_OF_THREE = """
title = "x"
nodes = [3]
repeats = 1
[[case]]
name = "digits"
workload = "digits"
mechanism = "restart"
min_nodes = 2
global_batch = 96
steps = 5000
estimated_step_s = 0.005
"""
"""The begin of a suite that a simulated cluster does; what is behind it belongs to its case."""
LAUNCHER = """
import signal, subprocess, sys
print("worker", subprocess.Popen([sys.executable, "-I", "-S", "-c", sys.argv[1], sys.argv[2]]).pid, flush=True)
signal.signal(signal.SIGTERM, lambda *_: print("notice", flush=True))
while True: signal.pause()
"""
WORKER = """
import socket, sys
held = b"1" * 16_000_000
answer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
answer.bind(("0.0.0.0", int(sys.argv[1])))
print("up", flush=True)
while True:
    word, sender = answer.recvfrom(2000)
    print("got", word.decode(), flush=True)
    answer.sendto(word, sender)
"""
ASK = """
import socket, sys
ask = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
ask.settimeout(0.5)
ask.sendto(sys.argv[3].encode(), (sys.argv[1], int(sys.argv[2])))
try: print("echo", ask.recvfrom(2000)[0].decode())
except OSError as error: print(type(error).__name__)
"""


class Job:
    """The stand-in job on a cluster that is up."""

    def __init__(self, cluster: LocalCluster, folder: Path, addresses: dict[str, str]) -> None:
        self.cluster = cluster
        self.folder = folder
        self.addresses = addresses
        self.view = View(WORKERS, "n1", COORDINATOR)
        self.emitted: list[str] = []
        self.words = 0
        self.ports = {node: free_port() if address == "127.0.0.1" else 9000
                      for node, address in addresses.items()}  # fmt: skip

    def start(self, *nodes: str) -> None:
        """Start launcher and worker on nodes, and wait until they answer."""
        for node in nodes or NODES:
            self.log(node).unlink(missing_ok=True)
            argv = ("python", "-I", "-S", "-c", LAUNCHER, WORKER, str(self.ports[node]))
            self.cluster.start(ProcessSpec(node, 0, argv, log=self.log(node)))
        until(lambda: all("up" in self.said(node) for node in nodes or NODES))

    def log(self, node: str) -> Path:
        return self.folder / f"{node}.log"

    def said(self, node: str) -> str:
        return self.log(node).read_text() if self.log(node).exists() else ""

    def pids(self, node: str) -> list[int]:
        """The worker's pid as the node sees it: what its launcher was told."""
        return [int(line.split()[1]) for line in self.said(node).splitlines() if line.startswith("worker")]

    def run(self, node: str, code: str, *words: str) -> str:
        """What a short program on a node prints."""
        log = self.folder / f"run-{self.words}.log"
        self.words += 1
        self.cluster.start(ProcessSpec(node, 5, ("python", "-I", "-S", "-c", code, *words), log=log))
        until(lambda: any(ended.slot == 5 for ended in self.cluster.exits()))
        return log.read_text().strip()

    def talk(self, one: str, other: str) -> tuple[bool, bool]:
        """Whether a word from one node arrives at the other, and whether the answer comes back."""
        word = f"word{self.words}"
        said = self.run(one, ASK, self.addresses[other], str(self.ports[other]), word)
        return f"got {word}\n" in self.said(other), said == f"echo {word}"

    @property
    def checkpoints_folder(self) -> Path:
        """Where `checkpoints` makes them."""
        return self.cluster.volume / "checkpoints"

    def checkpoints(self) -> Path:
        """A folder with two committed checkpoints on the volume."""
        folder = self.checkpoints_folder
        for step in (10, 20):
            at = folder / f"step-{step:08d}-g00000001"
            at.mkdir(parents=True, exist_ok=True)
            files = {"model.pt": os.urandom(4000), "optimizer.pt": os.urandom(100)}
            for name, content in files.items():
                (at / name).write_bytes(content)
            (at / "manifest.json").write_text(json.dumps({"checkpoint": {"files": {name: {} for name in files}}}))
        return folder

    def injection(self, key: str, target: str = "", cluster: object = None, **args: float) -> Injection[Any]:
        """A fault of this kind, ready to begin."""
        fault = FAULTS[key]
        workers = {node: dict.fromkeys(self.pids(node), f"{node}.0") for node in WORKERS}
        return Injection(
            cast(Cluster, cluster or self.cluster), resolve(target or fault.target, self.view, SEED), self.view,
            fault.with_defaults(args, "test"), SEED, workers,
            self.checkpoints().name if key.startswith("checkpoint") else None,
            lambda event, **_: self.emitted.append(event),
        )  # fmt: skip


@dataclass
class VirtualEngine:
    """What engines in virtual time have, each with one node n2; `mutant` is what it does not really do."""

    mutant: str = ""
    t: float = 0.0
    silent: bool = False  # whether it answers no question
    refuses: set[str] = field(default_factory=set)  # machines that it does not open

    def now(self) -> float:
        """Virtual."""
        return self.t

    def sleep(self, seconds: float) -> None:
        """Time passes."""
        self.t += seconds

    def ask(self) -> None:
        """Answer, or not."""
        if self.silent:
            raise ClusterError("Unable to contact the control plane: it was refused")

    def processes(self, node: str) -> Sequence[NodeProcess]:
        """A trainer."""
        del node
        return [NodeProcess(pid=7, host_pid=7, start=1, state="S", cmd="python")]


def works(fault: Fault, scene: Injection[Any], begin: Evidence, end: Evidence | None = None) -> bool | None:
    """What the report will say of this evidence; None: it cannot tell."""
    about = {"begin": begin, "end": end, "args": scene.args, "target": list(scene.nodes)}
    value, _ = proof.judged(fault.traits(scene.args)["proof"], json.loads(json.dumps(about)))
    return {PASS: True, FAIL: False, UNKNOWN: None}[value]


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def job_on(cluster: LocalCluster, folder: Path, run_id: str = "") -> Iterator[Job]:
    run_id = run_id or f"chaos{os.getpid()}-{time.monotonic_ns()}"
    try:
        request = ClusterRequest(run_id, 4, 8, folder / "scratch", volume_mb=64, clocks=True)
        nodes = cluster.setup(request, lambda *_, **__: None)
        yield Job(cluster, folder, {node.name: node.address for node in nodes})
    finally:
        cluster.teardown()


@pytest.fixture(scope="session")
def isolated_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    yield from job_on(LocalCluster(preload=None), tmp_path_factory.mktemp("isolated"))


@pytest.fixture(scope="session")
def plain_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    yield from job_on(LocalCluster((), preload=None), tmp_path_factory.mktemp("plain"))


@pytest.fixture
def job(isolated_cluster: Job) -> Iterator[Job]:
    """The stand-in job, running on isolated nodes that tests share one after the other."""
    yield from started(isolated_cluster)


@pytest.fixture
def plain_job(plain_cluster: Job) -> Iterator[Job]:
    """The same on plain processes."""
    yield from started(plain_cluster)


def started(job: Job) -> Iterator[Job]:
    job.start()
    yield job
    job.cluster.stop(0)
    job.cluster.exits()


class Idle:
    """A cluster on which nothing has any effect: what breaks or heals returns as if it had."""

    ACTS = ("signal", "cut", "mend", "link", "loss", "delay", "share", "fill", "readonly", "throttle", "limit", "crowd",
            "skew", "fill_gpu")  # fmt: skip

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return (lambda *_, **__: None) if name in self.ACTS else getattr(self._cluster, name)

    def kill(self, node: str, slot: int | None, number: int) -> list[int]:
        del slot, number
        return [self._cluster.processes(node)[0].host_pid]
