"""Faults on real parts, and the alerts that they must bring: an end point under load, and a search.

Prometheus, Alertmanager, HAProxy, locust and Ray are the real ones; the rules are the shipped ones, their durations
divided by 60. `test_proofs.py` has small servers in place of a model's, and a round of each. By hand, with a model's
own servers and with a search's budget: `python -m tests.monitoring.proofs MODEL ROUNDS`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proving_ground.bench.agent.processes import descendants
from proving_ground.bench.servers import HERE
from proving_ground.monitoring import rules
from proving_ground.monitoring.exporter import Watched, follow, serving
from proving_ground.monitoring.inbox import Inbox, receiving
from proving_ground.monitoring.rules import LIVE_FACTOR
from proving_ground.monitoring.servers import LIVE_INTERVAL_S, Wanted, query, running
from proving_ground.serving import load, servers
from proving_ground.serving.mistakes import FailedError
from tests.programs import program

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90.0  # on a busy machine
START_S = 300.0  # of Ray on such a one
HEALTHY_S = 4.0  # watched before anything is broken
OURS = {it.name: it for it in rules.alerts() if it.name.startswith(("EndPoint", "Search", "Queue"))}
USERS = 4
LONGEST_S = 1.5
TOLD = [{"figure": "p99", "users": None, "seconds": 0.3}, {"figure": "longest", "users": USERS, "seconds": LONGEST_S}]
STOPPED_S, GOING_S = 0.4, 0.2  # of replicas that are made slow: shorter than HAProxy's patience, longer than the p99
ENDLESS_S = 600.0
SUITE = """\
title = "Trials that go on until they are stopped"
algorithm = "random"
trials = 4
concurrent = 1
steps = 1000000
eval_every = 50
metric = "accuracy"
{budget}
[training]
model = "digits"
[space]
lr = {{ loguniform = [0.001, 0.1] }}
"""


@dataclass(frozen=True)
class Row:
    """An alert that a fault brought, after so long, and what its rule promises with a scrape, both in seconds."""

    fault: str
    alert: str
    took_s: float
    promised_s: float


@dataclass
class Scene:
    """What somebody was told of a directory that is watched; only of alerts about what it is."""

    inbox: Inbox
    prometheus: int
    states: dict[str, str] = field(default_factory=dict)
    fired: list[str] = field(default_factory=list)

    def look(self) -> None:
        """Take in what came."""
        for it in self.inbox.new():
            if it.alert in OURS:
                self.states[it.alert] = it.state
                self.fired += [it.alert] if it.state == "firing" else []

    def until(self, what: str, so: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Wait until something is so."""
        end = time.monotonic() + patience_s
        while not so():
            assert time.monotonic() < end, f"{what} does not come; {self.states}"
            time.sleep(0.05)
            self.look()

    def holds(self, expression: str) -> bool:
        """Whether Prometheus has a series that is so."""
        return bool(query(self.prometheus, expression))

    def calm(self) -> None:
        """Nothing fires any more."""
        self.until("the end of all alerts", lambda: "firing" not in self.states.values())

    def healthy(self) -> None:
        """Nothing is broken, and nothing comes; where a busy machine made answers late, once it does not any more."""
        patience_t = time.monotonic() + PATIENCE_S
        while True:
            self.calm()
            before, end = len(self.fired), time.monotonic() + HEALTHY_S
            self.until("the end of what is watched", lambda end=end: time.monotonic() > end)  # type: ignore[misc]
            if not (came := self.fired[before:]):
                return
            assert time.monotonic() < patience_t, f"{came} though nothing is broken"

    def brings(self, fault: str, alert: str, begin: float) -> Row:
        """The alert that a fault must bring, after the moment at which what it is about began."""
        self.until(f"{fault}: {alert}", lambda: self.states.get(alert) == "firing")
        return Row(fault, alert, time.monotonic() - begin, OURS[alert].within_s / LIVE_FACTOR + LIVE_INTERVAL_S)


@contextlib.contextmanager
def watched(path: Path, folder: Path) -> Iterator[Scene]:
    """The directory, watched by the real servers."""
    it, stop = Watched(path), threading.Event()
    with receiving() as inbox, serving(it, HERE, 0) as port:
        thread = threading.Thread(target=follow, args=(it, stop), daemon=True)
        thread.start()
        try:
            with running(Wanted(folder, port, factor=LIVE_FACTOR, webhook=inbox.url)) as ports:
                yield Scene(inbox, ports.prometheus)
        finally:
            stop.set()
            thread.join()


# An end point -------------------------------------------------------------------------------------------------------


def of_end_point(end_point: servers.EndPoint, example: load.Example, folder: Path) -> list[Row]:
    """Break two replicas under load in every way; what came."""
    run = load.new_run(folder / "runs")
    orders = load.Orders([end_point.url], [USERS], ENDLESS_S, 1)
    with (
        under(lambda: load.put(orders, example, run, {"told": TOLD}, end_point)),
        watched(run.path, folder / "servers") as scene,
    ):
        scene.until("an answer", lambda: scene.holds('rate(endpoint_requests_total{outcome="answered"}[2s]) > 0'))
        scene.until("two replicas", lambda: scene.holds("endpoint_replicas_up == 2"))
        scene.healthy()
        rows = list(broken(scene, *end_point.replicas))
        end_locust()  # a load that was cut off has no end point any more
        scene.calm()
    return rows


def broken(scene: Scene, first: servers.Replica, second: servers.Replica) -> Iterator[Row]:
    """One fault after the other; each is over before the next."""
    begin = time.monotonic()
    with in_pulses(first, second):
        yield scene.brings("replicas slow", "EndPointSlow", begin)
    scene.calm()
    begin = time.monotonic()
    os.killpg(first.process.pid, signal.SIGSTOP)
    yield scene.brings("a replica hangs", "EndPointReplicaDown", begin)
    yield scene.brings("a replica hangs", "QueueLongerThanTold", begin + LONGEST_S)
    os.killpg(first.process.pid, signal.SIGCONT)
    scene.until("r1 is back", lambda: scene.holds("endpoint_replicas_up == 2"))
    scene.calm()
    begin = time.monotonic()
    first.kill()
    yield scene.brings("a replica killed", "EndPointReplicaDown", begin)
    scene.until("an answer of the other one", lambda: scene.states.get("EndPointDown") != "firing")
    begin = time.monotonic()
    second.kill()
    yield scene.brings("the last replica killed", "EndPointDown", begin)
    yield scene.brings("the last replica killed", "EndPointErrors", begin)


@contextlib.contextmanager
def in_pulses(*replicas: servers.Replica) -> Iterator[None]:
    """Replicas that stand still most of the time, as those whose cores others use."""
    over = threading.Event()

    def pulse() -> None:
        while not over.is_set():
            for number, seconds in ((signal.SIGSTOP, STOPPED_S), (signal.SIGCONT, GOING_S)):
                for it in replicas:
                    os.killpg(it.process.pid, number)
                time.sleep(seconds)

    thread = threading.Thread(target=pulse, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def under(put: Callable[[], None]) -> Iterator[None]:
    """Load meanwhile."""

    def endless() -> None:
        with contextlib.suppress(FailedError):  # locust is ended
            put()

    thread = threading.Thread(target=endless, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end_locust()
        thread.join()


def end_locust() -> None:
    """Kill the users."""
    signal_all(b"locust", signal.SIGKILL)


def signal_all(mark: bytes, number: signal.Signals) -> None:
    """Signal what this process has started and has these words in its command line."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, number)


# A search -----------------------------------------------------------------------------------------------------------


def of_search(folder: Path, budget_s: int | None = None) -> list[Row]:
    """Stop a search's workers and, where it has a budget, its driver too, until the budget is over; what came."""
    suite, runs = folder / "endless.toml", folder / "runs"
    suite.write_text(SUITE.format(budget=f"budget_s = {budget_s}" if budget_s else ""))
    command = program("search", "run", "--quiet", "--suite", str(suite), "--runs", str(runs))
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            with watched(runs / "search" / "endless" / "latest", folder / "servers") as scene:
                return list(stopped(scene, budget_s))
        finally:
            signal_all(b"proving_ground.search.driver", signal.SIGCONT)
            signal_all(b"ray::", signal.SIGCONT)
            process.send_signal(signal.SIGINT)


def stopped(scene: Scene, budget_s: int | None) -> Iterator[Row]:
    """One fault after the other; each is over before the next."""
    scene.until("steps", lambda: scene.holds("increase(search_steps_total[2s]) > 0"), START_S)
    scene.healthy()
    begin = time.monotonic()
    signal_all(b"ray::", signal.SIGSTOP)
    yield scene.brings("workers stopped", "SearchStalled", begin)
    signal_all(b"ray::", signal.SIGCONT)
    scene.calm()
    if not budget_s:
        return
    assert "QueueLongerThanTold" not in scene.fired, "its budget is not over"
    signal_all(b"proving_ground.search.driver", signal.SIGSTOP)
    beyond = f"time() - search_start_timestamp_seconds > {budget_s}"
    scene.until("the end of the budget", lambda: scene.holds(beyond))
    yield scene.brings("driver stopped beyond the budget", "QueueLongerThanTold", time.monotonic())


# By hand ------------------------------------------------------------------------------------------------------------


def main(words: Sequence[str]) -> int:
    """Rounds with a model's own servers and with a search that has a budget; 1 where an alert came late."""
    from proving_ground.serving import check  # noqa: PLC0415 - torch

    model, rounds = Path(words[0]).resolve(), int(words[1])
    scorer, inputs = check.loaded(model)
    answer = {name: it.tolist() for name, it in check.answer_of(scorer, inputs).items()}
    rows: list[Row] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder, servers.running(model, "azureml", 0, 2, print) as end_point:
            rows += of_end_point(end_point, load.Example({"inputs": inputs}, answer), Path(folder))
        with tempfile.TemporaryDirectory() as folder:
            rows += of_search(Path(folder), budget_s=120)
    for fault, alert in dict.fromkeys((it.fault, it.alert) for it in rows):
        mine = [it for it in rows if (it.fault, it.alert) == (fault, alert)]
        took = f"{max(it.took_s for it in mine):.1f} s at most; its rule {mine[0].promised_s:.1f} s"
        print(f"{fault}: {alert}: {len(mine)} of {rounds}, {took}")
    return int(any(it.took_s > it.promised_s for it in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
